//! `score`: log-probabilities of given tokens under the target.

use std::process::ExitCode;

use foretoken::{Engine, config, score};
use serde_json::json;

use super::UsageError;
use crate::cli::ScoreArgs;

pub fn score(args: &ScoreArgs) -> anyhow::Result<ExitCode> {
    let config = config::load(&args.config.path, &args.config.set)?;
    let kv_dtype = config.kv_dtype;
    let engine = Engine::new(config)?;
    let tokens = match (&args.what.text, &args.what.tokens) {
        (Some(text), _) => engine.tokenizer().encode(text)?,
        (None, tokens) => tokens.clone().unwrap_or_default(),
    };
    let architecture = engine.decoder().architecture();
    let (vocab, context) = (architecture.vocab_size, architecture.max_positions);
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(UsageError(format!("token {token} is not in the model's vocabulary of {vocab}")).into());
    }
    if tokens.is_empty() || tokens.len() > context {
        let count = tokens.len();
        return Err(UsageError(format!("{count} tokens: expected 1 to {context}, the model's context")).into());
    }
    let logprobs = score::score(engine.decoder(), kv_dtype, &tokens);
    if args.json {
        println!("{}", json!({ "tokens": tokens, "logprobs": logprobs }));
        return Ok(ExitCode::SUCCESS);
    }
    for (token, logprob) in tokens.iter().zip(&logprobs) {
        let text = engine.tokenizer().decode(&[*token])?;
        match logprob {
            None => println!("{token:>8}         -  {text:?}"),
            Some(logprob) => println!("{token:>8}  {logprob:>8.4}  {text:?}"),
        }
    }
    let given: Vec<f64> = logprobs.into_iter().flatten().collect();
    if !given.is_empty() {
        let mean = given.iter().sum::<f64>() / given.len() as f64;
        println!("mean {mean:.4}, perplexity {:.3}", (-mean).exp());
    }
    Ok(ExitCode::SUCCESS)
}
