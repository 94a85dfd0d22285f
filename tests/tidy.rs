//! Checks of the repository: dependencies between crates, file sizes, names, words, imports, and the features that
//! comments cite.

#[path = "tidy/features.rs"]
mod features;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/limits.rs"]
mod limits;
#[path = "tidy/type_names.rs"]
mod type_names;
#[path = "tidy/variable_tests.rs"]
mod variable_tests;
#[path = "tidy/variables.rs"]
mod variables;
#[path = "tidy/vocabulary.rs"]
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn metadata(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("run cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("parse cargo metadata")
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

/// The files that git tracks or would add, without build output.
fn files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("run git ls-files");
    let list = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let files: Vec<_> = list.lines().map(PathBuf::from).filter(|file| root().join(file).exists()).collect();
    assert!(files.len() > 20, "git lists the files of the repository");
    files
}

/// The table of crates in ARCHITECTURE.md. A crate may use only the crates that are listed for it.
#[test]
fn crates_depend_on_each_other_as_architecture_says() {
    let allowed = BTreeMap::from([
        ("sluice-engine", vec![]),
        ("sluice-proto", vec![]),
        ("sluice-model", vec![]),
        ("sluice-parse", vec!["sluice-model", "sluice-proto"]),
        ("sluice-envoy", vec!["sluice-model", "sluice-proto"]),
        ("sluice-patch", vec!["sluice-model", "sluice-proto"]),
        ("sluice-graph", vec!["sluice-engine", "sluice-envoy", "sluice-model", "sluice-patch", "sluice-proto"]),
        ("sluice-ca", vec![]),
        ("sluice-crypto", vec!["sluice-model"]),
        ("sluice-http-client", vec!["sluice-parse"]),
        ("sluice-telemetry", vec![]),
        ("sluice-traces", vec!["sluice-crypto", "sluice-http-client"]),
        ("sluice-profiling", vec![]),
        ("sluice-variables", vec!["sluice-parse"]),
        ("sluice-images", vec![]),
        ("sluice-listen", vec!["sluice-telemetry"]),
        ("sluice-tasks", vec!["sluice-telemetry"]),
        ("sluice-watch", vec!["sluice-tasks"]),
        ("sluice-controller", vec!["sluice-engine", "sluice-kube", "sluice-tasks", "sluice-watch"]),
        ("sluice-kube", vec!["sluice-engine", "sluice-model", "sluice-parse", "sluice-tasks", "sluice-telemetry"]),
        (
            "sluice-jwks",
            vec![
                "sluice-crypto",
                "sluice-engine",
                "sluice-http-client",
                "sluice-model",
                "sluice-tasks",
                "sluice-telemetry",
            ],
        ),
        (
            "sluice-auth",
            vec!["sluice-ca", "sluice-jwks", "sluice-kube", "sluice-listen", "sluice-model", "sluice-telemetry"],
        ),
        (
            "sluice-tls",
            vec!["sluice-auth", "sluice-ca", "sluice-crypto", "sluice-listen", "sluice-model", "sluice-telemetry"],
        ),
        (
            "sluice-authority",
            vec![
                "sluice-auth",
                "sluice-ca",
                "sluice-engine",
                "sluice-graph",
                "sluice-jwks",
                "sluice-kube",
                "sluice-listen",
                "sluice-model",
                "sluice-proto",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-tls",
                "sluice-watch",
            ],
        ),
        ("sluice-analyze", vec!["sluice-inject", "sluice-model", "sluice-parse"]),
        ("sluice-template", vec![]),
        ("sluice-inject", vec!["sluice-model", "sluice-parse", "sluice-proto", "sluice-template"]),
        ("sluice-install", vec!["sluice-kube", "sluice-parse", "sluice-template"]),
        (
            "sluice-webhook",
            vec![
                "sluice-engine",
                "sluice-graph",
                "sluice-inject",
                "sluice-kube",
                "sluice-model",
                "sluice-parse",
                "sluice-sources",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-watch",
            ],
        ),
        (
            "sluice-deployments",
            vec![
                "sluice-engine",
                "sluice-graph",
                "sluice-inject",
                "sluice-kube",
                "sluice-model",
                "sluice-tasks",
                "sluice-webhook",
            ],
        ),
        ("sluice-xds-protocol", vec!["sluice-model", "sluice-proto"]),
        ("sluice-recording", vec!["sluice-engine", "sluice-graph", "sluice-model", "sluice-xds-protocol"]),
        (
            "sluice-xds",
            vec![
                "sluice-auth",
                "sluice-engine",
                "sluice-listen",
                "sluice-model",
                "sluice-parse",
                "sluice-proto",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-tls",
                "sluice-xds-protocol",
            ],
        ),
        (
            "sluice-sources",
            vec![
                "sluice-engine",
                "sluice-graph",
                "sluice-kube",
                "sluice-model",
                "sluice-parse",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-watch",
            ],
        ),
        (
            "sluice-mcp",
            vec![
                "sluice-auth",
                "sluice-crypto",
                "sluice-engine",
                "sluice-graph",
                "sluice-inject",
                "sluice-kube",
                "sluice-model",
                "sluice-parse",
                "sluice-proto",
                "sluice-sources",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-xds",
                "sluice-xds-protocol",
            ],
        ),
        (
            "sluice-config",
            vec![
                "sluice-authority",
                "sluice-ca",
                "sluice-graph",
                "sluice-listen",
                "sluice-model",
                "sluice-parse",
                "sluice-recording",
                "sluice-telemetry",
                "sluice-tls",
                "sluice-traces",
                "sluice-variables",
            ],
        ),
        ("sluice-controlz", vec!["sluice-telemetry"]),
        (
            "sluice-admin",
            vec![
                "sluice-auth",
                "sluice-controlz",
                "sluice-engine",
                "sluice-graph",
                "sluice-listen",
                "sluice-model",
                "sluice-parse",
                "sluice-profiling",
                "sluice-proto",
                "sluice-recording",
                "sluice-sources",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-traces",
                "sluice-xds",
                "sluice-xds-protocol",
            ],
        ),
        (
            "sluice",
            vec![
                "sluice-admin",
                "sluice-auth",
                "sluice-authority",
                "sluice-config",
                "sluice-crypto",
                "sluice-deployments",
                "sluice-engine",
                "sluice-graph",
                "sluice-http-client",
                "sluice-inject",
                "sluice-jwks",
                "sluice-kube",
                "sluice-listen",
                "sluice-mcp",
                "sluice-model",
                "sluice-parse",
                "sluice-recording",
                "sluice-sources",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-tls",
                "sluice-traces",
                "sluice-variables",
                "sluice-watch",
                "sluice-webhook",
                "sluice-xds",
                "sluice-xds-protocol",
            ],
        ),
        ("sluice-bench", vec!["sluice-proto", "sluice-tasks", "sluice-testkit"]),
        ("sluice-redirection", vec![]),
        (
            "sluice-cni",
            vec![
                "sluice-kube",
                "sluice-listen",
                "sluice-model",
                "sluice-parse",
                "sluice-proto",
                "sluice-redirection",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-watch",
            ],
        ),
        (
            "sluice-agent",
            vec![
                "sluice-crypto",
                "sluice-http-client",
                "sluice-listen",
                "sluice-parse",
                "sluice-proto",
                "sluice-redirection",
                "sluice-tasks",
                "sluice-telemetry",
                "sluice-variables",
            ],
        ),
        (
            "sluicectl",
            vec![
                "sluice-analyze",
                "sluice-crypto",
                "sluice-engine",
                "sluice-graph",
                "sluice-http-client",
                "sluice-inject",
                "sluice-install",
                "sluice-kube",
                "sluice-model",
                "sluice-parse",
                "sluice-proto",
                "sluice-recording",
                "sluice-xds-protocol",
            ],
        ),
        (
            "sluice-fuzz",
            vec![
                "sluice-analyze",
                "sluice-auth",
                "sluice-ca",
                "sluice-engine",
                "sluice-graph",
                "sluice-model",
                "sluice-parse",
                "sluice-proto",
                "sluice-testkit",
                "sluice-xds",
                "sluice-xds-protocol",
            ],
        ),
        ("sluice-fuzz-coverage", vec!["sluice-fuzz"]),
        ("sluice-testkit", vec!["sluice-parse", "sluice-proto"]),
    ]);
    let effectful = ["tokio", "tonic", "kube", "k8s-openapi", "hyper", "axum", "notify", "rand"];
    let pure = [
        "sluice-engine",
        "sluice-model",
        "sluice-parse",
        "sluice-envoy",
        "sluice-patch",
        "sluice-graph",
        "sluice-analyze",
        "sluice-template",
        "sluice-inject",
        "sluice-xds-protocol",
    ];
    let mut checked = BTreeSet::new();
    let metadata = metadata(&["--no-deps"]);
    for package in packages(&metadata) {
        let name = package["name"].as_str().expect("a name");
        checked.insert(name.to_owned());
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} is a new crate: list its dependencies here"));
        let used = package["dependencies"].as_array().into_iter().flatten();
        for used in used.filter(|d| d["kind"].is_null()).filter_map(|d| d["name"].as_str()) {
            assert!(!used.starts_with("sluice") || allowed.contains(&used), "{name} may not use {used}");
            assert!(!pure.contains(&name) || !effectful.contains(&used), "{name} is pure and may not use {used}");
        }
    }
    assert_eq!(checked.len(), allowed.len(), "every listed crate exists: {checked:?}");
}

#[test]
fn files_are_small_and_have_descriptive_names() {
    let mut findings = Vec::new();
    for file in files() {
        let name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let stem = name.strip_suffix(".rs").unwrap_or_default();
        if stem.is_empty() {
            continue;
        }
        if ["mod", "util", "utils", "common", "helper", "helpers", "manager", "misc"].contains(&stem) {
            findings.push(format!("{}: the name does not describe the content", file.display()));
        }
        let lines = std::fs::read_to_string(root().join(&file)).expect("read a source file").lines().count();
        if lines > 800 {
            findings.push(format!("{}: {lines} lines, more than 800", file.display()));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn no_code_is_marked_as_unfinished() {
    let marks = ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"];
    let mut findings = Vec::new();
    for file in files() {
        if file.extension().is_none_or(|e| e != "rs") || file == Path::new("tests/tidy.rs") {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&file)).expect("read a source file");
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) {
                findings.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// The modules of `collections/graph`, in the order in which data passes through them. A module uses only modules
/// before it; `lib.rs` alone uses all.
const GRAPH_MODULES: [&str; 15] = [
    "content_names",
    "host_patterns",
    "options",
    "views",
    "statuses",
    "inputs",
    "registry",
    "proxies",
    "policy_explanation",
    "traffic",
    "visibility",
    "outputs",
    "scopes",
    "handles",
    "graph_context",
];

#[test]
fn graph_modules_depend_only_on_modules_before_them() {
    let source = root().join("collections/graph/src");
    let rank = |module: &str| GRAPH_MODULES.iter().position(|known| *known == module);
    let mut findings = Vec::new();
    for file in files() {
        let Ok(path) = file.strip_prefix("collections/graph/src") else { continue };
        let first = path.iter().next().and_then(|first| first.to_str()).unwrap_or_default();
        let module = first.strip_suffix(".rs").unwrap_or(first);
        if ["lib", "tests"].contains(&module) || path.file_name().is_some_and(|name| name == "tests.rs") {
            continue;
        }
        let Some(own) = rank(module) else {
            findings.push(format!("{}: the module is not in GRAPH_MODULES", path.display()));
            continue;
        };
        let text = std::fs::read_to_string(source.join(path)).expect("read a source file");
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for used in line.split("crate::").skip(1) {
                let used = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                match rank(used) {
                    Some(used) if used <= own => {}
                    Some(_) => findings.push(format!("{}:{}: {module} uses {used}", path.display(), number + 1)),
                    None => findings.push(format!("{}:{}: name the module, not the crate", path.display(), number + 1)),
                }
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Cargo compiles a dependency again for each set of features. Dev-dependencies add features to tests, so without this rule
/// `make demo` and `make test` would each compile nearly everything.
#[test]
fn binaries_and_tests_share_their_dependencies() {
    let binaries = features_of_dependencies("no-dev");
    let tests = features_of_dependencies("normal,build,dev");
    for (package, features) in &binaries {
        let in_tests = tests.get(package).unwrap_or_else(|| panic!("{package} is not a dependency in tests"));
        let added: Vec<_> = features.difference(in_tests).collect();
        assert!(
            added.is_empty(),
            "{package} has the features {added:?} in binaries and {in_tests:?} in tests: declare all in [workspace.dependencies]",
        );
    }
}

/// The sets of features that each dependency of the workspace is compiled with.
fn features_of_dependencies(edges: &str) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--locked", "--offline", "--prefix=none", "--format={p}\t{f}"])
        .args(["--target", "x86_64-unknown-linux-gnu", "--edges", edges])
        .current_dir(root())
        .output()
        .expect("run cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo tree prints UTF-8");
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (package, features) in text.lines().filter_map(|line| line.split_once('\t')) {
        // A dependency that is listed already is marked.
        let features = features.trim_end_matches(" (*)");
        out.entry(package.trim_end_matches(" (*)").to_owned()).or_default().insert(features.to_owned());
    }
    assert!(out.len() > 100, "cargo tree lists the dependencies");
    out
}
