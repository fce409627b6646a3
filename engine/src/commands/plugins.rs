//! `plugins`: what parts there are, what one of them takes, and whether a library keeps the rules of its kinds.

use std::process::ExitCode;

use foretoken::config::PluginDirs;
use foretoken::model::nearest::nearest;
use foretoken::plugins::load;
use foretoken::plugins::registry::{Registry, default_dirs};
use foretoken_plugin_api::Kind;
use foretoken_plugin_api::testkit::Outcome;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use serde_json::{Value, json};

use super::UsageError;
use crate::cli::{PluginsArgs, PluginsCommand, PluginsDirArgs};

pub fn plugins(args: &PluginsArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        PluginsCommand::List(dirs) => list(dirs),
        PluginsCommand::Show { name, dirs } => show(name, dirs),
        PluginsCommand::Check { library, options, json } => check(library, options, *json),
    }
}

fn registry(args: &PluginsDirArgs) -> Registry {
    let dirs = if args.dirs.is_empty() { default_dirs() } else { args.dirs.clone() };
    Registry::new(PluginDirs { dirs, sha256: std::collections::BTreeMap::new(), max_faults: 3 })
}

fn list(args: &PluginsDirArgs) -> anyhow::Result<ExitCode> {
    let mut registry = registry(args);
    let mut rows = Vec::new();
    for library in registry.libraries() {
        for part in &library.parts {
            let kind = part.kind().map_or("unknown", Kind::name);
            rows.push((kind, part.name(), part.version(), part.about(), library.path.display().to_string()));
        }
    }
    rows.sort_unstable();
    for (kind, name, version, about, path) in &rows {
        if args.json {
            println!("{}", json!({ "kind": kind, "name": name, "version": version, "about": about, "path": path }));
        } else {
            println!("{kind:<10} {name:<14} {version:<8} {about}\n{:35}{path}", "");
        }
    }
    for broken in &registry.broken {
        eprintln!("warning: {broken}");
    }
    if rows.is_empty() {
        eprintln!("no plugins found; build them (cargo build --release --workspace) or name a folder with --dir");
    }
    Ok(ExitCode::SUCCESS)
}

fn show(name: &str, args: &PluginsDirArgs) -> anyhow::Result<ExitCode> {
    let mut registry = registry(args);
    let libraries = registry.libraries();
    let parts = || libraries.iter().flat_map(|library| library.parts.iter().map(move |part| (library, part)));
    let Some((library, part)) = parts().find(|(_, part)| part.name() == name) else {
        let near = nearest(name, parts().map(|(_, part)| part.name()));
        let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let known: Vec<&str> = parts().map(|(_, part)| part.name()).collect();
        return Err(UsageError(format!("no part `{name}`{near} there are: {}", known.join(", "))).into());
    };
    let schema: Value = serde_json::from_str(&part.schema())?;
    let kind = part.kind().map_or("unknown", Kind::name);
    let path = library.path.display().to_string();
    if args.json {
        let (version, about) = (part.version(), part.about());
        println!(
            "{}",
            json!({ "kind": kind, "name": name, "version": version, "about": about, "path": path, "options": schema })
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("{kind} `{name}` {}: {}", part.version(), part.about());
    println!("library  {path}\nbuilt by {}\nsha256   {}", library.facts.rustc, load::sha256(&library.path)?);
    println!("\n[{kind}]\nplugin = \"{name}\"\noptions, as a JSON schema:");
    println!("{}", serde_json::to_string_pretty(&schema)?);
    Ok(ExitCode::SUCCESS)
}

fn check(library: &std::path::Path, options: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let library = load::open(library, None)?;
    let mut failed = false;
    for part in &library.parts {
        let kind = part.kind().map_or("unknown", Kind::name);
        if !as_json {
            println!("{kind} `{}`", part.name());
        }
        let report = conformance::part(part, &Fixture::new(options));
        failed |= !report.passed();
        if !as_json {
            print!("{report}");
        }
        for check in report.checks.iter().filter(|_| as_json) {
            let (outcome, reason) = match &check.outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Failed(reason) => ("failed", Some(reason)),
                Outcome::Skipped(reason) => ("skipped", Some(reason)),
            };
            println!("{}", json!({ "part": part.name(), "check": check.name, "outcome": outcome, "reason": reason }));
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
