//! The Markdown documents: links and file paths resolve, and the marked shell blocks run.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest time that the shell blocks of one page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(120);

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

/// The shell blocks of a page below the comment `<!-- tested -->`, as one script.
fn tested_script(text: &str) -> String {
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
            is_marked = line == "<!-- tested -->";
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

#[test]
fn marked_shell_blocks_run() {
    if !can_run_isolated() {
        return;
    }
    let mut count = 0;
    for Page { path, text } in pages() {
        let script = tested_script(&text);
        if script.is_empty() {
            continue;
        }
        count += 1;
        let directory = tempfile::tempdir().expect("a directory");
        let copied = Command::new("cp").arg("-r").arg(root().join("manifests")).arg(directory.path()).status();
        assert!(copied.is_ok_and(|status| status.success()), "copy manifests");
        let output = run_isolated(&script, directory.path());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {}\n{script}\n{text}", path.display(), output.status);
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
