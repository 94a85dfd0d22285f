//! Runs the analyzers on the cases in `cases/`: a file for each analyzer, with the analyzer's name.
//!
//! A line that begins with `## CODE, ...: TITLE` begins a case of these codes; the objects below `## always` belong to each case
//! of the file. A line `#> LEVEL CODE OBJECT FIELD` is an expected message, and there are no others. Each other line is an object;
//! its field `cluster` is the name of another cluster that has it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sluice_analyze::{ANALYZERS, AnalyzedObject, Analyzer, MeshObjects, OPTIONAL_ANALYZERS, Origin, Settings, analyze};
use sluice_parse::yaml::{Limits, parse_value};

/// 2027-01-15.
const NOW_UNIX_SECONDS: i64 = 1_800_000_000;

#[derive(Default)]
struct Case {
    codes: Vec<String>,
    title: String,
    expected: Vec<String>,
    objects: Vec<AnalyzedObject>,
}

struct CaseFile {
    path: PathBuf,
    analyzers: Vec<&'static Analyzer>,
    cases: Vec<Case>,
}

fn all_analyzers() -> impl Iterator<Item = &'static Analyzer> {
    ANALYZERS.iter().chain(OPTIONAL_ANALYZERS)
}

/// The analyzer with the name of the file, or all whose names begin with it.
fn analyzers_of(file: &str) -> Vec<&'static Analyzer> {
    let is_of_file = |name: &str| name.strip_prefix(file).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    all_analyzers().filter(|analyzer| is_of_file(analyzer.name)).collect()
}

fn object(line: &str, at: &str) -> AnalyzedObject {
    let mut value = parse_value(line, &Limits::default()).unwrap_or_else(|error| panic!("{at}: {error}"));
    let cluster = value.as_object_mut().and_then(|fields| fields.remove("cluster"));
    let origin = match cluster.as_ref().and_then(|cluster| cluster.as_str()) {
        Some(cluster) => Origin::RemoteCluster(cluster.to_owned()),
        None => Origin::Cluster,
    };
    AnalyzedObject::new(value, origin, "shop")
}

fn read(path: &Path) -> CaseFile {
    let text = std::fs::read_to_string(path).expect("a file");
    let mut cases: Vec<Case> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let at = format!("{}:{}", path.display(), n + 1);
        if let Some(title) = line.strip_prefix("## ") {
            let codes = title.split_once(':').map_or("", |(codes, _)| codes);
            let codes = codes.split(", ").filter(|code| !code.is_empty()).map(str::to_owned).collect();
            cases.push(Case { codes, title: title.to_owned(), ..Case::default() });
        } else if let Some(expected) = line.strip_prefix("#> ") {
            cases.last_mut().expect("a case").expected.push(expected.to_owned());
        } else if !line.is_empty() {
            cases.last_mut().expect("a case").objects.push(object(line, &at));
        }
    }
    if cases.first().is_some_and(|case| case.title == "always") {
        let always = cases.remove(0).objects;
        for case in &mut cases {
            // Objects of the case replace those.
            let own = std::mem::take(&mut case.objects);
            case.objects = always.iter().cloned().chain(own).collect();
        }
    }
    let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
    CaseFile { analyzers: analyzers_of(name), path: path.to_owned(), cases }
}

fn case_files() -> Vec<CaseFile> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// `LEVEL CODE OBJECT FIELD` of each message.
fn run(analyzers: &[&Analyzer], objects: &[AnalyzedObject]) -> Vec<String> {
    let settings = Settings { now_unix_seconds: Some(NOW_UNIX_SECONDS), ..Settings::default() };
    let mesh = MeshObjects::new(objects, settings);
    let messages = analyze(&mesh, analyzers);
    let line = |message: &sluice_analyze::Message<'_>| {
        let known = message.message_type;
        format!("{} {} {} {}", known.level, known.code, message.resource, message.field).trim_end().to_owned()
    };
    messages.iter().map(line).collect()
}

#[test]
fn messages_of_all_cases_are_those_expected() {
    let mut failures = Vec::new();
    for file in case_files() {
        assert!(!file.analyzers.is_empty(), "no analyzer has the name of {}", file.path.display());
        for case in &file.cases {
            let (mut found, mut expected) = (run(&file.analyzers, &case.objects), case.expected.clone());
            found.sort();
            expected.sort();
            if found != expected {
                let missing: Vec<_> = expected.iter().filter(|line| !found.contains(line)).collect();
                let others: Vec<_> = found.iter().filter(|line| !expected.contains(line)).collect();
                let path = file.path.display();
                failures.push(format!("{path}: {}\n  missing {missing:#?}\n  others {others:#?}", case.title));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn each_code_of_each_analyzer_has_a_case_and_a_near_miss() {
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut near_misses: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for file in case_files() {
        for analyzer in &file.analyzers {
            for case in &file.cases {
                let messages = run(&[*analyzer], &case.objects);
                for message in &messages {
                    let code = message.split(' ').nth(1).expect("a code");
                    assert!(analyzer.codes.contains(&code), "{} makes {message}", analyzer.name);
                    found.entry(analyzer.name).or_default().insert(code.to_owned());
                }
                let misses = |code: &&String| !messages.iter().any(|message| message.contains(code.as_str()));
                near_misses.entry(analyzer.name).or_default().extend(case.codes.iter().filter(misses).cloned());
            }
        }
    }
    for analyzer in all_analyzers() {
        for code in analyzer.codes {
            let has = |cases: &BTreeMap<&str, BTreeSet<String>>| {
                cases.get(analyzer.name).is_some_and(|codes| codes.contains(*code))
            };
            assert!(has(&found), "no case of {} gives {code}", analyzer.name);
            assert!(has(&near_misses), "{} has no near miss of {code}", analyzer.name);
        }
    }
}
