//! Tokens to text as they come: only text that later tokens cannot change leaves, each piece once.
//!
//! Neighbours: `Tokenizer::decode` does the decoding, the engine's emit verb pushes tokens. Pieces come from decoding a
//! short window of tokens and cutting off the text already known, so a token costs O(1) and a SentencePiece token
//! keeps its leading space. Concatenated pieces equal the decoding of all tokens at once, with one exception: where a
//! run of byte tokens (`<0xE2>`) turns out invalid, `tokenizers` blanks the entire run, here the code points already
//! shown stay. Waiting for the end of each run would be exact, but would hold back whole words of rarer scripts.

use std::sync::Arc;

use super::tokenizer::{Tokenizer, TokenizerError};

const REPLACEMENT: char = '\u{FFFD}';
/// Prompt tokens kept as context; one is enough for spaces, a few more for a character split over tokens.
const CONTEXT: usize = 4;
/// An incomplete code point is at most three bytes, so at most three trailing replacement characters are undecided.
const MAX_UNDECIDED: usize = 3;
/// Beyond this many tokens the window is cut; only invalid UTF-8 gets it there.
const MAX_WINDOW: usize = 48;
/// Tokens kept by that cut: more than the undecided tail and its resynchronisation can span.
const KEEP_WINDOW: usize = 16;

/// The text side of one sequence.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    window: Vec<u32>,
    /// Tokens of `window` whose text is out entirely.
    shown_tokens: usize,
    /// The part of the window's text that is out.
    shown: String,
}

impl StreamDecoder {
    /// The prompt's tail decides how the first piece begins (a leading space or none); its text is not repeated.
    pub fn new(tokenizer: Arc<Tokenizer>, prompt: &[u32]) -> Result<Self, TokenizerError> {
        let mut window: Vec<u32> =
            prompt.iter().rev().copied().filter(|&token| !tokenizer.is_special(token)).take(CONTEXT).collect();
        window.reverse();
        let shown = tokenizer.decode(&window)?;
        let shown_tokens = window.len();
        Ok(Self { tokenizer, window, shown_tokens, shown })
    }

    /// Takes one token; returns the text that became certain, often none.
    pub fn push(&mut self, token: u32) -> Result<String, TokenizerError> {
        if self.tokenizer.is_special(token) {
            return Ok(String::new());
        }
        self.window.push(token);
        let mut text = self.tokenizer.decode(&self.window)?;
        let undecided = self.undecided(&text);
        if undecided == 0 && !text.starts_with(&self.shown) {
            text = self.drop_shown()?;
        }
        let piece = text[..text.len() - undecided].get(self.shown.len()..).unwrap_or_default().to_owned();
        if undecided == 0 && !piece.is_empty() {
            self.window.drain(..self.shown_tokens);
            self.shown_tokens = self.window.len();
            self.shown = self.tokenizer.decode(&self.window)?;
            return Ok(piece);
        }
        self.shown.push_str(&piece);
        if self.window.len() <= MAX_WINDOW {
            return Ok(piece);
        }
        Ok(piece + &self.cut_window(text.len().saturating_sub(self.shown.len()))?)
    }

    /// The stream ended: whatever was still undecided comes out as it stands, U+FFFD for bytes that never completed.
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        let mut text = self.tokenizer.decode(&self.window)?;
        if !text.starts_with(&self.shown) {
            text = self.drop_shown()?;
        }
        let piece = text[self.shown.len()..].to_owned();
        self.window.clear();
        self.shown_tokens = 0;
        self.shown.clear();
        Ok(piece)
    }

    /// A run of byte tokens went bad after part of it was shown: forget that part, decode the rest by itself.
    fn drop_shown(&mut self) -> Result<String, TokenizerError> {
        self.window.drain(..self.shown_tokens);
        self.shown_tokens = 0;
        self.shown.clear();
        self.tokenizer.decode(&self.window)
    }

    /// Bytes at the end of `text` that a later token may still change. A run of byte tokens is judged as one, so there
    /// every trailing replacement character is undecided.
    fn undecided(&self, text: &str) -> usize {
        let most = if self.tokenizer.byte_fallback() { usize::MAX } else { MAX_UNDECIDED };
        let count = text.chars().rev().take_while(|&last| last == REPLACEMENT).take(most).count();
        count * REPLACEMENT.len_utf8()
    }

    /// Keeps the cost of a token bounded when text never becomes whole; `held` bytes stay undecided.
    fn cut_window(&mut self, held: usize) -> Result<String, TokenizerError> {
        if self.tokenizer.byte_fallback() {
            return self.finish();
        }
        self.window.drain(..self.window.len() - KEEP_WINDOW);
        self.shown = self.tokenizer.decode(&self.window)?;
        self.shown.truncate(self.shown.len().saturating_sub(held));
        self.shown_tokens = 0;
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::fixtures;
    use proptest::prelude::*;

    /// The pieces pushed so far and the whole stream.
    fn stream(tokenizer: &Arc<Tokenizer>, prompt: &[u32], tokens: &[u32]) -> (Vec<String>, String) {
        let mut decoder = StreamDecoder::new(tokenizer.clone(), prompt).unwrap();
        let pieces: Vec<String> = tokens.iter().map(|&token| decoder.push(token).unwrap()).collect();
        let whole = pieces.concat() + &decoder.finish().unwrap();
        (pieces, whole)
    }

    #[test]
    fn a_code_point_leaves_whole() {
        let tokenizer = fixtures::byte_level();
        let tokens = tokenizer.encode_rendered("a€b🎉").unwrap();
        let (pieces, whole) = stream(&tokenizer, &[], &tokens);
        assert_eq!(pieces, ["a", "", "€", "b", "", "", "", "🎉"]);
        assert_eq!(whole, "a€b🎉");
    }

    #[test]
    fn what_never_completes_comes_out_at_the_end() {
        let tokenizer = fixtures::byte_level();
        let (pieces, whole) = stream(&tokenizer, &[], &[b'a'.into(), 0xE2, 0x82]);
        assert_eq!((pieces.concat().as_str(), whole.as_str()), ("a", "a\u{FFFD}"));
    }

    #[test]
    fn sentencepiece_keeps_the_leading_space_only_after_a_prompt() {
        let tokenizer = fixtures::sentencepiece();
        let tokens = tokenizer.encode_rendered("he he").unwrap();
        assert_eq!(stream(&tokenizer, &[], &tokens).1, "he he");
        assert_eq!(stream(&tokenizer, &tokens, &tokens).1, " he he");
    }

    #[test]
    fn byte_tokens_make_whole_code_points_and_a_bad_run_keeps_what_was_shown() {
        let tokenizer = fixtures::sentencepiece();
        let byte = |byte: u8| tokenizer.token_id(&format!("<0x{byte:02X}>")).unwrap();
        let euro = [byte(0xE2), byte(0x82), byte(0xAC)];
        let (pieces, whole) = stream(&tokenizer, &[], &[euro, euro].concat());
        assert_eq!((pieces[2].as_str(), pieces[5].as_str(), whole.as_str()), ("€", "€", "€€"));
        let word = tokenizer.encode_rendered("he").unwrap();
        let (_, whole) = stream(&tokenizer, &[], &[euro.as_slice(), &[byte(0xFF)], &word].concat());
        assert_eq!(whole, "€\u{FFFD} he");
        let endless = vec![byte(0xFF); 500];
        assert_eq!(stream(&tokenizer, &[], &endless).1.chars().count(), 500);
    }

    #[test]
    fn a_token_costs_the_same_late_as_early() {
        let tokenizer = fixtures::byte_level();
        let mut decoder = StreamDecoder::new(tokenizer, &[]).unwrap();
        for index in 0..5000_u32 {
            decoder.push(if index % 3 == 0 { 0xFF } else { 0xC3 }).unwrap();
            assert!(decoder.window.len() <= MAX_WINDOW && decoder.shown.len() <= 4 * MAX_WINDOW);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn pieces_concatenate_to_the_whole(
            prompt in prop::collection::vec(0..fixtures::BYTE_LEVEL_VOCAB, 0..6),
            tokens in prop::collection::vec(0..fixtures::BYTE_LEVEL_VOCAB, 0..150),
        ) {
            let tokenizer = fixtures::byte_level();
            prop_assert_eq!(stream(&tokenizer, &[], &tokens).1, tokenizer.decode(&tokens).unwrap());
            // After a prompt that ends on a code point, the stream is what the whole adds to the prompt.
            let prompt = [prompt.as_slice(), &[b'.'.into()]].concat();
            let before = tokenizer.decode(&prompt).unwrap();
            let whole = tokenizer.decode(&[prompt.as_slice(), &tokens].concat()).unwrap();
            prop_assert_eq!(before + &stream(&tokenizer, &prompt, &tokens).1, whole);
        }

        #[test]
        fn long_invalid_stretches_concatenate_too(
            // Lead bytes without continuations: no prefix of it is ever whole.
            stretch in prop::collection::vec(prop::sample::select(vec![0xC3, 0xFF, 0xE2, 0xF0, 262]), 50..200),
            tail in prop::collection::vec(0..fixtures::BYTE_LEVEL_VOCAB, 0..20),
        ) {
            let tokens = [stretch, tail].concat();
            let tokenizer = fixtures::byte_level();
            prop_assert_eq!(stream(&tokenizer, &[], &tokens).1, tokenizer.decode(&tokens).unwrap());
        }

        #[test]
        fn text_survives_tokenisation_and_streaming(text in "[a-z é€🎉]{0,40}", cut in 0_usize..40) {
            for tokenizer in [fixtures::byte_level(), fixtures::sentencepiece()] {
                let tokens = tokenizer.encode_rendered(&text).unwrap();
                let cut = cut.min(tokens.len());
                let (pieces, whole) = stream(&tokenizer, &[], &tokens);
                prop_assert_eq!(&whole, &tokenizer.decode(&tokens).unwrap());
                prop_assert!(!pieces.concat().contains(REPLACEMENT));
                let shown = pieces[..cut].concat();
                prop_assert!(whole.starts_with(&shown));
            }
        }
    }
}
