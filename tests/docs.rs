//! The Markdown documents: links and file paths resolve, the marked shell blocks run, and each command of `sluicectl` is in one.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest time that the shell blocks of one page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(240);

/// Directories at the top of the repository; inline code that begins with one of them is a path.
const TOP_DIRECTORIES: [&str; 8] =
    ["CHANGES/", "benches/", "collections/", "docs/", "manifests/", "proto/", "src/", "tests/"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A Markdown file, its path relative to the root of the repository.
struct Page {
    path: PathBuf,
    text: String,
}

fn pages() -> Vec<Page> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"])
        .current_dir(root())
        .output()
        .expect("run git ls-files");
    let list = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let paths = list.lines().map(PathBuf::from).filter(|path| root().join(path).exists());
    let pages: Vec<_> = paths
        .map(|path| Page { text: std::fs::read_to_string(root().join(&path)).expect("read a page"), path })
        .collect();
    assert!(pages.len() > 10, "git lists the pages");
    pages
}

/// The lines of a page outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fence && !is_fenced
    })
}

/// The anchors of the headings of a page, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings =
        prose(text).filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    headings
        .map(|heading| {
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

/// The targets of inline links in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

#[test]
fn links_and_anchors_resolve() {
    let mut findings = Vec::new();
    for Page { path, text } in pages() {
        for target in prose(&text).flat_map(targets) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = match file {
                "" => root().join(&path),
                file => root().join(&path).parent().expect("a directory").join(file),
            };
            if !linked.exists() {
                findings.push(format!("{}: {target} does not exist", path.display()));
            } else if !anchor.is_empty() {
                let linked = std::fs::read_to_string(&linked).unwrap_or_default();
                if !anchors(&linked).contains(anchor) {
                    findings.push(format!("{}: {target} has no such heading", path.display()));
                }
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// The paths in the inline code of a line; patterns with placeholders are left out.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |code: &&str| {
        TOP_DIRECTORIES.iter().any(|directory| code.starts_with(directory))
            && code.chars().all(|c| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | ':'))
    };
    line.split('`').skip(1).step_by(2).filter(is_path)
}

#[test]
fn file_paths_and_functions_exist() {
    let mut findings = Vec::new();
    // A change note describes the state of its time.
    for Page { path, text } in pages().into_iter().filter(|page| !page.path.starts_with("CHANGES")) {
        for named in prose(&text).flat_map(paths) {
            let (file, function) = named.split_once("::").unwrap_or((named, ""));
            let full = root().join(file);
            if !full.exists() {
                findings.push(format!("{}: {file} does not exist", path.display()));
            } else if !function.is_empty() {
                let source = std::fs::read_to_string(&full).unwrap_or_default();
                if !source.contains(&format!("fn {function}(")) {
                    findings.push(format!("{}: {named}: no such function", path.display()));
                }
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// The comment above shell blocks that run.
const TESTED: &str = "<!-- tested -->";
/// The comment above shell blocks that run with the kubeconfig of the sample cluster.
const TESTED_IN_CLUSTER: &str = "<!-- tested in a cluster -->";

/// The shell blocks of a page below a comment, as one script.
fn tested_script(text: &str, comment: &str) -> String {
    let (mut script, mut is_marked, mut is_inside) = (String::new(), false, false);
    for line in text.lines() {
        if is_inside {
            is_inside = line != "```";
            if is_inside {
                script.push_str(line);
                script.push('\n');
            }
        } else {
            is_inside = is_marked && line == "```sh";
            is_marked = line == comment;
        }
    }
    script
}

/// Runs a script in a network namespace of its own, where all ports are free.
fn run_isolated(script: &str, directory: &Path) -> Output {
    let binaries = Path::new(env!("CARGO_BIN_EXE_sluiced")).parent().expect("a directory");
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").expect("PATH is set"));
    let log = directory.join("output");
    let output = std::fs::File::create(&log).expect("create the log");
    let mut child = Command::new("unshare")
        .args(["--net", "bash", "-euo", "pipefail", "-c", &format!("ip link set lo up\n{script}")])
        .env("PATH", path)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(output.try_clone().expect("a second handle"))
        .stderr(output)
        .process_group(0)
        .spawn()
        .expect("run unshare");
    let deadline = Instant::now() + PAGE_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for the script") {
            break status;
        }
        if Instant::now() > deadline {
            kill_group(child.id());
            break child.wait().expect("wait for the killed script");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Ends background processes of the script.
    kill_group(child.id());
    Output { status, stdout: std::fs::read(&log).expect("read the log"), stderr: Vec::new() }
}

fn kill_group(id: u32) {
    // It fails if no process of the group is left.
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{id}")]).stderr(Stdio::null()).status();
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0"))
}

/// Whether scripts can run. Without root a test is skipped, which is a failure in CI.
fn can_run_isolated() -> bool {
    let is_root = is_root();
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "scripts need root for a network namespace");
        eprintln!("SKIPPED: scripts need root for a network namespace");
    }
    is_root
}

/// Starts a control plane with the sample mesh, and the sample cluster in which it runs.
const SAMPLE_CLUSTER: &str = r#"
sluicectl manifest generate --set profile=minimal --set components.base.enabled=false -o json > installation.json
sluiced --configDir manifests/demo > sluiced.log 2>&1 &
until curl -sf localhost:8080/ready; do sleep 0.1; done
sluice-samplecluster --kubeconfig kubeconfig manifests/demo installation.json &
until [[ -e kubeconfig ]]; do sleep 0.1; done
export KUBECONFIG=$PWD/kubeconfig
"#;

#[test]
fn marked_shell_blocks_run() {
    if !can_run_isolated() {
        return;
    }
    let mut count = 0;
    for Page { path, text } in pages() {
        for (comment, prelude) in [(TESTED, ""), (TESTED_IN_CLUSTER, SAMPLE_CLUSTER)] {
            let script = tested_script(&text, comment);
            if script.is_empty() {
                continue;
            }
            count += 1;
            let directory = tempfile::tempdir().expect("a directory");
            let copied = Command::new("cp").arg("-r").arg(root().join("manifests")).arg(directory.path()).status();
            assert!(copied.is_ok_and(|status| status.success()), "copy manifests");
            let output = run_isolated(&format!("{prelude}set -x\n{script}"), directory.path());
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{}: {}\n{script}\n{text}", path.display(), output.status);
        }
    }
    assert!(count >= 2, "pages have marked shell blocks");
}

#[test]
fn demo_directory_starts_without_warnings() {
    if !can_run_isolated() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let demo = root().join("manifests/demo");
    let script = format!(
        "sluiced --configDir {} &\nuntil curl -sf localhost:8080/ready; do sleep 0.1; done\n\
         curl -sf localhost:8080/debug/rejects",
        demo.display()
    );
    let output = run_isolated(&script, directory.path());
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{log}");
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("\twarn\t") || line.contains("\terror\t")).collect();
    assert!(warnings.is_empty(), "{}", warnings.join("\n"));
    assert!(log.contains(r#""objects":[]"#) && log.contains(r#""files":{}"#), "{log}");
}

/// Commands whose examples need a real API server, and some of them nodes that start pods. Each has a test with these.
const TESTED_WITH_NODES: [(&str, &str); 6] = [
    ("install", "tests/cluster/install.rs"),
    ("precheck", "tests/cluster/install.rs"),
    ("uninstall", "tests/cluster/install.rs"),
    ("upgrade", "tests/cluster/install.rs"),
    ("verify-install", "tests/cluster/install.rs"),
    ("workload entry configure", "tests/cluster/machines.rs"),
];

/// A command of `sluicectl`, by what its help says.
struct DocumentedCommand {
    names: Vec<String>,
    subcommands: Vec<DocumentedCommand>,
}

impl DocumentedCommand {
    /// The subcommands of a command.
    fn below(path: &[&str]) -> Vec<Self> {
        let sluicectl = Path::new(env!("CARGO_BIN_EXE_sluiced")).with_file_name("sluicectl");
        let output = Command::new(sluicectl).args(path).arg("-h").output().expect("run sluicectl");
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        let section = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        // A description may go on in further lines.
        let mut entries: Vec<String> = Vec::new();
        for line in section {
            match line.strip_prefix("  ").filter(|entry| !entry.starts_with(' ')) {
                Some(entry) => entries.push(entry.to_owned()),
                None => entries.last_mut().expect("a command").push_str(&format!(" {}", line.trim())),
            }
        }
        let command = |entry: &String| {
            let name = entry.split(' ').next().expect("a name").to_owned();
            let aliases = entry.split_once("[aliases: ").and_then(|(_, rest)| rest.split_once(']'));
            let aliases = aliases.map(|(aliases, _)| aliases.split(", ").map(str::to_owned).collect::<Vec<_>>());
            let subcommands = Self::below(&[path, &[&name]].concat());
            Self { names: std::iter::once(name).chain(aliases.unwrap_or_default()).collect(), subcommands }
        };
        entries.iter().filter(|entry| !entry.starts_with("help ")).map(command).collect()
    }

    /// The names of all commands without subcommands below this one, with spaces.
    fn leaves(&self) -> Vec<String> {
        let name = &self.names[0];
        if self.subcommands.is_empty() {
            return vec![name.clone()];
        }
        self.subcommands.iter().flat_map(Self::leaves).map(|leaf| format!("{name} {leaf}")).collect()
    }

    /// The names of the command that words call, with spaces.
    fn called(commands: &[Self], words: &mut dyn Iterator<Item = &str>) -> Option<String> {
        let word = words.next()?;
        let command = commands.iter().find(|command| command.names.iter().any(|name| name == word))?;
        match Self::called(&command.subcommands, words) {
            Some(rest) => Some(format!("{} {rest}", command.names[0])),
            None => Some(command.names[0].clone()),
        }
    }
}

#[test]
fn each_command_of_sluicectl_has_an_example_that_runs() {
    let commands = DocumentedCommand::below(&[]);
    let leaves: BTreeSet<String> = commands.iter().flat_map(DocumentedCommand::leaves).collect();
    assert!(leaves.len() > 50 && leaves.contains("proxy-config cluster"), "{leaves:?}");
    let called_in = |text: &str| -> BTreeSet<String> {
        let calls = text.split("sluicectl ").skip(1);
        calls.filter_map(|call| DocumentedCommand::called(&commands, &mut call.split_whitespace())).collect()
    };
    let mut documented = BTreeSet::new();
    let mut described = BTreeSet::new();
    for Page { text, .. } in pages() {
        for comment in [TESTED, TESTED_IN_CLUSTER] {
            documented.extend(called_in(&tested_script(&text, comment)));
        }
        described.extend(called_in(&text));
    }
    for (command, test) in TESTED_WITH_NODES {
        let source = std::fs::read_to_string(root().join(test)).expect(test);
        let is_run = command.split(' ').all(|word| source.contains(&format!("\"{word}\"")));
        assert!(is_run && described.contains(command), "{command} is described, and {test} runs it");
        assert!(!documented.contains(command), "{command} has an example that runs");
        documented.insert(command.to_owned());
    }
    // What istioctl has below `experimental` may be a command of its own here.
    let is_documented = |leaf: &String| {
        documented.contains(leaf) || leaf.strip_prefix("experimental ").is_some_and(|it| documented.contains(it))
    };
    let missing: Vec<&String> = leaves.iter().filter(|leaf| !is_documented(leaf)).collect();
    assert!(
        missing.is_empty(),
        "these commands have no example below {TESTED:?} or {TESTED_IN_CLUSTER:?}: {missing:?}"
    );
}
