//! Which model drafts: another one of the target's vocabulary, or the target's own weights stored in fewer bits.

use std::sync::Arc;

use foretoken_plugin_api::{Error, Host, Model, ModelFacts, Result};

use crate::vocabulary::{Intersection, Translated};
use crate::{Quantize, Vocabulary};

/// The model that the options `model`, `quantize`, `dtype` and `vocabulary` of `part` name, and its facts.
///
/// # Errors
/// If they name none or two, or one that cannot draft for the target.
pub fn load(
    part: &str,
    (model, quantize, dtype): (Option<&str>, Option<Quantize>, Option<&str>),
    vocabulary: Vocabulary,
    host: &Host,
) -> Result<(Model, ModelFacts)> {
    let target = host.target().path;
    if let (Some(_), Some(dtype)) = (quantize, dtype) {
        return Err(Error::options(format!("{part}: dtype = {dtype:?} beside quantize, expected one of them")));
    }
    let (path, dtype) = match (model, quantize) {
        (Some(path), None) => (path, dtype),
        (None, Some(Quantize::Q8_0)) => (target.as_str(), Some("q8_0")),
        (None, Some(Quantize::Q4)) => (target.as_str(), Some("q4")),
        (Some(_), Some(_)) => {
            let what = "model and quantize are both given, expected one: quantize drafts with the target's own weights";
            return Err(Error::options(format!("{part}: {what}")));
        }
        (None, None) => {
            let what = "neither model (a draft model's folder) nor quantize (\"q8_0\" or \"q4\") is given";
            return Err(Error::options(format!("{part}: {what}")));
        }
    };
    let facts = host.model_facts(path)?;
    if vocabulary == Vocabulary::Same {
        check_vocabulary(part, path, &facts, host)?;
        return Ok((host.load_model(path, dtype)?, facts));
    }
    let intersection = Intersection::new(&host.token_texts(&target)?, &host.token_texts(path)?);
    let intersection = intersection.map_err(|error| Error::refused(format!("{part}: {path}: {}", error.message)))?;
    let (shared, all) = (intersection.shared(), facts.vocab_size);
    host.log(3, part, &format!("{shared} of the {all} tokens of {path} are the target's too"));
    let model: Model = Arc::new(Translated::new(host.load_model(path, dtype)?, intersection));
    let facts = model.facts();
    Ok((model, facts))
}

/// Draft and target must mean the same by a token.
fn check_vocabulary(part: &str, model: &str, facts: &ModelFacts, host: &Host) -> Result<()> {
    let target = host.target();
    let differ = |what: &str, ours: &str, theirs: &str| {
        let path = &target.path;
        let message = format!("{part}: {what} of {model} is {ours}, of the target {path} {theirs}");
        Err(Error::refused(format!(
            "{message}; a draft model must share the target's vocabulary, or draft with what both have: vocabulary = \"intersection\""
        )))
    };
    if facts.vocab_size != target.vocab_size {
        return differ("the vocabulary size", &facts.vocab_size.to_string(), &target.vocab_size.to_string());
    }
    if facts.tokenizer_digest != target.tokenizer_digest {
        return differ("the tokenizer digest", &facts.tokenizer_digest, &target.tokenizer_digest);
    }
    Ok(())
}
