//! Writes statuses, while this replica leads (K14).

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::Client;
use kube::Resource as Typed;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::{Map, Value as Json, json};
use sluice_engine::{Engine, NamespacedName, Published, StatusChange, Value};
use sluice_kube::{Backoff, RequestError, Term, next_batch_or_due, request};
use sluice_tasks::FailedAttempts;
use tokio::time::Instant;
use tracing::{debug, warn};

/// Time in which the informer has to report a written status. The status is written again after that.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(60);
/// The wait after the first failure of an object. It doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest wait after a failure.
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Maximum number of requests at a time.
const MAX_WRITES: usize = 8;

/// Writes the changes of [`Collection::status_changes`](sluice_engine::Collection::status_changes) into the status
/// subresource of the objects of type `K`.
///
/// A merge patch contains only the fields that differ, so that fields of other writers stay. One replica writes: run it in
/// [`Election::lead`](sluice_kube::Election::lead). Nothing is queued twice for an object: a later change replaces an
/// earlier one. A failed write is retried until it succeeds, or the object has the status, or is deleted.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::Service;
/// use sluice_controller::{Election, Lock, StatusWriter};
/// use sluice_engine::{Engine, NamespacedName, Published, StatusChange};
/// # async fn run(
/// #     engine: Engine, changes: Published<NamespacedName, StatusChange<String>>, client: kube::Client,
/// #     election: Election, stop: tokio_util::sync::CancellationToken,
/// # ) {
/// election
///     .lead(Lock::lease("my-controller"), stop, |term| {
///         StatusWriter::<Service, _>::new(&engine, &changes, client.clone(), "my-controller").run(term)
///     })
///     .await;
/// # }
/// ```
pub struct StatusWriter<K, S> {
    engine: Engine,
    changes: Published<NamespacedName, StatusChange<S>>,
    client: Client,
    field_manager: String,
    pending: BTreeMap<NamespacedName, PendingWrite<S>>,
    failures: FailedAttempts,
    of: PhantomData<fn() -> K>,
}

struct PendingWrite<S> {
    change: Arc<StatusChange<S>>,
    due: Instant,
    failures: u32,
}

impl<K: Typed<DynamicType = ()> + 'static, S: Value> StatusWriter<K, S> {
    /// Writes `changes` through `client`, as `field_manager`.
    #[must_use]
    pub fn new(
        engine: &Engine,
        changes: &Published<NamespacedName, StatusChange<S>>,
        client: Client,
        field_manager: &str,
    ) -> Self {
        Self {
            engine: engine.clone(),
            changes: changes.clone(),
            client,
            field_manager: field_manager.to_owned(),
            pending: BTreeMap::new(),
            failures: FailedAttempts::of(&format!("writer of statuses of {}", K::kind(&()))),
            of: PhantomData,
        }
    }

    /// Runs until the term or the engine ends. It writes nothing before all that the changes derive from is synced.
    pub async fn run(mut self, term: impl Into<Term>) {
        let term = term.into();
        // A change that is gone and is there again was written and undone: it is written at once.
        let mut feed = self.engine.feed().only(&self.changes).with_reverted();
        loop {
            let is_synced = self.engine.snapshot().is_synced(&self.changes);
            let due = self.pending.values().map(|pending| pending.due).min().filter(|_| is_synced);
            let Some(batch) = next_batch_or_due(&mut feed, due, term.ended()).await else { return };
            for event in batch.iter().flat_map(|batch| batch.events(&self.changes)) {
                match event.new {
                    Some(change) => {
                        let pending = PendingWrite { change, due: Instant::now(), failures: 0 };
                        self.pending.insert((*event.key).clone(), pending);
                    }
                    None => drop(self.pending.remove(&event.key)),
                }
            }
            if self.engine.snapshot().is_synced(&self.changes) && !self.write_due(&term).await {
                return;
            }
        }
    }

    /// False when the term has ended.
    async fn write_due(&mut self, term: &Term) -> bool {
        let now = Instant::now();
        let due = self.pending.iter().filter(|(_, pending)| pending.due <= now);
        let due: Vec<_> = due.map(|(name, pending)| (name.clone(), pending.change.clone())).collect();
        let this = &*self;
        let writes = due.into_iter().map(|(name, change)| async move {
            let result = term.write(this.write(&name, &change)).await;
            (name, result)
        });
        let results: Vec<_> = futures::stream::iter(writes).buffer_unordered(MAX_WRITES).collect().await;
        for (name, result) in results {
            let Ok(result) = result else { return false };
            let Some(pending) = self.pending.get_mut(&name) else { continue };
            let kind = K::kind(&());
            let wait = match result {
                Ok(()) => {
                    debug!(%kind, object = %name, "wrote a status");
                    pending.failures = 0;
                    OBSERVE_TIMEOUT
                }
                Err(error) => {
                    if let Some(failures) = self.failures.count() {
                        let message = "failed to write a status, retrying; reported once a minute";
                        warn!(%kind, object = %name, %error, failures, "{message}");
                    }
                    pending.failures = pending.failures.saturating_add(1);
                    Backoff::after(pending.failures - 1, FIRST_RETRY, MAX_RETRY)
                }
            };
            pending.due = Instant::now() + wait;
        }
        true
    }

    async fn write(&self, name: &NamespacedName, change: &StatusChange<S>) -> Result<(), RequestError> {
        let namespace = Some(name.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let parameters = PatchParams { field_manager: Some(self.field_manager.clone()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"status": status_patch(&json!(change.is), &json!(change.wanted))}));
        let objects = Request::new(K::url_path(&(), namespace));
        let built = objects.patch_subresource("status", &name.name, &parameters, &patch);
        let built = built.map_err(|error| RequestError::from(kube::Error::BuildRequest(error)))?;
        match request::<Json>(&self.client, built).await {
            // The object has been deleted.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            result => result.map(|_| ()).map_err(RequestError::from),
        }
    }
}

/// The merge patch of a status. Only the fields of this writer are removed.
fn status_patch(is: &Json, wanted: &Json) -> Json {
    if wanted.is_null() && is.is_object() { merge_patch(is, &json!({})) } else { merge_patch(is, wanted) }
}

/// The merge patch (RFC 7386) from one value to another. `null` removes.
fn merge_patch(is: &Json, wanted: &Json) -> Json {
    let Json::Object(wanted) = wanted else { return wanted.clone() };
    let none = Map::new();
    let is = is.as_object().unwrap_or(&none);
    let removed = is.keys().filter(|name| !wanted.contains_key(*name)).map(|name| (name.clone(), Json::Null));
    let changed = wanted.iter().filter(|(name, value)| is.get(*name) != Some(value));
    let changed = changed.map(|(name, value)| (name.clone(), merge_patch(is.get(name).unwrap_or(&Json::Null), value)));
    Json::Object(removed.chain(changed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_patch_has_only_what_differs() {
        let is = json!({"a": 1, "old": true, "deep": {"x": 1, "y": 2}, "list": [1]});
        let wanted = json!({"a": 1, "new": {"z": 1}, "deep": {"x": 1, "y": 3}, "list": [1, 2]});
        let expected = json!({"old": null, "new": {"z": 1}, "deep": {"y": 3}, "list": [1, 2]});
        assert_eq!(merge_patch(&is, &wanted), expected);
        assert_eq!(status_patch(&json!({"a": {"b": 1}}), &Json::Null), json!({"a": null}));
        assert_eq!(merge_patch(&Json::Null, &json!({"a": 1})), json!({"a": 1}));
    }
}
