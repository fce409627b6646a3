//! Bad input: each case has an error that says what, where, what was expected and how to mend it. No panic anywhere.

use std::fs;
use std::path::Path;

use foretoken::config::{self, Override, Sampling};
use foretoken::{Engine, Request};

use super::support::*;

/// The error of building an engine from `parts`.
fn refusal(parts: &str) -> String {
    let config = match try_config(parts) {
        Ok(config) => config,
        Err(error) => return error.to_string(),
    };
    Engine::new(config).err().unwrap_or_else(|| panic!("{parts} was not refused")).to_string()
}

fn assert_says(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "{word:?} is missing from: {error}");
    }
}

#[test]
fn configs() {
    let cases: [(&str, &[&str]); 12] = [
        ("[sampler]\nplugni = \"gumbel\"\n", &["test:3", "plugni", "plugin"]),
        ("[samplr]\nplugin = \"gumbel\"\n", &["samplr", "did you mean `sampler`"]),
        ("[kv]\nnum_slots = 0\n", &["kv.num_slots", "0", "positive"]),
        ("[kv]\ndtype = \"q3\"\n", &["kv.dtype", "q3", "bf16"]),
        ("threads = \"many\"\n", &["threads", "many", "auto"]),
        ("[sampling]\ntemperature = -1.0\n", &["temperature", "-1", "0 or more"]),
        ("[sampling]\ntop_p = 0.0\n", &["top_p", "more than 0"]),
        ("[sampling]\nguidance_scale = 2.0\n", &["guidance_scale", "cfg-pair"]),
        ("[sampling]\nmax_tokens = \"many\"\n", &["test:3", "invalid type"]),
        ("[proposer]\noptions = { }\n", &["plugin", "path"]),
        ("[model]\npath = \"examples/models/none\"\n", &["examples/models/none", "Hugging Face folder"]),
        ("[model]\npath = \"examples/models/tiny\"\ndevice = \"cuda:0\"\n", &["device", "cuda:0", "cpu"]),
    ];
    for (parts, words) in cases {
        assert_says(&refusal(parts), words);
    }
}

#[test]
fn a_missing_config_file_and_bad_overrides() {
    let error = config::load(Path::new("no/such.toml"), &[]).expect_err("there is none").to_string();
    assert_says(&error, &["no/such.toml", "fix:"]);
    for (text, word) in [("sampler.plugin", "no ="), ("sampler.plugin=gumbel", "quotes"), ("a..b=1", "empty part")] {
        let error = text.parse::<Override>().expect_err(text).to_string();
        assert_says(&error, &[text, word, "--set"]);
    }
    let change: Override = "sampling.temprature=1.0".parse().expect("well-formed");
    let error = config::load(&root().join("configs/plain.toml"), &[change]).expect_err("unknown key").to_string();
    assert_says(&error, &["temprature", "did you mean `temperature`", "--set"]);
    // Setting a part's plugin drops the options of the part it replaces.
    let change: Override = "proposer.plugin=\"ngram\"".parse().expect("well-formed");
    let config = config::load(&root().join("configs/draft-model.toml"), &[change]).expect("a good config");
    assert_eq!((config.proposers[0].name.as_str(), config.proposers[0].options.as_str()), ("ngram", ""));
}

#[test]
fn plugins() {
    let ngram = build_folder().join("libforetoken_ngram.so");
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("libtext.so");
    fs::write(&text, "not a library").expect("written");
    let truncated = folder.path().join("libtruncated.so");
    let bytes = fs::read(&ngram).expect("built");
    fs::write(&truncated, &bytes[..bytes.len() / 3]).expect("written");
    let path = |path: &Path| format!("[proposer]\npath = {path:?}\n");
    let dirs = |more: &str| format!("[plugins]\ndirs = [{:?}]\n{more}", build_folder());
    let cases: [(String, &[&str]); 11] = [
        ("[proposer]\nplugin = \"ngrm\"\n".to_owned(), &["no proposer `ngrm`", "did you mean `ngram`?", "draft-model"]),
        (path(Path::new("/no/lib.so")), &["/no/lib.so", "does not exist", "build"]),
        (path(&text), &["libtext.so", "cannot be opened"]),
        (path(&truncated), &["libtruncated.so", "cannot be opened"]),
        (path(&fixture("no_plugin")), &["no_plugin", "not a foretoken plugin", "FORETOKEN_PLUGIN"]),
        (path(&fixture("later_level")), &["later_level", "level 99", "level 1", "rebuild"]),
        ("[sampler]\nplugin = \"ngram\"\n".to_owned(), &["`ngram` is a proposer", "[sampler]"]),
        (format!("{}plugin = \"other\"\n", path(&ngram)), &["no part `other`", "proposer ngram"]),
        (format!("{NGRAM}{}", dirs("sha256 = { ngram = \"00ff\" }\n")), &["sha256 00ff", "does not match its pin"]),
        (
            "[proposer]\nplugin = \"ngram\"\noptions = { num_specultive_tokens = 3 }\n".to_owned(),
            &["ngram", "num_specultive_tokens"],
        ),
        ("[proposer]\nplugin = \"refuses\"\n".to_owned(), &["refuses", "vocabulary of", "not 7"]),
    ];
    for (parts, words) in cases {
        assert_says(&refusal(&parts), words);
    }
}

/// The shipped model with one file changed.
fn changed_model(change: impl Fn(&Path)) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    for file in fs::read_dir(root().join("examples/models/tiny")).expect("the shipped model").flatten() {
        if file.path().is_file() {
            fs::copy(file.path(), folder.path().join(file.file_name())).expect("copied");
        }
    }
    change(folder.path());
    let parts = format!("[model]\npath = {:?}\n", folder.path());
    (folder, parts)
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("text");
    assert!(text.contains(from), "{from} is not in {}", path.display());
    fs::write(path, text.replace(from, to)).expect("written");
}

#[test]
fn model_files() {
    let weights = |folder: &Path| folder.join("model.safetensors");
    type Change = Box<dyn Fn(&Path)>;
    let cases: [(Change, &[&str]); 6] = [
        (
            Box::new(move |f: &Path| {
                let b = fs::read(weights(f)).unwrap();
                fs::write(weights(f), &b[..b.len() / 2]).unwrap()
            }),
            &["model.safetensors"],
        ),
        (Box::new(move |f: &Path| fs::remove_file(weights(f)).unwrap()), &["safetensors"]),
        (Box::new(|f: &Path| fs::remove_file(f.join("tokenizer.json")).unwrap()), &["tokenizer.json"]),
        (Box::new(|f: &Path| fs::remove_file(f.join("config.json")).unwrap()), &["config.json"]),
        (
            Box::new(|f: &Path| edit(&f.join("config.json"), "LlamaForCausalLM", "LamaForCausalLM")),
            &["LamaForCausalLM", "LlamaForCausalLM"],
        ),
        (
            Box::new(|f: &Path| {
                edit(&f.join("config.json"), "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3")
            }),
            &["k_proj", "expected"],
        ),
    ];
    for (change, words) in cases {
        let (_folder, parts) = changed_model(change);
        assert_says(&refusal(&parts), words);
    }
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let (folder, _) =
        changed_model(|f: &Path| edit(&f.join("config.json"), "\"vocab_size\": 4096", "\"vocab_size\": 4100"));
    let parts = format!("[proposer]\nplugin = \"draft-model\"\noptions = {{ model = {:?} }}\n", folder.path());
    assert_says(&refusal(&parts), &["draft-model", "4100", "4096"]);
    let none = "[proposer]\nplugin = \"draft-model\"\noptions = { model = \"no/model\" }\n";
    assert_says(&refusal(none), &["draft-model", "no/model"]);
}

#[test]
fn requests() {
    let mut engine = engine(&format!("{NGRAM}[kv]\nnum_slots = 600\n"));
    let context = engine.decoder().architecture().max_positions;
    let mut refused = |prompt: Vec<u32>, sampling: Sampling| {
        engine.submit(Request { prompt, sampling, text: false }).expect_err("a bad request").to_string()
    };
    assert_says(&refused(vec![], greedy(4)), &["no tokens"]);
    assert_says(&refused(vec![1; context], greedy(4)), &["context", &context.to_string(), "shorten"]);
    assert_says(&refused(vec![1; 601], greedy(4)), &["600 slots", "kv.num_slots"]);
    assert_says(&refused(vec![4_000_000], greedy(4)), &["4000000", "vocabulary"]);
    let stop = Sampling { stop: vec!["x".to_owned()], ..greedy(4) };
    assert_says(&refused(vec![1], stop), &["stop strings need text"]);
}

/// One slot too few for what the request grows to: it ends with an error and what there is, it does not hang.
#[test]
fn one_slot_too_few() {
    for parts in [PLAIN, NGRAM, DRAFT_MODEL] {
        let mut engine = engine(&format!("{parts}[kv]\nnum_slots = 20\noptions = {{ block_size = 4 }}\n"));
        let prompt: Vec<u32> = (10..20).collect();
        engine.submit(Request { prompt, sampling: greedy(12), text: false }).expect("it fits at first");
        let mut done = Vec::new();
        engine.run(&mut |event| {
            if let foretoken::Event::Finished(completion) = event {
                done.push(completion);
            }
        });
        // 10 + 10 tokens have slots; the 11th new token comes from the last of them, the 12th has no room.
        assert_eq!(done[0].tokens().len(), 11, "{parts}: {:?}", done[0].reason);
        assert!(matches!(&done[0].reason, foretoken::FinishReason::Error(error) if error.contains("kv.num_slots")));
        balanced(&mut engine);
    }
}

/// K = 0: a proposer that may draft nothing is plain decoding.
#[test]
fn no_speculative_tokens() {
    let options = "[proposer]\nplugin = \"ngram\"\noptions = { num_speculative_tokens = 0 }\n";
    let config = try_config(options).expect("well-formed");
    match Engine::new(config) {
        Err(error) => assert_says(&error.to_string(), &["num_speculative_tokens", "0"]),
        Ok(mut engine) => {
            let prompts = prompts(&engine, 1);
            assert_eq!(run(&mut engine, &prompts, &greedy(8), 1)[0].stats.drafted, 0);
        }
    }
}
