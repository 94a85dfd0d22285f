//! The objects that a source has sent, and the changes that a response makes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use serde_json::{Value, json};
use sluice_model::{Kind, ObjectKey, ParsedObject, Reject, RejectCause, Severity, Text, label};
use sluice_parse::{KindInfo, parse_object};
use sluice_proto::google::protobuf::Any;
use sluice_proto::istio::mcp::v1alpha1::Resource;
use sluice_proto::json::FieldError;
use sluice_sources::configuration::configuration_kinds;
use sluice_sources::{Change, ChangeOrigin, Cluster, Original};
use sluice_telemetry::unix_time;

use crate::kinds::{RESOURCE_MESSAGE, is_security_policy, type_url};
use crate::resource::{object_of, object_without_spec, split_name};

/// Largest resource. An object of Kubernetes has 1.5 MiB at most.
const MAX_RESOURCE_BYTES: usize = 4 << 20;
/// Number of resources without a valid name that are listed for each kind.
const MAX_LISTED_RESOURCES: usize = 10;

/// The objects of a source. For each object, only a hash of its bytes is kept; of a security policy also the last valid version.
pub(super) struct ReceivedObjects {
    /// The address of the source.
    source: Text,
    cluster: Cluster,
    hasher: RandomState,
    /// By kind; a kind that has not been answered is absent.
    kinds: BTreeMap<Kind, ReceivedKind>,
}

/// The objects of the last response of a kind.
#[derive(Debug, Default)]
pub(super) struct ReceivedKind {
    hashes: BTreeMap<ObjectKey, u64>,
    /// The last valid version of each security policy.
    valid_policies: BTreeMap<ObjectKey, Arc<Change>>,
    /// Resources that are no object, each with the reason.
    invalid: Vec<String>,
    /// Number of further such resources.
    more_invalid: usize,
}

/// A resource whose name is valid.
struct NamedResource {
    /// Its label of the revision.
    revision: Option<String>,
    /// The resource, unless it is too large.
    resource: Result<Resource, FieldError>,
}

/// What a response changes.
#[derive(Debug)]
pub(super) struct ResponseChanges {
    pub(super) changes: Vec<Change>,
    kind: Kind,
    received: ReceivedKind,
}

impl ReceivedObjects {
    /// Without objects. `cluster` is the cluster that the objects are read for.
    pub(super) fn new(source: Text, cluster: Cluster) -> Self {
        Self { source, cluster, hasher: RandomState::new(), kinds: BTreeMap::new() }
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.kinds.values().map(|kind| kind.hashes.len()).sum()
    }

    /// Types that have not been answered yet.
    pub(super) fn not_answered(&self) -> Vec<String> {
        configuration_kinds().filter(|info| !self.kinds.contains_key(&info.kind)).map(type_url).collect()
    }

    /// Resources that are no object, each with its type and the reason.
    pub(super) fn invalid(&self) -> Vec<String> {
        let of_kind = |(kind, received): (&Kind, &ReceivedKind)| {
            let more = Some(received.more_invalid).filter(|more| *more > 0);
            let more = more.map(|more| format!("and {more} more resources of {kind}"));
            received.invalid.iter().cloned().chain(more).collect::<Vec<_>>()
        };
        self.kinds.iter().flat_map(of_kind).collect()
    }

    /// The changes of a response, which has all resources of a kind. A resource whose bytes are those of the last response is no
    /// change. If a response has a resource twice, the last one counts, as in Istio.
    ///
    /// A security policy stays if its resource cannot be read, and if it may be one of the resources without a valid name.
    pub(super) fn compare(&self, info: &'static KindInfo, resources: &[Any]) -> ResponseChanges {
        let received_at = unix_time();
        let empty = ReceivedKind::default();
        let old = self.kinds.get(&info.kind).unwrap_or(&empty);
        let mut received = ReceivedKind::default();
        let mut last: BTreeMap<ObjectKey, (u64, NamedResource)> = BTreeMap::new();
        for (index, any) in resources.iter().enumerate() {
            match self.decode(any) {
                Ok((key, resource)) => {
                    last.insert(key, (self.hasher.hash_one((&any.type_url, &any.value)), resource));
                }
                Err(error) => received.add_invalid(info, index, &error),
            }
        }
        let mut changes = Vec::new();
        let mut of_other_revisions = BTreeSet::new();
        for (key, (hash, NamedResource { revision, resource })) in last {
            let is_unchanged = old.hashes.get(&key) == Some(&hash);
            if is_unchanged {
                received.keep(old, &key, hash);
                continue;
            }
            let object = resource.and_then(|resource| object_of(info, resource));
            let change = match object {
                Ok(object) if !self.cluster.reads_revision_of(info, &object) => {
                    of_other_revisions.insert(key);
                    continue;
                }
                Ok(object) => {
                    let change = self.change(info, &object, received_at);
                    if is_security_policy(info) {
                        received.valid_policies.extend(change.clone().map(|change| (key.clone(), Arc::new(change))));
                    }
                    change
                }
                Err(error) if is_security_policy(info) => {
                    let labels = revision.map(|revision| json!({(label::REVISION): revision})).unwrap_or_default();
                    let object = object_without_spec(info, &key, &labels);
                    if !self.cluster.reads_revision_of(info, &object) {
                        of_other_revisions.insert(key);
                        continue;
                    }
                    received.keep(old, &key, hash);
                    let valid = old.valid_policies.get(&key);
                    self.invalid_policy(info, &object, valid.map(|valid| &**valid), &error, received_at)
                }
                Err(error) => Some(self.invalid_object(info, &key, &error, received_at)),
            };
            if let Some(change) = change {
                received.hashes.insert(key, hash);
                changes.push(change);
            }
        }
        if is_security_policy(info) && !received.invalid.is_empty() {
            // A resource without a valid name may be any policy that the response lacks.
            for (key, hash) in &old.hashes {
                if !received.hashes.contains_key(key) && !of_other_revisions.contains(key) {
                    received.keep(old, key, *hash);
                }
            }
        }
        let gone: BTreeSet<&ObjectKey> = old.hashes.keys().filter(|key| !received.hashes.contains_key(*key)).collect();
        changes.extend(gone.into_iter().map(|key| Change {
            kind: info.kind,
            key: key.clone(),
            object: None,
            origin: self.origin(Text::default(), received_at, None),
        }));
        ResponseChanges { changes, kind: info.kind, received }
    }

    /// Keeps the state after changes that have been committed. Returns whether it is the first response of its kind.
    pub(super) fn accept(&mut self, response: ResponseChanges) -> bool {
        match self.kinds.entry(response.kind) {
            Entry::Vacant(entry) => {
                entry.insert(response.received);
                true
            }
            Entry::Occupied(mut entry) => {
                entry.insert(response.received);
                false
            }
        }
    }

    /// The key of a resource, and the resource itself.
    fn decode(&self, any: &Any) -> Result<(ObjectKey, NamedResource), FieldError> {
        let fail = |path: &str, reason: String| FieldError { path: path.to_owned(), reason };
        if any.type_url.rsplit('/').next() != Some(RESOURCE_MESSAGE) {
            return Err(fail("", format!("is not an {RESOURCE_MESSAGE}")));
        }
        let resource = Resource::decode(any.value.as_slice());
        let mut resource = resource.map_err(|error| fail("", format!("is not a valid {RESOURCE_MESSAGE}: {error}")))?;
        let name = resource.metadata.as_mut().map(|metadata| metadata.name.clone()).unwrap_or_default();
        let (namespace, name) = split_name(&name).map_err(|reason| fail("metadata.name", reason))?;
        let key = ObjectKey::new(self.cluster.id.clone(), namespace, name);
        let revision = resource.metadata.as_ref().and_then(|metadata| metadata.labels.get(label::REVISION).cloned());
        if any.value.len() > MAX_RESOURCE_BYTES {
            let reason = format!("the resource has {} bytes, at most {MAX_RESOURCE_BYTES} are read", any.value.len());
            return Ok((key, NamedResource { revision, resource: Err(fail("body", reason)) }));
        }
        Ok((key, NamedResource { revision, resource: Ok(resource) }))
    }

    fn change(&self, info: &KindInfo, object: &Value, received_at: Duration) -> Option<Change> {
        let parsed = parse_object(&self.cluster.id, &self.cluster.domain, object).ok()?;
        let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
        let origin = self.origin(version.into(), received_at, Original::of(&self.cluster, info, object));
        Some(Change { kind: info.kind, key: parsed.key.clone(), object: Some(Box::new(parsed)), origin })
    }

    /// An object of which only the name is valid.
    fn invalid_object(&self, info: &KindInfo, key: &ObjectKey, error: &FieldError, received_at: Duration) -> Change {
        let rejects = vec![self.reject(info, key, error, "")];
        let parsed = ParsedObject { kind: info.kind, key: key.clone(), object: None, rejects };
        let origin = self.origin(Text::default(), received_at, None);
        Change { kind: info.kind, key: key.clone(), object: Some(Box::new(parsed)), origin }
    }

    /// A security policy of which only the name is valid: its last valid version, or one that denies all that it may deny.
    fn invalid_policy(
        &self,
        info: &KindInfo,
        object_without_spec: &Value,
        valid: Option<&Change>,
        error: &FieldError,
        received_at: Duration,
    ) -> Option<Change> {
        let (mut change, effect) = match valid {
            Some(valid) => (valid.clone(), "; the last valid version stays in effect"),
            None => {
                let mut change = self.change(info, object_without_spec, received_at)?;
                change.origin.original = None;
                change.object.as_mut()?.rejects.clear();
                (change, "; the policy denies all that it may deny")
            }
        };
        change.origin.received = received_at;
        let reject = self.reject(info, &change.key, error, effect);
        change.object.as_mut()?.rejects.push(reject);
        Some(change)
    }

    fn reject(&self, info: &KindInfo, key: &ObjectKey, error: &FieldError, effect: &str) -> Reject {
        Reject {
            kind: info.kind,
            object: key.clone(),
            field_path: error.path.as_str().into(),
            reason: format!("{}{effect} (resource of {})", error.reason, self.source).into(),
            severity: Severity::Error,
            cause: RejectCause::Other,
        }
    }

    fn origin(&self, version: Text, received: Duration, original: Option<Original>) -> ChangeOrigin {
        ChangeOrigin { place: self.source.clone(), version, received, original, ..ChangeOrigin::default() }
    }
}

impl ReceivedKind {
    /// Keeps an object of the response before.
    fn keep(&mut self, old: &Self, key: &ObjectKey, hash: u64) {
        self.hashes.insert(key.clone(), hash);
        self.valid_policies.extend(old.valid_policies.get(key).map(|valid| (key.clone(), valid.clone())));
    }

    fn add_invalid(&mut self, info: &KindInfo, index: usize, error: &FieldError) {
        if self.invalid.len() < MAX_LISTED_RESOURCES {
            self.invalid.push(format!("resource {index} of {}: {error}", type_url(info)));
        } else {
            self.more_invalid += 1;
        }
    }
}

#[cfg(test)]
mod tests;
