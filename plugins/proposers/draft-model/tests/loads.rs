//! The built library, found by its config through the engine's loader, and in the engine itself.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use foretoken::config::{self, Override};
use foretoken::plugins::registry::Registry;
use foretoken::{BuildError, Completion, Engine, Request};
use foretoken_draft_model::DraftModel;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::{FakeHost, ToyModel, library};

fn config_file(name: &str) -> PathBuf {
    library("foretoken-draft-model", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(name)
}

/// A host whose target has the draft model's vocabulary; it finds the model at the config's path too.
fn fixture(options: &str) -> Fixture {
    let small = || ToyModel::new(16, 6).with_order(usize::MAX);
    let host = move || FakeHost::new(ToyModel::new(16, 5)).with_model("small", small());
    Fixture::new(options).with_host(move || host().with_model("../examples/models/tiny-draft", small()))
}

#[test]
fn it_conforms() {
    let strategies = ["keep_and_rollback", "discard"];
    for (strategy, sampling) in
        strategies.iter().flat_map(|strategy| [(strategy, "drawn"), (strategy, "deterministic")])
    {
        let options = format!("model = \"small\"\nkv_strategy = \"{strategy}\"\ndraft_sampling = \"{sampling}\"");
        conformance::proposer::<DraftModel>(&fixture(&options)).assert_passed();
    }
}

#[test]
fn the_config_loads_it_and_it_conforms() {
    let config = config::load(&config_file("draft-model.toml"), &[]).unwrap();
    let loaded = Registry::new(config.plugins).find(&config.proposers[0]).unwrap();
    assert_eq!(loaded.name(), "draft-model");
    conformance::part(&loaded, &fixture(&config.proposers[0].options)).assert_passed();
}

fn engine(config: &str, overrides: &[&str]) -> Result<Engine, BuildError> {
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    Engine::new(config::load(&config_file(config), &overrides).unwrap())
}

/// Completions of four prompts, two of each, in order; and what the plugin counted.
fn completions(config: &str, overrides: &[&str]) -> (Vec<Completion>, String) {
    let mut engine = engine(config, overrides).unwrap();
    let mut sampling = engine.config().sampling.clone();
    (sampling.max_tokens, sampling.ignore_eos, sampling.seed, sampling.n) = (60, true, 11, 2);
    let requests = (0..4).map(|salt| Request {
        prompt: (0..24 + 5 * salt).map(|index| 40 + (index * (salt + 3)) % 50).collect(),
        sampling: sampling.clone(),
        text: false,
    });
    let done = engine.complete(requests).unwrap();
    let faults: Vec<_> = engine.faults().filter_map(|(_, _, last)| last).collect();
    assert!(faults.is_empty(), "{faults:?}");
    let counters = format!("{:?}", engine.counters());
    (done, counters)
}

#[test]
fn the_text_is_that_of_plain_decoding_in_fewer_passes() {
    for temperature in ["sampling.temperature=0.0", "sampling.temperature=0.8"] {
        let set = ["checks=true", "kv.num_slots=2048", temperature];
        let (plain, _) = completions("plain.toml", &set);
        let small = "model = \"../examples/models/tiny-draft\"";
        for options in [
            format!("{small}, kv_strategy = \"keep_and_rollback\""),
            format!("{small}, kv_strategy = \"discard\""),
            format!("{small}, draft_sampling = \"deterministic\""),
            format!("{small}, min_draft_prob = 0.4"),
            "quantize = \"q4\", num_speculative_tokens = 3".to_owned(),
        ] {
            let options = format!("proposer.options={{ {options} }}");
            let (drafted, counters) = completions("draft-model.toml", &[set[0], set[1], set[2], &options]);
            assert_eq!((plain.len(), drafted.len()), (8, 8));
            for (plain, drafted) in plain.iter().zip(&drafted) {
                assert_eq!(plain.tokens(), drafted.tokens(), "{temperature} {options}");
            }
            let sum = |count: fn(&Completion) -> u64| drafted.iter().map(count).sum::<u64>();
            let (steps, plain_steps) = (sum(|it| it.stats.steps), plain.iter().map(|it| it.stats.steps).sum::<u64>());
            let (made, kept) = (sum(|it| it.stats.drafted), sum(|it| it.stats.accepted));
            println!("{temperature} {options}: {steps} steps for {plain_steps}, {kept} of {made} kept, {counters}");
            assert!(kept > 0 && steps < plain_steps, "{temperature} {options}");
        }
    }
}

#[test]
fn a_missing_draft_model_is_refused_at_load() {
    let options = "proposer.options={ model = \"../examples/models/none\" }";
    let error = engine("draft-model.toml", &["kv.num_slots=256", options]).err().expect("a refusal").to_string();
    assert!(error.contains("models/none"), "{error}");
}

/// `tiny-draft` with its tokens numbered the other way round.
fn renumbered(folder: &Path) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models/tiny-draft");
    for name in ["config.json", "generation_config.json"] {
        std::fs::copy(shipped.join(name), folder.join(name)).unwrap();
    }
    let mut tokenizer: serde_json::Value =
        serde_json::from_slice(&std::fs::read(shipped.join("tokenizer.json")).unwrap()).unwrap();
    let turn = |id: &mut serde_json::Value| *id = (4095 - id.as_u64().unwrap()).into();
    tokenizer["model"]["vocab"].as_object_mut().unwrap().values_mut().for_each(turn);
    for token in tokenizer["added_tokens"].as_array_mut().unwrap() {
        turn(&mut token["id"]);
    }
    // The numbers of special tokens are repeated in the template that puts BOS in front.
    tokenizer["post_processor"] = serde_json::Value::Null;
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();

    let mut bytes = std::fs::read(shipped.join("model.safetensors")).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let embedding = &header["model.embed_tokens.weight"];
    let place = |index: usize| 8 + header_len + embedding["data_offsets"][index].as_u64().unwrap() as usize;
    let rows = &mut bytes[place(0)..place(1)];
    let turned: Vec<u8> = rows.chunks(rows.len() / 4096).rev().flatten().copied().collect();
    rows.copy_from_slice(&turned);
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

#[test]
fn a_draft_model_with_another_tokenizer_drafts_what_both_can_say() {
    let folder = tempfile::tempdir().unwrap();
    renumbered(folder.path());
    let set = ["checks=true", "kv.num_slots=2048", "sampling.temperature=0.8"];
    let other = format!("proposer.options={{ model = {:?}", folder.path());
    let refusal = engine("draft-model.toml", &[&format!("{other} }}")]).err().unwrap().to_string();
    assert!(refusal.contains("tokenizer digest") && refusal.contains("intersection"), "{refusal}");
    let (same, _) = completions("draft-model.toml", &set);
    let other = format!("{other}, vocabulary = \"intersection\" }}");
    let (translated, _) = completions("draft-model.toml", &[set[0], set[1], set[2], &other]);
    for (same, translated) in same.iter().zip(&translated) {
        assert_eq!(same.tokens(), translated.tokens());
        assert_eq!(same.stats.accepted, translated.stats.accepted, "every token is shared, so every guess is the same");
    }
    assert!(same.iter().any(|completion| completion.stats.accepted > 0));
}
