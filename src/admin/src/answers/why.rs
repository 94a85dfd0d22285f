//! `why`: the objects that made a resource of a proxy, or a field of it, and the last change of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use sluice_engine::{Cause, Explanation, InputRecord, Reason};
use sluice_model::{Kind, ProxyKey, ResourceType, Text};
use sluice_xds::{AckFrontier, ProxyProgress, short_name};

use super::AnswerError;
use super::difference::difference;
use super::names::{self, did_you_mean, similar};
use super::objects::{ObjectVersion, WrittenObject, kind_of, other_input, time_ago, written};
use super::path::FieldPath;
use super::proxies::{self, FoundProxy, pod_name};
use super::replica::Replica;
use super::resource::{LocatedResource, locate};
use crate::AdminState;

/// Segments of a resource that are explained. A table has thousands; a path selects one.
const MAX_SEGMENTS: usize = 16;
/// Objects that are left out one by one to find their effect.
const MAX_TRIED_OBJECTS: usize = 64;
/// Time limit of finding the effects of objects.
const MAX_TRY_TIME: Duration = Duration::from_millis(400);
/// Fields that are listed for each object.
const MAX_FIELDS: usize = 12;
/// Objects of a kind without an effect, and other inputs, that are listed.
const MAX_LISTED: usize = 20;

/// What is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct WhyQuestion {
    pub(crate) proxy: String,
    pub(crate) namespace: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) path: String,
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WhyAnswer {
    /// `pod.namespace`.
    proxy: String,
    /// Number of proxies of the workload, if one was named.
    proxies_of_workload: usize,
    r#type: &'static str,
    name: Text,
    path: String,
    /// The epoch of the answer.
    epoch: u64,
    /// The layers that the resource is from, and so which proxies share it.
    layers: Vec<String>,
    /// The resource, or the field.
    value: Value,
    /// Segments of the resource that are not explained: the path selects one.
    segments_left_out: usize,
    /// Objects without which the resource, or the field, would be different.
    made_by: Vec<Contribution>,
    /// Objects that were read and have no effect of their own on it.
    also_read: Vec<ReadObject>,
    /// Number of objects in `alsoRead` that are not listed.
    also_read_left_out: usize,
    /// Inputs that are not objects.
    other_inputs: Vec<String>,
    /// Why effects of objects are missing, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    last_change: LastChange,
    /// The progress of this proxy; absent if it does not subscribe to the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProxyProgress>,
    /// The progress of all proxies that subscribe to a resource of this name.
    holders: AckFrontier,
}

/// An object that made the resource.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Contribution {
    #[serde(flatten)]
    version: ObjectVersion,
    /// Without the object, the proxy would not have the resource.
    required: bool,
    /// Fields that would be different without the object.
    fields: Vec<String>,
    /// Collections from the object to the resource.
    through: Vec<String>,
}

/// An object that was read.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadObject {
    #[serde(flatten)]
    version: ObjectVersion,
    through: Vec<String>,
}

/// The last change of the resource.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct LastChange {
    /// The epoch; absent if the history does not reach back to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_seconds: Option<f64>,
    /// The objects whose change it was.
    objects: Vec<WrittenObject>,
}

/// Answers the question. Waits for the dataflow thread.
pub(crate) fn why(state: &AdminState, question: &WhyQuestion) -> Result<WhyAnswer, AnswerError> {
    let kind = names::resource_type(&question.kind)?;
    let path = FieldPath::parse(&question.path)?;
    let found = proxies::find(&state.status.proxies(), &question.proxy, &question.namespace)?;
    let snapshot = state.engine.snapshot();
    let whole = locate(&snapshot, &state.handles, &found.key, kind, &question.name)
        .ok_or_else(|| no_resource(state, &found, kind, &question.name))?;
    let (resource, left_out) = selected(&whole, &path);
    let json = resource.json(&snapshot, &state.handles).unwrap_or_default();
    let Some(value) = path.get(&json) else { return Err(no_field(&path, &json, &whole)) };

    let path = path.canonical(&json);
    let explanations = resource.explain(&state.engine, &state.handles);
    let scope = state.engine.explain(&state.handles.scopes, &found.key);
    let all = explanations.iter().chain(scope.as_ref());
    let effects = Effects::find(state, &found.key, &resource, (&json, &path), all);
    let through = Through::of(&explanations);
    let mut answer = WhyAnswer {
        proxy: pod_name(&found.proxy),
        proxies_of_workload: found.of,
        r#type: short_name(kind),
        name: resource.name.clone(),
        path: path.to_string(),
        epoch: explanations.iter().map(|why| why.epoch.0).max().unwrap_or_else(|| snapshot.epoch().0),
        layers: layers(&resource),
        value: value.clone(),
        segments_left_out: left_out,
        made_by: Vec::new(),
        also_read: Vec::new(),
        also_read_left_out: 0,
        other_inputs: effects.other_inputs(),
        note: effects.note.clone(),
        last_change: last_change(&explanations),
        progress: state.status.progress(&found.key, kind, &question.name),
        holders: state.status.frontier(kind, &question.name),
    };
    effects.fill(&mut answer, &path, &through);
    Ok(answer)
}

/// The parts of a resource that a path concerns, and the number of segments that are left out.
fn selected(resource: &LocatedResource, path: &FieldPath) -> (LocatedResource, usize) {
    let segments = resource.segments();
    let names: BTreeSet<Text> = match resource.segment_of_path(path) {
        Some(segment) => [segment.clone()].into(),
        None => segments.iter().take(MAX_SEGMENTS).map(|name| (*name).clone()).collect(),
    };
    // A path to one segment leaves nothing out.
    let left_out = if resource.segment_of_path(path).is_some() { 0 } else { segments.len() - names.len() };
    (resource.only(&names), left_out)
}

fn layers(resource: &LocatedResource) -> Vec<String> {
    let layers: BTreeSet<String> = resource.keys().iter().map(|key| key.layer().to_string()).collect();
    layers.into_iter().collect()
}

fn no_resource(state: &AdminState, found: &FoundProxy, kind: ResourceType, name: &str) -> AnswerError {
    let known = state.status.names(&found.key, kind);
    let similar = similar(name, known.iter().map(Text::as_str));
    AnswerError::NotFound(format!(
        "{} has no {} resource {name:?}{}; `sluicectl why-not` tells why",
        pod_name(&found.proxy),
        short_name(kind),
        did_you_mean(&similar),
    ))
}

fn no_field(path: &FieldPath, json: &Value, whole: &LocatedResource) -> AnswerError {
    let (known, mut fields) = path.known_prefix(json);
    if known.0.len() == 1 {
        // Of a table with many segments, only some are read.
        let segments = whole.segments();
        if segments.len() > fields.len() {
            fields = segments.iter().map(|name| name.to_string()).collect();
        }
    }
    let text = path.0.get(known.0.len()).map(|step| FieldPath(vec![step.clone()]).to_string()).unwrap_or_default();
    let similar = similar(text.trim_matches(['[', ']']), fields.iter().map(String::as_str));
    let place = if known.is_whole() { "the resource".to_owned() } else { known.to_string() };
    AnswerError::NotFound(format!("{place} has no {text}{}", did_you_mean(&similar)))
}

/// The last change of any part.
fn last_change(explanations: &[Explanation]) -> LastChange {
    let causes = explanations.iter().filter_map(|why| why.why_now.as_ref());
    let Some(last) = causes.clone().map(|cause| cause.epoch).max() else { return LastChange::default() };
    let of_last: Vec<&Cause> = causes.filter(|cause| cause.epoch == last).collect();
    let mut objects: Vec<WrittenObject> = Vec::new();
    for object in of_last.iter().flat_map(|cause| written(&cause.writes)) {
        if !objects.contains(&object) {
            objects.push(object);
        }
    }
    let first = of_last.first();
    LastChange {
        epoch: Some(last.0),
        at: first.map(|cause| time_ago(cause.age)),
        took_seconds: first.map(|cause| cause.took.as_secs_f64()),
        objects,
    }
}

/// The collections between each input record and the resource, by input and key.
struct Through(BTreeMap<(String, String), Vec<String>>);

impl Through {
    fn of(explanations: &[Explanation]) -> Self {
        let mut paths = BTreeMap::new();
        for why in explanations {
            collect(&why.why, &mut Vec::new(), &mut paths);
        }
        Self(paths)
    }

    /// The collections from an object to the resource.
    fn get(&self, record: &InputRecord) -> Vec<String> {
        let key = (record.collection().to_owned(), record.key_json().to_string());
        self.0.get(&key).cloned().unwrap_or_default()
    }
}

fn collect(reason: &Reason, above: &mut Vec<String>, paths: &mut BTreeMap<(String, String), Vec<String>>) {
    above.push(reason.collection.clone());
    if kind_of(&reason.collection).is_some() {
        let key = reason.key.as_ref().map(ToString::to_string).unwrap_or_default();
        let from_input = || above.iter().rev().cloned().collect::<Vec<_>>();
        let known = paths.entry((reason.collection.clone(), key)).or_insert_with(from_input);
        if known.len() > above.len() {
            *known = from_input();
        }
    }
    reason.because.iter().for_each(|inner| collect(inner, above, paths));
    above.pop();
}

/// The objects of a resource, and what each changes in it.
struct Effects<'a> {
    /// The input records, each with its effect; `None` if that is not known.
    records: Vec<(&'a InputRecord, Option<Effect>)>,
    note: Option<String>,
}

/// The effect of leaving out an object.
enum Effect {
    /// The proxy does not have the resource.
    Gone,
    /// These fields are different; none if the object is not needed.
    Fields(Vec<FieldPath>),
}

impl<'a> Effects<'a> {
    /// Leaves out the objects one by one, in a second engine that has only the inputs of the resource and of the proxy's scope.
    /// An object without an effect on the field stays left out, so that of several objects with the same effect one remains: the
    /// oldest, because it has precedence in most cases.
    fn find(
        state: &AdminState,
        proxy: &ProxyKey,
        resource: &LocatedResource,
        (json, path): (&Value, &FieldPath),
        explanations: impl Iterator<Item = &'a Explanation>,
    ) -> Self {
        let mut records: BTreeMap<(String, String), &InputRecord> = BTreeMap::new();
        for record in explanations.flat_map(|why| &why.inputs) {
            records.insert((record.collection().to_owned(), record.key_json().to_string()), record);
        }
        let mut records: Vec<_> = records.into_values().collect();
        // There may be thousands of workloads: their order is of no interest.
        let order = |record: &InputRecord| match rank(record) {
            rank @ 0..WORKLOAD_RANK => (rank, Reverse(created(record))),
            rank => (rank, Reverse(0)),
        };
        records.sort_by_cached_key(|record| order(record));
        let replica = Replica::start(&state.graph, records.iter().copied(), proxy, resource);
        if replica.json().as_ref() != Some(json) {
            let note =
                "the effect of single objects is not known: the resource also depends on other proxies or objects";
            return Self { records: records.into_iter().map(|it| (it, None)).collect(), note: Some(note.to_owned()) };
        }
        let start = Instant::now();
        let (mut tried, mut is_complete) = (0, true);
        let mut reduced = json.clone();
        let mut effect = |record: &InputRecord| {
            kind_of(record.collection())?;
            if tried == MAX_TRIED_OBJECTS || start.elapsed() > MAX_TRY_TIME {
                is_complete = false;
                return None;
            }
            tried += 1;
            let effect = match replica.leave_out(record) {
                Some(without) if path.get(&without) == path.get(json) => {
                    reduced = without;
                    return Some(Effect::Fields(Vec::new()));
                }
                Some(without) => Effect::Fields(difference(&reduced, &without)),
                None => Effect::Gone,
            };
            replica.put_back(record);
            Some(effect)
        };
        let records: Vec<_> = records.into_iter().map(|record| (record, effect(record))).collect();
        let note = (!is_complete).then(|| format!("the effect of the first {tried} objects only is known"));
        Self { records, note }
    }

    fn other_inputs(&self) -> Vec<String> {
        let others = self.records.iter().filter(|(record, _)| kind_of(record.collection()).is_none());
        others.map(|(record, _)| other_input(record)).take(MAX_LISTED).collect()
    }

    /// Adds the objects to the answer: those with an effect on the field, and the others.
    fn fill(&self, answer: &mut WhyAnswer, path: &FieldPath, through: &Through) {
        for (record, effect) in &self.records {
            let Some(version) = ObjectVersion::of_record(record) else { continue };
            let through = through.get(record);
            let (required, fields) = match effect {
                None => (false, Vec::new()),
                Some(Effect::Gone) => (true, Vec::new()),
                Some(Effect::Fields(fields)) => {
                    (false, fields.iter().filter(|field| field.overlaps(path)).map(ToString::to_string).collect())
                }
            };
            if required || !fields.is_empty() {
                let fields = fields.into_iter().take(MAX_FIELDS).collect();
                answer.made_by.push(Contribution { version, required, fields, through });
            } else if through.is_empty() {
                // It was read for the scope of the proxy only.
            } else if answer.also_read.len() < MAX_LISTED {
                answer.also_read.push(ReadObject { version, through });
            } else {
                answer.also_read_left_out += 1;
            }
        }
    }
}

/// The [`rank`] of workloads.
const WORKLOAD_RANK: u8 = 3;

/// Configuration first, then services, then workloads: the order in which effects are of interest.
fn rank(record: &InputRecord) -> u8 {
    match kind_of(record.collection()) {
        Some(Kind::Pod | Kind::EndpointSlice | Kind::Node | Kind::Secret) => WORKLOAD_RANK,
        Some(Kind::Namespace | Kind::ConfigMap) => 2,
        Some(Kind::Service) => 1,
        Some(_) => 0,
        None => WORKLOAD_RANK + 1,
    }
}

/// The creation time of an object, if its model has one.
fn created(record: &InputRecord) -> i64 {
    let value = record.value_json().unwrap_or_default();
    let of = |pointer: &str| value.pointer(pointer).and_then(Value::as_i64);
    of("/created").or_else(|| of("/meta/created")).unwrap_or_default()
}
