//! Each task and thread that `sluiced` supervises is in a list of `src/app/tests.rs`, so that it panics there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sluice_tasks::Reaction;

use super::{CONFIGURATION_TASK, EXCEPTIONS, reactions};

/// Functions that start a task or thread, the position of the argument that is its name, and what follows its panic.
const FUNCTIONS: [(&str, usize, Reaction); 13] = [
    ("restart", 0, Reaction::TaskRestarts),
    ("restart_with", 0, Reaction::TaskRestarts),
    ("spawn_restarted", 0, Reaction::TaskRestarts),
    ("spawn_restarted_until_stop", 0, Reaction::TaskRestarts),
    ("write_parts", 0, Reaction::TaskRestarts),
    ("write_parts_when", 0, Reaction::TaskRestarts),
    ("write_both", 0, Reaction::TaskRestarts),
    ("spawn", 0, Reaction::TaskEndsProcess),
    ("spawn_fallible", 0, Reaction::TaskEndsProcess),
    ("spawn_on", 1, Reaction::TaskEndsProcess),
    ("spawn_until_stop", 0, Reaction::TaskEndsProcess),
    ("NamedThread::start", 0, Reaction::ThreadEnds),
    ("NamedThread::start_restarted", 0, Reaction::ThreadRestarts),
];

/// Names that are no literals: the file, the expression, and one of the names. Those of `task` in `sources.rs` are
/// arguments of its functions.
const EXPRESSIONS: [(&str, &str, &str); 12] = [
    ("src/app.rs", "HTTP_TASKS[0]", "http port"),
    ("src/app.rs", "HTTP_TASKS[1]", "monitoring port"),
    ("src/app/security.rs", "TASK", "left over signing requests"),
    ("src/app/sources.rs", "task", "address writer"),
    ("src/authority/src/config_maps.rs", "&name", "watch of ConfigMap istio-ca-root-cert"),
    ("src/authority/src/webhook_configurations.rs", "&name", "watch of MutatingWebhookConfiguration"),
    ("src/deployments/src/watches.rs", "&task", "watch of deployed Deployment"),
    ("src/mcp/src/client.rs", "&name", CONFIGURATION_TASK),
    ("src/sources/src/files.rs", "&name", "files-files"),
    ("src/sources/src/kube.rs", "&name", "watch of Pod"),
    ("src/sources/src/kube/definitions.rs", "&task_name(info)", "watch of VirtualService"),
    ("src/watch/src/lib.rs", "FOLLOW_THREAD", "follow-files"),
];

/// Crates of other programs, and the crate of the functions.
const OTHER_CRATES: [&str; 5] = ["src/agent", "src/cni", "src/controller", "src/ctl", "src/tasks"];

/// The beginning of the names of watches, which are all restarted. There is one for each kind.
const WATCH: &str = "watch of ";

#[test]
fn each_task_and_thread_of_sluiced_is_in_a_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(root, &root.join("src"), &mut files);
    let (reactions, mut findings) = (reactions(), Vec::new());
    let (mut names, mut expressions) = (BTreeSet::new(), [false; EXPRESSIONS.len()]);
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a source file");
        let file = path.strip_prefix(root).expect("a file of the repository").display().to_string();
        for (argument, reaction) in arguments(&code(&text)) {
            let name = match argument.strip_prefix('"') {
                Some(literal) => literal.trim_end_matches('"').to_owned(),
                None => match EXPRESSIONS.iter().position(|(of, known, _)| *of == file && *known == argument) {
                    Some(index) => {
                        expressions[index] = true;
                        EXPRESSIONS[index].2.to_owned()
                    }
                    None => {
                        findings.push(format!("{file}: the name `{argument}` is no literal: add it to EXPRESSIONS"));
                        continue;
                    }
                },
            };
            let is_listed = match reactions.get(&*name) {
                Some(listed) => *listed == reaction,
                None if name.starts_with(WATCH) => reaction == Reaction::TaskRestarts,
                None => EXCEPTIONS.iter().any(|(exception, _)| *exception == name),
            };
            if !is_listed {
                findings.push(format!("{file}: {name:?} ({reaction:?}) is in no such list of src/app/tests.rs"));
            }
            names.insert(name);
        }
    }
    let listed = reactions.keys().chain(EXCEPTIONS.iter().map(|(name, _)| name));
    let unknown = listed.filter(|name| !name.starts_with(WATCH) && !names.contains(**name));
    findings.extend(unknown.map(|name| format!("src/app/tests.rs: {name:?} is the name of no task or thread")));
    let outdated = EXPRESSIONS.iter().zip(expressions).filter(|(_, is_found)| !is_found);
    findings.extend(outdated.map(|((file, expression, _), _)| format!("{file}: there is no `{expression}`")));
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// The source files of the control plane, without those of tests.
fn sources(root: &Path, directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            let is_other = OTHER_CRATES.iter().any(|other| path == root.join(other));
            if !is_other && !["benches", "examples", "tests"].contains(&name) {
                sources(root, &path, found);
            }
        } else if name != "tests.rs" && path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The text of a file without comments and tests.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The arguments that name tasks and threads, and what follows their panics.
fn arguments(code: &str) -> Vec<(&str, Reaction)> {
    let mut found = Vec::new();
    for (function, position, reaction) in FUNCTIONS {
        let beginning = format!("{function}(");
        for (at, _) in code.match_indices(&beginning) {
            let is_whole_name = !code[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
            let argument = argument(&code[at + beginning.len()..], position).filter(|_| is_whole_name);
            found.extend(argument.map(|argument| (argument, reaction)));
        }
    }
    found
}

/// The argument at this position.
fn argument(mut arguments: &str, position: usize) -> Option<&str> {
    for _ in 0..position {
        arguments = split_argument(arguments)?.1;
    }
    Some(split_argument(arguments)?.0)
}

/// The first argument and the following ones. `None` if it is the last one, or more than a literal or a path, such as the
/// block of a task without a name.
fn split_argument(arguments: &str) -> Option<(&str, &str)> {
    let arguments = arguments.trim_start();
    let end = match arguments.strip_prefix('"') {
        Some(literal) => literal.find('"')? + 2,
        None => {
            let mut depth = 0_usize;
            let end = arguments.find(|letter: char| match letter {
                '(' | '[' => {
                    depth += 1;
                    false
                }
                ')' | ']' if depth > 0 => {
                    depth -= 1;
                    false
                }
                _ => !letter.is_alphanumeric() && !"_&.:".contains(letter),
            })?;
            if depth > 0 {
                return None;
            }
            end
        }
    };
    let (argument, rest) = arguments.split_at(end);
    Some((argument, rest.strip_prefix(',')?))
}

#[test]
fn names_of_tasks_are_found_in_calls() {
    let text = r#"
        tasks.spawn("a port", serve(1, 2));
        // tasks.spawn("a comment", serve());
        tokio::spawn(async move { serve(1, 2).await });
        tokio::spawn(serve(1, 2));
        set.spawn(keep("an argument".to_owned(), 2));
        count_restart("a count", 1);
        tasks.spawn_on(
            self.runtime.handle(),
            NAMES[0],
            serve(),
        );
        restart_with(&name(of), &mut state, run)
#[cfg(test)]
mod tests {
    tasks.spawn("a test", serve(1, 2));
"#;
    let expected = [
        ("&name(of)", Reaction::TaskRestarts),
        ("\"a port\"", Reaction::TaskEndsProcess),
        ("NAMES[0]", Reaction::TaskEndsProcess),
    ];
    assert_eq!(arguments(&code(text)), expected);
}
