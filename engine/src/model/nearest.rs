//! The nearest name to a mistyped or missing one, for error messages.
//!
//! Neighbours: `architectures` and `weights`. Names that share little are not suggested: a wrong hint costs more than
//! none. For dotted tensor names the Jaro-Winkler measure favours the common prefix, which is what a reader looks for.

/// The candidate most like `name`, if any is alike at all.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.into_iter().map(|candidate| (strsim::jaro_winkler(name, candidate), candidate));
    scored.filter(|(score, _)| *score > 0.6).max_by(|left, right| left.0.total_cmp(&right.0)).map(|(_, best)| best)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_the_like_and_leaves_the_unlike() {
        assert_eq!(nearest("Qwen25ForCausalLM", ["LlamaForCausalLM", "Qwen2ForCausalLM"]), Some("Qwen2ForCausalLM"));
        assert_eq!(nearest("model.norm.weight", ["norm.weight", "model.norm.wieght"]), Some("model.norm.wieght"));
        assert_eq!(nearest("zzz", ["model.norm.weight"]), None);
    }
}
