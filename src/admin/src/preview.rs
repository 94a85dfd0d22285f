//! `preview`: what applying or deleting objects would change. Nothing is applied: a copy of the graph gets the change, and both of
//! its states are compared.

mod comparison;
mod concerned;
mod fields;
mod live_fields;
mod merged_groups;
mod objects;
mod page;
mod parts;
mod table_size;

use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_model::Text;

pub(crate) use page::{answered, route};

use crate::AdminState;
use crate::second_graph::{PreviewTurn, SecondGraph, SecondGraphError};
use comparison::{ChangedResource, TypeSummary, compare};
use objects::{ObjectChange, ObjectReader, PreviewFinding, PreviewedObjects};

/// Maximum size of the objects of a preview in bytes.
pub const MAX_PREVIEW_BYTES: usize = 4 << 20;
/// Time limit of the comparison. Resources that are not compared until then are counted only.
const MAX_COMPARE_TIME: Duration = Duration::from_secs(2);
/// Proxies that are listed.
const MAX_PROXIES: usize = 20;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct PreviewQuestion {
    /// YAML or JSON documents.
    text: String,
    /// The objects are deleted.
    delete: bool,
}

impl PreviewQuestion {
    /// Fails if the text is too long.
    pub(crate) fn new(text: String, delete: bool) -> Result<Self, String> {
        match text.len() > MAX_PREVIEW_BYTES {
            true => Err(format!("the body is longer than {MAX_PREVIEW_BYTES} bytes")),
            false => Ok(Self { text, delete }),
        }
    }
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreviewAnswer {
    /// The epoch of the inputs that the change would be applied to.
    epoch: u64,
    /// The objects, and what happens to each.
    objects: Vec<ObjectChange>,
    /// Findings of validation, and findings that the change adds to other objects.
    findings: Vec<PreviewFinding>,
    /// Findings that the change removes.
    solved: Vec<PreviewFinding>,
    /// Changed resources that connected proxies see, by type.
    resources: Vec<TypeSummary>,
    /// Each of them, with its fields; not all if there are hundreds.
    changes: Vec<ChangedResource>,
    /// Number of changed resources that `changes` does not list.
    changes_left_out: usize,
    proxies: ConcernedProxies,
    /// Bytes of resources that would be sent to all concerned proxies, by delta xDS.
    bytes: u64,
    /// Everything was compared. Otherwise the numbers are lower bounds.
    is_complete: bool,
    /// What the preview does not cover.
    notes: Vec<String>,
    cost: Cost,
}

/// Proxies that would be sent a change.
#[derive(Clone, Debug, Serialize)]
struct ConcernedProxies {
    count: usize,
    /// Proxies that are connected to this instance.
    connected: usize,
    /// The first of the concerned ones.
    names: Vec<Text>,
}

/// The cost of the answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cost {
    seconds: f64,
    /// Seconds of it until there was a copy of the graph.
    copy_seconds: f64,
}

/// A question that has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PreviewError {
    /// The text has no objects.
    #[error("{0}")]
    BadRequest(String),
    /// The sources are not read yet. Retrying later helps.
    #[error("the mesh config is not read yet")]
    NotReady,
    /// There is no second graph.
    #[error(transparent)]
    SecondGraph(#[from] SecondGraphError),
}

/// Answers the question. If it changes most of a large mesh, it takes up to seconds, on threads of its own.
pub(crate) fn preview(
    state: &AdminState,
    question: &PreviewQuestion,
    turn: PreviewTurn,
) -> Result<PreviewAnswer, PreviewError> {
    let start = Instant::now();
    // Before the copy, which costs much more.
    let Some(mesh) = state.current_mesh.get() else { return Err(PreviewError::NotReady) };
    let graph = SecondGraph::copy_of(&state.engine, &state.graph, turn)?;
    let before = graph.state()?;
    let copy_seconds = start.elapsed().as_secs_f64();
    let reader =
        ObjectReader::new(&state.options.preview, &before.inputs, graph.inputs(), mesh.copy(), question.delete);
    let mut objects = PreviewedObjects::read(question, reader);
    if objects.changes.is_empty() && objects.findings.is_empty() {
        return Err(PreviewError::BadRequest("the body has no objects: send YAML or JSON documents".to_owned()));
    }
    graph.apply(objects.take_parsed());
    let after = graph.state()?;
    objects.add_effects(&before.inputs, &after.inputs);
    let rejects = fields::changed_findings(&before.outputs, &after.outputs, graph.handles());
    for finding in rejects.added {
        objects.add_finding(finding);
    }
    let deadline = Instant::now() + MAX_COMPARE_TIME;
    let compared = compare(&state.status, graph.handles(), &before.outputs, &after.outputs, deadline);
    let connected: std::collections::BTreeSet<_> = state.status.proxies().into_iter().map(|(key, _)| key).collect();
    let answer = PreviewAnswer {
        epoch: before.inputs.epoch().0,
        objects: objects.changes,
        findings: objects.findings,
        solved: rejects.removed,
        resources: compared.types,
        changes: compared.changes,
        changes_left_out: compared.changes_left_out,
        proxies: ConcernedProxies {
            count: compared.proxies.len(),
            connected: connected.len(),
            names: compared.proxies.into_iter().take(MAX_PROXIES).collect(),
        },
        bytes: compared.bytes,
        is_complete: compared.is_complete,
        notes: fields::notes(&before.outputs, &after.outputs, graph.handles()),
        cost: Cost { seconds: start.elapsed().as_secs_f64(), copy_seconds },
    };
    // Freeing the memory of a large change takes a while.
    tokio::task::spawn_blocking(move || drop((before, after, graph)));
    Ok(answer)
}
