//! The shipped model, through the whole reading side: config, tokenizer, chat template, weights, text.

use std::path::PathBuf;
use std::sync::Arc;

use foretoken::model::Decoder;
use foretoken::text::{ChatMessage, ChatTemplate, StreamDecoder, Tokenizer};
use foretoken_kernels::WeightDtype;

use crate::runner::{Runner, load};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/models/tiny")
}

fn tiny() -> (Decoder, Arc<Tokenizer>) {
    let decoder = load(&folder(), WeightDtype::F32);
    let tokenizer = Tokenizer::open(&folder(), decoder.architecture()).expect("its tokenizer");
    (decoder, Arc::new(tokenizer))
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|left, right| left.1.total_cmp(right.1));
    best.expect("a row").0 as u32
}

#[test]
fn text_survives_its_tokenizer_and_begins_with_bos() {
    let (_, tokenizer) = tiny();
    let text = "ROMEO: O, she doth teach the torches – to burn bright! €5 🎉\n\tx";
    let tokens = tokenizer.encode(text).unwrap();
    assert_eq!(Some(tokens[0]), tokenizer.bos());
    assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    let mut stream = StreamDecoder::new(tokenizer.clone(), &[]).unwrap();
    let pieces: String = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
    assert_eq!(pieces + &stream.finish().unwrap(), text);
    assert_eq!(tokenizer.encode("").unwrap(), [tokenizer.bos().unwrap()]);
    assert!(tokenizer.is_eos(tokenizer.token_id("<|endoftext|>").unwrap()));
}

#[test]
fn its_chat_template_renders() {
    let template = ChatTemplate::open(&folder()).unwrap();
    let text = template.render(&[ChatMessage::new("user", "How many?")], true).unwrap();
    let (_, tokenizer) = tiny();
    let tokens = tokenizer.encode_rendered(&text).unwrap();
    assert_eq!(Some(tokens[0]), tokenizer.bos());
    assert_ne!(Some(tokens[1]), tokenizer.bos());
}

#[test]
fn it_predicts_its_own_kind_of_text() {
    let (decoder, tokenizer) = tiny();
    let text = "Question: Tom has 3 apples and buys 4 more apples. How many apples does Tom have now?\nAnswer: ";
    let tokens = tokenizer.encode(text).unwrap();
    let logits = Runner::new(&decoder).feed(&tokens, &[]).logits;
    let loss = |row: &Vec<f32>, next: u32| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let total: f32 = row.iter().map(|logit| (logit - most).exp()).sum();
        f64::from(most + total.ln() - row[next as usize])
    };
    let losses: Vec<f64> = logits.iter().zip(&tokens[1..]).map(|(row, &next)| loss(row, next)).collect();
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    println!("tiny: mean loss {mean:.2} nats over {} tokens", losses.len());
    // A uniform guess costs ln 4096 = 8.3 nats; a wrong RoPE, scale or transposition lands near or above that.
    assert!(mean < 5.0, "mean loss {mean}");
}

#[test]
fn it_continues_a_prompt_the_same_in_steps_and_in_one_pass() {
    let (decoder, tokenizer) = tiny();
    let mut tokens = tokenizer.encode("Question: Natalia sold").unwrap();
    let prompt_len = tokens.len();
    let mut runner = Runner::new(&decoder);
    let mut row = runner.feed(&tokens, &[]).logits.pop().unwrap();
    for _ in 0..40 {
        tokens.push(argmax(&row));
        row = runner.feed(&tokens[tokens.len() - 1..], &[]).logits.pop().unwrap();
    }
    println!("tiny: {:?}", tokenizer.decode(&tokens).unwrap());
    let whole = Runner::new(&decoder).feed(&tokens, &[]).logits;
    for (at, row) in whole.iter().enumerate().take(tokens.len() - 1).skip(prompt_len - 1) {
        assert_eq!(argmax(row), tokens[at + 1], "token {at}");
    }
}
