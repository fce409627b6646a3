//! The program from outside: exit status, what goes to stdout and what to stderr, and the JSON that scripts read.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn foretoken(args: &[&str]) -> Output {
    let folder = Path::new(env!("CARGO_BIN_EXE_foretoken")).parent().expect("a folder");
    let own = format!("plugins.dirs=[{folder:?}]");
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.current_dir(root()).args(args);
    if matches!(args.first(), Some(&"run" | &"score")) {
        command.args(["--set", &own]);
    }
    command.output().expect("the program runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn alone_it_says_three_things_to_do_next() {
    let output = foretoken(&[]);
    assert!(output.status.success());
    let text = text(&output.stdout);
    for next in ["foretoken demo", "foretoken run", "foretoken plugins list"] {
        assert!(text.contains(next), "{next}");
    }
}

#[test]
fn usage_and_config_are_status_2_failure_is_1() {
    let truncated = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(root().join("examples/models/tiny")).expect("the shipped model").flatten() {
        std::fs::copy(file.path(), truncated.path().join(file.file_name())).expect("copied");
    }
    let weights = truncated.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).expect("read");
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).expect("written");
    let model = format!("model.path={:?}", truncated.path());
    let long = "word ".repeat(3000);
    let cases: [(&[&str], i32, &str); 10] = [
        (&["run"], 2, "CONFIG"),
        (&["run", "no-such.toml", "--prompt", "x"], 2, "no-such.toml"),
        (&["run", "configs/plain.toml"], 2, "--prompt"),
        (&["demo", "--set", "model.dtpye=\"q4\""], 2, "did you mean `dtype`"),
        (&["run", "configs/plain.toml", "--prompt", "x", "--temperature", "-1"], 2, "temperature"),
        (
            &["run", "configs/plain.toml", "--prompt", "x", "--set", "sampler.plugin=\"gumble\""],
            2,
            "did you mean `gumbel`",
        ),
        (&["run", "configs/plain.toml", "--prompt", "x", "--guidance-scale", "2"], 2, "cfg-pair"),
        (&["run", "configs/plain.toml", "--prompt", &long], 2, "context"),
        (&["run", "configs/plain.toml", "--prompt", "x", "--set", &model], 1, "model.safetensors"),
        (&["score", "configs/plain.toml", "--tokens", "1,99999"], 2, "99999"),
    ];
    for (args, status, words) in cases {
        let output = foretoken(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {words:?} is missing from: {error}");
        assert!(output.stdout.is_empty() && !error.contains("panicked"), "{args:?}");
    }
    let nowhere = "proposer.options={ model = \"nowhere\" }";
    let output = foretoken(&["run", "configs/draft-model.toml", "--prompt", "x", "--set", nowhere]);
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), error.matches("there is no model at").count()), (Some(2), 1), "{error}");
}

#[test]
fn json_has_the_fields_that_scripts_read() {
    let args =
        ["run", "configs/ngram.toml", "--prompt", "", "--max-tokens", "12", "--n", "2", "--temperature", "1", "--json"];
    let output = foretoken(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        // An empty prompt is BOS.
        assert_eq!(line["prompt_tokens"], serde_json::json!([0]));
        let tokens = line["tokens"].as_array().expect("tokens");
        assert!(tokens.len() <= 12 && !tokens.is_empty());
        assert!(["stop", "length"].contains(&line["finish_reason"].as_str().expect("a reason")));
        for field in [
            "steps",
            "drafted",
            "accepted",
            "acceptance_rate",
            "acceptance_p50",
            "tokens_per_step",
            "accepted_per_position",
            "draft_ms",
            "verify_ms",
            "overhead_ms",
            "tokens_per_second",
            "predicted_speedup",
        ] {
            assert!(line["stats"].get(field).is_some(), "stats.{field}");
        }
    }
    let output = foretoken(&["score", "configs/plain.toml", "--tokens", "0,10,20", "--json"]);
    let scores: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(scores["tokens"], serde_json::json!([0, 10, 20]));
    let logprobs = scores["logprobs"].as_array().expect("logprobs");
    assert!(logprobs[0].is_null() && logprobs[1..].iter().all(|one| one.as_f64().is_some_and(|one| one < 0.0)));
}

#[test]
fn compare_sets_configs_side_by_side_and_keeps_what_they_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let prompts = folder.path().join("prompts.jsonl");
    let long = "word ".repeat(3000);
    let lines = [("code", "import os\nimport sys\n"), ("code", "def f(x):\n"), ("prose", "Once"), ("prose", &long)];
    let lines = lines.map(|(category, prompt)| serde_json::json!({"category": category, "prompt": prompt}).to_string());
    std::fs::write(&prompts, lines.join("\n")).expect("written");
    let (prompts, out) = (prompts.to_str().expect("UTF-8"), folder.path().join("out"));
    let configs = ["compare", "configs/plain.toml", "configs/suffix.toml", "configs/suffix.toml"];
    let args = [&configs[..], &["--prompts", prompts, "--max-tokens", "24", "--batch", "2"]].concat();
    let output = foretoken(&[&args[..], &["--json", "--out", out.to_str().expect("UTF-8")]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("1 of 4 prompts are too long"), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["prompts"], &report["too_long"]), (&3.into(), &1.into()));
    let configs = report["configs"].as_array().expect("configs");
    let names: Vec<&str> = configs.iter().filter_map(|config| config["config"].as_str()).collect();
    assert_eq!(names, ["plain", "suffix", "suffix#2"]);
    for config in configs {
        assert_eq!((&config["completions"], &config["equal"]), (&3.into(), &3.into()), "{config}");
        assert_eq!(config["categories"]["code"]["completions"], 2);
        for field in ["tokens_per_second", "speed", "tokens_per_step", "steps", "verify_ms"] {
            assert!(config[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {config}");
        }
    }
    assert!(configs[0]["drafted"] == 0 && configs[1]["drafted"].as_u64() > Some(0));
    assert_eq!(configs[0]["tokens_per_step"], 1.0);
    assert!(configs[1]["steps"].as_u64() < configs[0]["steps"].as_u64());
    let kept = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    assert_eq!(serde_json::from_str::<Value>(&kept("report.json")).expect("JSON"), report);
    let tokens = |name: &str| {
        let lines = kept(name);
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["tokens"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(tokens("plain.jsonl").len(), 3);
    assert_eq!(tokens("plain.jsonl"), tokens("suffix#2.jsonl"));
    let table = foretoken(&args);
    for words in ["equal, token for token", "by category", "position 1, 2", "suffix#2"] {
        assert!(text(&table.stdout).contains(words), "{words}: {}", text(&table.stdout));
    }
    let output = foretoken(&["compare", "configs/plain.toml", "--prompts", prompts, "--batch", "0"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn bench_says_what_design_names() {
    let output =
        foretoken(&["bench", "--random-weights", "8.9m", "--set", "model.dtype=\"q4\"", "--rounds", "1", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let fields =
        ["read_bandwidth_gb_s", "region_us", "weight_bytes", "decode_tok_s", "bandwidth_fraction", "prefill_tok_s"];
    for field in fields {
        assert!(report[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {report}");
    }
    // 4.6 bits in the layers, 6.6 in the output projection.
    let bytes = report["weight_bytes"].as_f64().expect("a number");
    assert!((4.4e6..5.0e6).contains(&bytes), "{bytes}");
    for rows in ["1", "2", "4", "8", "16", "32"] {
        assert!(report["verify_ms"][rows].as_f64().is_some_and(|time| time > 0.0), "{rows}");
        assert!(report["verify_ratio"][rows].is_f64() && report["over_limit"][rows].is_f64(), "{rows}");
    }
    let shares = report["op_share"]["1"].as_object().expect("shares");
    let total: f64 = shares.values().filter_map(Value::as_f64).sum();
    assert!((total - 1.0).abs() < 1e-6 && shares["linear"].as_f64() > Some(0.2), "{shares:?}");
    let output = foretoken(&["bench", "configs/plain.toml", "--context", "4000"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("the model has 1024"), "{}", text(&output.stderr));
    let output = foretoken(&["bench", "--random-weights", "7b"]);
    assert!(text(&output.stderr).contains("one of 1.1b, 134m, 8.9m"), "{}", text(&output.stderr));
}

#[test]
fn bench_advises_on_draft_lengths() {
    let output = foretoken(&["bench", "configs/ngram.toml", "--advise", "--batch", "1,3", "--json"]);
    let advice: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let passes = advice["pass_ms"].as_array().expect("passes");
    assert!(passes.len() >= 6 && passes.iter().all(|pass| pass[1].as_f64() > Some(0.0)), "{advice}");
    let measured = advice["measured"].as_array().expect("a row a batch");
    assert_eq!(measured.iter().map(|row| row["batch"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)]);
    for row in measured {
        let speeds = ["predicted_speedup", "speedup"].map(|field| row[field].as_f64().expect("a number"));
        assert!(speeds.iter().all(|speed| (0.1..10.0).contains(speed)), "{row}");
        assert!(row["right"].as_f64().is_some_and(|right| (0.0..1.0).contains(&right)), "{row}");
        assert!(row["tokens_per_pass"].as_f64() >= Some(1.0), "{row}");
    }
    let predicted = advice["predicted"].as_array().expect("cells");
    assert_eq!(predicted.len(), 10);
    // The surer the guesses, the more they pay.
    for batch in predicted.chunks(5) {
        let speeds: Vec<f64> = batch.iter().map(|cell| cell["speedup"].as_f64().expect("a number")).collect();
        assert!(speeds[0] >= 1.0 && speeds.is_sorted(), "{batch:?}");
    }
    for (flag, expected) in [("--batch=0", "at least 1"), ("--set=kv.num_slots=2", "raise kv.num_slots")] {
        let output = foretoken(&["bench", "configs/ngram.toml", "--advise", flag]);
        assert_eq!(output.status.code(), Some(2), "{flag}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{flag}: {}", text(&output.stderr));
    }
    let output = foretoken(&["bench", "configs/plain.toml", "--advise"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("a config with a [proposer] table"), "{}", text(&output.stderr));
}

#[test]
fn a_file_of_prompts_takes_sampling_by_the_line_and_says_which_line_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("prompts.jsonl");
    let path = file.to_str().expect("UTF-8");
    let lines = "{\"prompt\": \"def f(\", \"max_tokens\": 3, \"ignore_eos\": true}\n\n{\"turns\": [\"a\", \"b\"], \"question_id\": 7, \"max_tokens\": 2, \"ignore_eos\": true}\n{\"prompt_tokens\": [0, 5], \"max_tokens\": 1, \"ignore_eos\": true}\n";
    std::fs::write(&file, lines).expect("written");
    let output = foretoken(&["run", "configs/ngram.toml", "--prompts", path, "--json"]);
    let mut counts: Vec<(u64, usize)> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|line| (line["request"].as_u64().expect("a number"), line["tokens"].as_array().expect("tokens").len()))
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [(0, 3), (1, 2), (2, 1)]);
    std::fs::write(&file, "{\"prompt\": \"x\"}\n{\"prompt\": \"x\", \"temprature\": 1}\n").expect("written");
    let output = foretoken(&["run", "configs/ngram.toml", "--prompts", path]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("prompts.jsonl:2") && error.contains("did you mean \"temperature\""), "{error}");
}

#[test]
fn kept_drafts_are_coloured_and_the_text_is_the_same() {
    let args = ["run", "configs/ngram.toml", "--prompt", "a = 1\nb = 1\na = 1\nb = 1\na = 1\n", "--max-tokens", "40"];
    let plain = foretoken(&args);
    let shown = foretoken(&[&args[..], &["--show-drafts"]].concat());
    let coloured = text(&shown.stdout);
    assert!(coloured.contains("\x1b[32m"), "no draft was kept on text that repeats itself");
    assert_eq!(coloured.replace("\x1b[32m", "").replace("\x1b[0m", ""), text(&plain.stdout));
    assert!(text(&plain.stderr).contains("tokens per step"), "the table goes to stderr");
}

#[test]
fn plugins_are_listed_shown_and_checked() {
    let output = foretoken(&["plugins", "list", "--json"]);
    let listed: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (kind, name) in [("proposer", "ngram"), ("sampler", "gumbel"), ("scheduler", "fcfs"), ("kv", "paged")] {
        assert!(listed.iter().any(|part| part["kind"] == kind && part["name"] == name), "{kind} {name}");
    }
    let output = foretoken(&["plugins", "show", "ngram"]);
    assert!(text(&output.stdout).contains("num_speculative_tokens"));
    let output = foretoken(&["plugins", "show", "ngrma"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("did you mean `ngram`"));
    let path =
        listed.iter().find(|part| part["name"] == "paged").expect("paged")["path"].as_str().expect("a path").to_owned();
    let output = foretoken(&["plugins", "check", &path]);
    assert!(output.status.success() && text(&output.stdout).contains("ok "), "{}", text(&output.stdout));
}
