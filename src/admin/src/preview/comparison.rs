//! What differs for connected proxies between two states of the graph.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Instant;

use serde::Serialize;
use sluice_engine::Snapshot;
use sluice_graph::Handles;
use sluice_model::{Layer, ProxyKey, ResourceType, Text};
use sluice_xds::{StatusReader, Subscriptions, short_id, short_name};

use super::concerned::{ConcernedProxy, ProxyGroup, groups};
use super::fields::{FieldChange, changed_fields};
use super::merged_groups::merge;
use super::parts::{ChangedParts, Names, OutputsByType, Parts};
use super::table_size::TableSizes;

/// Changed resources that are listed.
const MAX_LISTED: usize = 200;
/// Listed resources whose fields are compared.
const MAX_WITH_FIELDS: usize = 50;
/// Segments of a resource that are compared field by field.
const MAX_SEGMENTS: usize = 50;

/// The result.
pub(super) struct Compared {
    pub(super) types: Vec<TypeSummary>,
    pub(super) changes: Vec<ChangedResource>,
    pub(super) changes_left_out: usize,
    /// The proxies that would be sent something, as `pod.namespace`.
    pub(super) proxies: BTreeSet<Text>,
    pub(super) bytes: u64,
    pub(super) is_complete: bool,
}

/// Changed resources of a type.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TypeSummary {
    r#type: &'static str,
    added: usize,
    changed: usize,
    removed: usize,
    /// Proxies that would be sent resources of the type.
    proxies: usize,
    /// Bytes that would be sent to all of them.
    bytes: u64,
}

/// A changed resource, as one group of proxies sees it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangedResource {
    r#type: &'static str,
    name: Text,
    /// `added`, `changed` or `removed`.
    change: &'static str,
    /// Size in bytes before and after.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_before: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_after: Option<usize>,
    /// Proxies that see this change, and would be sent it.
    proxies: usize,
    /// One of them.
    example: Text,
    /// Changed parts of an assembled resource, such as virtual hosts; not all if there are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Text>,
    /// The fields that differ, with both values; not all if there are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<FieldChange>,
    /// Number of fields that are not listed.
    fields_left_out: usize,
}

/// One difference: a name in a group of proxies.
struct Difference<'a> {
    kind: ResourceType,
    name: Text,
    before: Option<Parts>,
    after: Option<Parts>,
    sizes: (Option<usize>, Option<usize>),
    segments: BTreeSet<Text>,
    /// The proxies that would be sent it, by group. Resources of a group share the list if they can.
    proxies: Vec<ProxyList<'a>>,
}

type ProxyList<'a> = Rc<[&'a ConcernedProxy]>;

/// Compares both states for the connected proxies, until the deadline.
pub(super) fn compare(
    status: &StatusReader,
    handles: &Handles,
    before: &Snapshot,
    after: &Snapshot,
    deadline: Instant,
) -> Compared {
    let changed = changed_parts(handles, before, after);
    let subscriptions = status.subscriptions();
    let proxies: BTreeSet<ProxyKey> = subscriptions.proxies().cloned().collect();
    let is_changed = |kind, layer: &Layer| changed.contains_key(&(kind, layer.clone()));
    let outputs = OutputsByType::new(handles, &[before, after]);
    let groups = groups(&proxies, handles, (before, after), is_changed);
    let groups = merge(groups, &outputs, after, &changed);
    let mut comparison = Comparison {
        outputs: &outputs,
        before,
        after,
        changed: &changed,
        subscriptions: &subscriptions,
        sizes: (TableSizes::new(&outputs, before), TableSizes::new(&outputs, after)),
        deadline,
        is_complete: true,
    };
    let mut differences = Vec::new();
    for group in &groups {
        comparison.compare_group(group, &mut differences);
    }
    let is_complete = comparison.is_complete;
    summarize(differences, is_complete)
}

fn changed_parts(handles: &Handles, before: &Snapshot, after: &Snapshot) -> ChangedParts {
    let mut changed = ChangedParts::new();
    for key in handles.resources.iter().flat_map(|of| after.changes_since(before, of)).map(|event| event.key) {
        changed.entry((key.resource_type, key.layer.clone())).or_default().entry(key.name.clone()).or_default();
    }
    for key in handles.segments.iter().flat_map(|of| after.changes_since(before, of)).map(|event| event.key) {
        let names = changed.entry((key.resource_type, key.layer.clone())).or_default();
        names.entry(key.name.clone()).or_default().insert(key.segment.clone());
    }
    changed
}

struct Comparison<'a> {
    outputs: &'a OutputsByType,
    before: &'a Snapshot,
    after: &'a Snapshot,
    changed: &'a ChangedParts,
    subscriptions: &'a Subscriptions,
    sizes: (TableSizes<'a>, TableSizes<'a>),
    deadline: Instant,
    is_complete: bool,
}

impl Comparison<'_> {
    fn compare_group<'g>(&mut self, group: &'g ProxyGroup, found: &mut Vec<Difference<'g>>) {
        let subscribers = Subscribers::of(group, self.subscriptions);
        for (name, segments) in self.candidates(group) {
            if Instant::now() > self.deadline {
                self.is_complete = false;
                return;
            }
            let (kind, outputs) = (group.kind, self.outputs);
            let before = outputs.resolve(self.before, kind, &group.before, &name, &segments);
            let after = outputs.resolve(self.after, kind, &group.after, &name, &segments);
            if before == after {
                continue;
            }
            // A proxy subscribes to new resources once others refer to them.
            let proxies = match &before {
                None => subscribers.to_type.clone(),
                Some(_) => subscribers.to(&name),
            };
            let Some(first) = proxies.first() else { continue };
            let size = |parts: &Option<Parts>, sizes: &mut TableSizes<'_>, layers: &[Layer]| {
                parts.as_ref().map(|parts| match parts.is_assembled() {
                    true => sizes.size(kind, layers, &name),
                    false => parts.bytes(kind, &first.scope.slots).len(),
                })
            };
            let size_before = size(&before, &mut self.sizes.0, &group.before);
            let size_after = size(&after, &mut self.sizes.1, &group.after);
            let sizes = (size_before, size_after);
            found.push(Difference { kind, name: name.clone(), before, after, sizes, segments, proxies: vec![proxies] });
        }
    }

    /// The names that may differ for a group.
    fn candidates(&self, group: &ProxyGroup) -> Names {
        let mut names = Names::new();
        let mut add = |found: Names| {
            for (name, segments) in found {
                names.entry(name).or_default().extend(segments);
            }
        };
        for layer in group.after.iter() {
            if let Some(changed) = self.changed.get(&(group.kind, layer.clone())) {
                add(changed.clone());
            }
        }
        if group.has_other_layers() {
            for layer in group.before.iter().filter(|layer| !group.after.contains(layer)) {
                add(self.outputs.names(self.before, group.kind, layer));
            }
            for layer in group.after.iter().filter(|layer| !group.before.contains(layer)) {
                add(self.outputs.names(self.after, group.kind, layer));
            }
        }
        names
    }
}

/// The proxies of a group that subscribe to its type.
struct Subscribers<'a, 'g> {
    kind: ResourceType,
    subscriptions: &'a Subscriptions,
    to_type: ProxyList<'g>,
    /// All of them subscribe to all resources of the type.
    to_all: bool,
}

impl<'a, 'g> Subscribers<'a, 'g> {
    fn of(group: &'g ProxyGroup, subscriptions: &'a Subscriptions) -> Self {
        let kind = group.kind;
        let subscribed = group.proxies.iter().filter(|proxy| subscriptions.has_type(&proxy.key, kind));
        let to_type: ProxyList<'g> = subscribed.collect();
        let to_all = to_type.iter().all(|proxy| subscriptions.wants_all(&proxy.key, kind));
        Self { kind, subscriptions, to_type, to_all }
    }

    /// Those that subscribe to the resource of this name.
    fn to(&self, name: &Text) -> ProxyList<'g> {
        if self.to_all {
            return self.to_type.clone();
        }
        let is_subscribed = |proxy: &&&ConcernedProxy| self.subscriptions.wants(&proxy.key, self.kind, name);
        self.to_type.iter().filter(is_subscribed).copied().collect()
    }
}

fn summarize(mut differences: Vec<Difference<'_>>, is_complete: bool) -> Compared {
    // The same content for the same name is one line, also if the proxies have different layers.
    differences.sort_by(|one, other| {
        let (one_key, other_key) = ((one.kind, &one.name), (other.kind, &other.name));
        one_key.cmp(&other_key).then_with(|| (&one.after, &one.before).cmp(&(&other.after, &other.before)))
    });
    differences.dedup_by(|other, one| {
        let is_same =
            (one.kind, &one.name, &one.before, &one.after) == (other.kind, &other.name, &other.before, &other.after);
        if is_same {
            one.proxies.append(&mut other.proxies);
        }
        is_same
    });
    let mut types: BTreeMap<ResourceType, (TypeSummary, BTreeSet<&ProxyKey>, BTreeSet<&Text>)> = BTreeMap::new();
    let mut counted: BTreeSet<(ResourceType, *const &ConcernedProxy)> = BTreeSet::new();
    for difference in &differences {
        let (summary, proxies, names) = types.entry(difference.kind).or_default();
        let new = difference.proxies.iter().filter(|list| counted.insert((difference.kind, list.as_ptr())));
        proxies.extend(new.flat_map(|list| list.iter()).map(|proxy| &proxy.key));
        summary.bytes += difference.sizes.1.unwrap_or_default() as u64 * difference.proxies() as u64;
        if names.insert(&difference.name) {
            match difference.change() {
                "added" => summary.added += 1,
                "removed" => summary.removed += 1,
                _ => summary.changed += 1,
            }
        }
    }
    let proxies: BTreeSet<&ProxyKey> = types.values().flat_map(|(_, proxies, _)| proxies.iter().copied()).collect();
    let proxies = proxies.into_iter().map(|key| short_id(&key.0)).collect();
    let finish = |(kind, (summary, proxies, _)): (ResourceType, (TypeSummary, BTreeSet<&ProxyKey>, _))| TypeSummary {
        r#type: short_name(kind),
        proxies: proxies.len(),
        ..summary
    };
    let types: Vec<TypeSummary> = types.into_iter().map(finish).collect();
    let listed = differences.iter().take(MAX_LISTED).enumerate();
    let changes = listed.map(|(at, difference)| difference.to_resource(at < MAX_WITH_FIELDS)).collect();
    Compared {
        bytes: types.iter().map(|summary| summary.bytes).sum(),
        types,
        changes,
        changes_left_out: differences.len().saturating_sub(MAX_LISTED),
        proxies,
        is_complete,
    }
}

impl Difference<'_> {
    /// Number of proxies that would be sent it.
    fn proxies(&self) -> usize {
        self.proxies.iter().map(|list| list.len()).sum()
    }

    fn change(&self) -> &'static str {
        match (&self.before, &self.after) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        }
    }

    fn to_resource(&self, with_fields: bool) -> ChangedResource {
        let first = self.proxies.iter().find_map(|list| list.first());
        let (fields, fields_left_out) = match (&self.before, &self.after, first) {
            (Some(before), Some(after), Some(first)) if with_fields && self.segments.len() <= MAX_SEGMENTS => {
                let json = |parts: &Parts| parts.json(self.kind, &first.scope.slots);
                changed_fields(&json(before), &json(after))
            }
            _ => (Vec::new(), 0),
        };
        ChangedResource {
            r#type: short_name(self.kind),
            name: self.name.clone(),
            change: self.change(),
            bytes_before: self.sizes.0,
            bytes_after: self.sizes.1,
            proxies: self.proxies(),
            example: first.map(|proxy| short_id(&proxy.key.0)).unwrap_or_default(),
            parts: self.segments.iter().filter(|name| !name.is_empty()).take(MAX_SEGMENTS).cloned().collect(),
            fields,
            fields_left_out,
        }
    }
}
