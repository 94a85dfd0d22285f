//! The `replay` subcommand: replays a recording into a graph of this process, and prints what proxies would have.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use sluice_model::{ProxyKey, ResourceType};
use sluice_recording::{Outcome, RecordingFileError, RecordingReader, Replay, ReplaySpeed, ReplayedStep, StepEnd};

use crate::answer_output::{list, print};
use crate::columns::{columns, table as titled};
use crate::preview_args::PreviewResourceType;
use crate::recording_args::ReplayArgs;

const EXIT_OK: u8 = 0;
/// There is no such proxy.
const EXIT_NO_PROXY: u8 = 1;
/// The file is no recording.
pub(crate) const EXIT_NO_RECORDING: u8 = 2;

/// A replayed recording.
pub(crate) struct Replayed {
    pub(crate) outcome: Outcome,
    steps: Vec<(StepEnd, ReplayedStep)>,
    is_cut: bool,
    version: String,
}

/// Replays a recording up to its end, or to `until`.
pub(crate) fn replay(path: &Path, speed: ReplaySpeed, until: Option<Duration>) -> Result<Replayed, RecordingFileError> {
    let mut reader = RecordingReader::open(File::open(path).map_err(RecordingFileError::Open)?)?;
    let mut replay = Replay::start(&reader.header().options);
    let (begin, mut steps) = (Instant::now(), Vec::new());
    while let Some(step) = reader.next_step()? {
        // The first step is the state at the beginning.
        if !steps.is_empty() && until.is_some_and(|until| step.end.at > until.as_secs_f64()) {
            break;
        }
        std::thread::sleep(speed.time_of(step.end.at).saturating_sub(begin.elapsed()));
        let end = step.end;
        let applied = replay.apply(step)?;
        if applied.writes > 0 || steps.is_empty() {
            steps.push((end, applied));
        }
    }
    let version = reader.header().version.clone();
    Ok(Replayed { outcome: replay.outcome(), steps, is_cut: reader.is_cut(), version })
}

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &ReplayArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let replayed = match replay(&args.file, args.speed, args.until) {
        Ok(replayed) => replayed,
        Err(error) => {
            writeln!(errors, "sluicectl: {}: {error}", args.file.display())?;
            return Ok(EXIT_NO_RECORDING);
        }
    };
    if replayed.is_cut {
        writeln!(
            errors,
            "sluicectl: {}: the recording was interrupted: it has no end, and a step that is not complete is left out",
            args.file.display()
        )?;
    }
    let proxies = replayed.outcome.proxies().iter();
    let proxies: Vec<&ProxyKey> =
        proxies.filter(|key| args.proxy.as_deref().is_none_or(|name| is_named(key, name))).collect();
    if proxies.is_empty()
        && let Some(name) = &args.proxy
    {
        let known: Vec<&str> = replayed.outcome.proxies().iter().map(short_id).take(20).collect();
        writeln!(errors, "sluicectl: --proxy {name}: the recording has no such proxy; it has: {}", known.join(", "))?;
        return Ok(EXIT_NO_PROXY);
    }
    print(args.output, &answer(args, &replayed, &proxies), out, table)?;
    Ok(EXIT_OK)
}

/// `pod.namespace` of the key of a proxy: that of its node id.
pub(crate) fn short_id(key: &ProxyKey) -> &str {
    key.0.split('~').nth(2).unwrap_or(&key.0)
}

fn is_named(key: &ProxyKey, name: &str) -> bool {
    key.0.as_str() == name || short_id(key) == name
}

/// The types that can be recorded, with their names.
pub(crate) fn types(selected: &[PreviewResourceType]) -> Vec<(&'static str, ResourceType)> {
    let all = [
        PreviewResourceType::Cds,
        PreviewResourceType::Eds,
        PreviewResourceType::Lds,
        PreviewResourceType::Rds,
        PreviewResourceType::Ecds,
        PreviewResourceType::Nds,
    ];
    let kinds = all.into_iter().filter(|kind| selected.is_empty() || selected.contains(kind));
    kinds.map(|kind| (kind.short_name(), kind.resource_type())).collect()
}

fn answer(args: &ReplayArgs, replayed: &Replayed, proxies: &[&ProxyKey]) -> Value {
    let step = |(end, step): &(StepEnd, ReplayedStep)| {
        json!({
            "at": end.at,
            "epoch": end.epoch,
            "writes": step.writes,
            "changedResources": step.changed,
            "seconds": step.took.as_secs_f64(),
        })
    };
    let resources = |key: &ProxyKey| -> Value {
        let of_type = |(name, kind): (&'static str, ResourceType)| {
            (name.to_owned(), json!(replayed.outcome.resources(key, kind)))
        };
        types(&args.resource_types).into_iter().map(of_type).collect::<Map<_, _>>().into()
    };
    let proxies: Map<String, Value> = proxies.iter().map(|key| (key.0.to_string(), resources(key))).collect();
    json!({
        "version": replayed.version,
        "isCut": replayed.is_cut,
        "steps": replayed.steps.iter().map(step).collect::<Vec<_>>(),
        "proxies": proxies,
    })
}

fn table(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let number = |value: &Value, field: &str| value[field].as_u64().unwrap_or_default().to_string();
    let titles = ["AT", "EPOCH", "WRITES", "CHANGED", "TOOK"];
    let row = |step: &Value| {
        let time = |field: &str| step[field].as_f64().unwrap_or_default();
        vec![
            format!("{:.3}s", time("at")),
            number(step, "epoch"),
            number(step, "writes"),
            number(step, "changedResources"),
            format!("{:.1}ms", time("seconds") * 1000.0),
        ]
    };
    let steps = list(answer, "steps").iter().map(row);
    columns(&titled(&titles, steps), out)?;
    writeln!(out)?;
    let proxies = answer["proxies"].as_object();
    let first = proxies.and_then(|proxies| proxies.values().next()).and_then(Value::as_object);
    let kinds: Vec<&String> = first.into_iter().flat_map(Map::keys).collect();
    let titles = std::iter::once("PROXY".to_owned()).chain(kinds.iter().map(|kind| kind.to_uppercase())).collect();
    let row = |(key, types): (&String, &Value)| {
        let count = |kind: &&String| types[kind.as_str()].as_object().map_or(0, Map::len).to_string();
        std::iter::once(key.clone()).chain(kinds.iter().map(count)).collect()
    };
    let rows = proxies.into_iter().flatten().map(row);
    columns(&std::iter::once(titles).chain(rows).collect::<Vec<Vec<String>>>(), out)
}
