//! `history`: the recent changes of objects, the resources that each changed, and the proxies that it concerned.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use sluice_engine::{EpochSummary, HistoryQuery};
use sluice_graph::{Handles, Inputs};
use sluice_model::{ProxyKey, Text};
use sluice_xds::{Audience, ChangedResources, short_id, short_name};

use super::AnswerError;
use super::changes::changed_resources;
use super::names::ObjectName;
use super::objects::{WrittenObject, time_ago, written};
use super::proxies;
use crate::AdminState;

/// Names of resources that are listed for each type.
const MAX_NAMES: usize = 10;
/// Proxies that are listed for each epoch.
const MAX_PROXIES: usize = 20;
/// Epochs that are listed by default, and at most.
pub(crate) const DEFAULT_EPOCHS: usize = 50;
const MAX_EPOCHS: usize = 1_000;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct HistoryQuestion {
    /// Only changes of this object.
    pub(crate) object: Option<String>,
    /// Only changes that concern this proxy.
    pub(crate) proxy: Option<String>,
    pub(crate) namespace: String,
    /// Only changes of this age at most.
    pub(crate) max_age: Option<Duration>,
    /// Maximum number of epochs.
    pub(crate) limit: usize,
}

/// The answer: epochs that changed objects, oldest first.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryAnswer {
    changes: Vec<Change>,
    /// Whether older changes are left out by the limit.
    more: bool,
}

/// The changes of one epoch.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    epoch: u64,
    at: String,
    took_seconds: f64,
    /// The objects that were written, not all if there are hundreds.
    objects: Vec<WrittenObject>,
    /// Number of writes, with those of other inputs.
    writes: usize,
    /// Changed resources by type; absent if there were too many to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<Vec<ChangedType>>,
    /// The connected proxies that it concerns; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxies: Option<ConcernedProxies>,
}

/// Changed resources of a type.
#[derive(Clone, Debug, Serialize)]
struct ChangedType {
    r#type: &'static str,
    /// Number of different names.
    count: usize,
    /// The first names.
    names: Vec<Text>,
}

/// Proxies that see a changed resource and subscribe to it.
#[derive(Clone, Debug, Serialize)]
struct ConcernedProxies {
    count: usize,
    /// The first ones.
    names: Vec<Text>,
}

/// Answers the question. Waits for the dataflow thread.
pub(crate) fn history(state: &AdminState, question: &HistoryQuestion) -> Result<HistoryAnswer, AnswerError> {
    let mut query = question.max_age.into_iter().fold(HistoryQuery::recent(0), HistoryQuery::max_age);
    if let Some(object) = &question.object {
        let object = ObjectName::parse(object, &question.namespace)?;
        for cluster in state.cluster_ids() {
            for input in object.kinds.iter().filter_map(|kind| Inputs::collection(*kind)) {
                query = query.written(input, object.key(&cluster));
            }
        }
    }
    let proxy = question.proxy.as_deref().map(|name| proxies::find(&state.status.proxies(), name, &question.namespace));
    let proxy = proxy.transpose()?.map(|found| found.key);
    let audience_of_proxy = proxy.as_ref().map(|proxy| state.status.audience_of(|key| key == proxy));
    let concerns_proxy = |epoch: &EpochSummary| match (&audience_of_proxy, &proxy) {
        (Some(audience), Some(proxy)) => concerns(&state.handles, audience, proxy, epoch),
        _ => true,
    };
    let epochs = state.engine.history(query);
    let audience = state.status.audience();
    let limit = question.limit.clamp(1, MAX_EPOCHS);
    let of_objects = epochs.iter().rev().map(|epoch| (epoch, written(&epoch.writes)));
    let wanted = of_objects.filter(|(epoch, objects)| !objects.is_empty() && concerns_proxy(epoch));
    let mut wanted = wanted.peekable();
    let mut changes: Vec<Change> = Vec::new();
    while changes.len() < limit
        && let Some((epoch, objects)) = wanted.next()
    {
        changes.push(change(&state.handles, &audience, epoch, objects));
    }
    changes.reverse();
    Ok(HistoryAnswer { changes, more: wanted.peek().is_some() })
}

/// Whether an epoch concerns a proxy, which is the only one of the audience, or may do so.
fn concerns(handles: &Handles, audience: &Audience, proxy: &ProxyKey, epoch: &EpochSummary) -> bool {
    epoch.keys.omitted()
        || epoch.keys.of(&handles.scopes).any(|key| key == proxy)
        || !audience.of(&changed_resources(handles, &epoch.keys)).is_empty()
}

fn change(handles: &Handles, audience: &Audience, epoch: &EpochSummary, objects: Vec<WrittenObject>) -> Change {
    let changed = (!epoch.keys.omitted()).then(|| changed_resources(handles, &epoch.keys));
    let proxies = changed.as_ref().map(|changed| {
        let with_other_scope = epoch.keys.of(&handles.scopes).map(|key| short_id(&key.0));
        let proxies: BTreeSet<Text> = audience.of(changed).into_iter().chain(with_other_scope).collect();
        ConcernedProxies { count: proxies.len(), names: proxies.into_iter().take(MAX_PROXIES).collect() }
    });
    Change {
        epoch: epoch.epoch.0,
        at: time_ago(epoch.age),
        took_seconds: epoch.took.as_secs_f64(),
        objects,
        writes: epoch.write_count,
        resources: changed.map(|changed| by_type(&changed)),
        proxies,
    }
}

fn by_type(changed: &ChangedResources) -> Vec<ChangedType> {
    let mut by_type: BTreeMap<_, BTreeSet<&Text>> = BTreeMap::new();
    for ((kind, _), names) in changed {
        by_type.entry(*kind).or_default().extend(names);
    }
    let of_type = |(kind, names): (_, BTreeSet<&Text>)| ChangedType {
        r#type: short_name(kind),
        count: names.len(),
        names: names.into_iter().take(MAX_NAMES).cloned().collect(),
    };
    by_type.into_iter().map(of_type).collect()
}
