//! Mutated sets of objects, through all analyzers of `sluicectl analyze`.
//!
//! A set is a part of the objects of a parity case or of the cases of analyzers, with objects of others. Some are mutated. No
//! analyzer panics, each makes only messages with its own codes, and the result does not depend on the order of the objects.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use sluice_analyze::{ANALYZERS, AnalyzedObject, Analyzer, MeshObjects, OPTIONAL_ANALYZERS, Origin, Settings, analyze};
use sluice_parse::yaml::{Limits, parse_value};

use crate::memory_bound::within;
use crate::objects::{foreign_object, mutate_object};
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::{CaseMesh, Seed, Seeds};
use crate::turns;
use crate::violation::{Violation, violation};

/// Maximum number of objects that a turn adds to those of its case.
const MAX_FOREIGN_OBJECTS: usize = 3;
/// An object is mutated once in as many.
const MUTATION_INTERVAL: usize = 3;
/// An object of the case is left out once in as many.
const OMISSION_INTERVAL: usize = 6;
/// Namespace of objects that name none.
const NAMESPACE: &str = "shop";

/// Analyzes mutated sets of objects until the deadline. A turn is effective if it gives messages.
///
/// # Errors
/// The cases of the analyzers cannot be read.
pub fn run(run: &Run, seeds: &Seeds, root: &Path) -> Result<FuzzStatistics> {
    let mut cases = seeds.cases.clone();
    let directory = root.join("../../src/analyze/tests/cases");
    let analyzer_cases = analyzer_cases(&directory).with_context(|| format!("read {}", directory.display()))?;
    ensure!(!analyzer_cases.is_empty(), "{} has no cases", directory.display());
    // As many turns with each group.
    while cases.len() < seeds.cases.len() * 2 {
        cases.extend(analyzer_cases.iter().cloned());
    }
    let analyzers: Vec<&Analyzer> = ANALYZERS.iter().chain(OPTIONAL_ANALYZERS).collect();
    Ok(turns::run(run, "sets of objects", |rng| {
        let Some(case) = rng.choose(&cases).cloned() else { return Ok(false) };
        let (objects, bytes) = any_set(&case, seeds, rng);
        check(&analyzers, objects, bytes, rng)
    }))
}

/// The objects of each file: the lines that begin with a brace.
fn analyzer_cases(directory: &Path) -> Result<Vec<CaseMesh>> {
    let mut paths = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    let mut cases = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path)?;
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let objects = lines.filter_map(|line| parse_value(line, &Limits::default()).ok());
        cases.push(CaseMesh {
            name: path.display().to_string(),
            objects: objects.map(|object| Seed::new("Kubernetes".into(), object)).collect(),
            nodes: Vec::new(),
        });
    }
    Ok(cases)
}

/// A random set of objects, and the number of their bytes.
fn any_set(case: &CaseMesh, seeds: &Seeds, rng: &mut FuzzRng) -> (Vec<AnalyzedObject>, usize) {
    let mut set: Vec<Seed> = case.objects.iter().filter(|_| !rng.once_in(OMISSION_INTERVAL)).cloned().collect();
    for _ in 0..rng.below(MAX_FOREIGN_OBJECTS + 1) {
        set.extend(foreign_object(case, seeds, rng));
    }
    let mut objects: BTreeMap<(String, String), AnalyzedObject> = BTreeMap::new();
    let mut bytes = 0;
    for mut seed in set {
        if rng.once_in(MUTATION_INTERVAL) {
            let times = 1 + rng.below(4);
            mutate_object(&mut seed, seeds, rng, times);
        }
        let mut value = seed.rendered();
        bytes += value.to_string().len();
        let cluster = value.as_object_mut().and_then(|fields| fields.remove("cluster"));
        let origin = match cluster.as_ref().and_then(Value::as_str) {
            Some(cluster) => Origin::RemoteCluster(cluster.to_owned()),
            None => Origin::Cluster,
        };
        let object = AnalyzedObject::new(value, origin, NAMESPACE);
        // The last one of equal names counts, so that their order matters.
        let key = (object.origin.cluster().to_owned(), format!("{:?} {object}", object.kind()));
        objects.insert(key, object);
    }
    (objects.into_values().collect(), bytes)
}

fn check(
    analyzers: &[&Analyzer],
    mut objects: Vec<AnalyzedObject>,
    bytes: usize,
    rng: &mut FuzzRng,
) -> Result<bool, Violation> {
    let first = within("analysis", bytes, || messages(analyzers, &objects))?;
    rng.shuffle(&mut objects);
    let second = messages(analyzers, &objects);
    if first != second {
        return violation("the order of objects matters", format!("{first:#?}\n{second:#?}\n{objects:#?}"));
    }
    for analyzer in analyzers {
        let foreign = messages(&[*analyzer], &objects)
            .into_iter()
            .find(|message| !analyzer.codes.iter().any(|code| message.starts_with(code)));
        if let Some(message) = foreign {
            return violation("an analyzer makes a message of another code", format!("{}: {message}", analyzer.name));
        }
    }
    Ok(!first.is_empty())
}

fn messages(analyzers: &[&Analyzer], objects: &[AnalyzedObject]) -> Vec<String> {
    let mesh = MeshObjects::new(objects, Settings { now_unix_seconds: Some(0), ..Settings::default() });
    let found = analyze(&mesh, analyzers);
    let line = |message: &sluice_analyze::Message<'_>| {
        format!("{} {} {} {}", message.message_type.code, message.resource, message.field, message.text)
    };
    found.iter().map(line).collect()
}
