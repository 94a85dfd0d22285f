//! Kinds of CustomResourceDefinitions, read while their definition exists (C04).

use std::collections::BTreeSet;

use serde_json::Value;
use sluice_kube::{Api, ApiError, Backoff, ListWatch, Receiver, Resource, WatchEvent};
use sluice_model::Text;
use sluice_parse::KindInfo;
use tokio::sync::watch;
use tracing::info;

use super::objects::ObjectsReceiver;
use super::publish;

/// Names of the definitions, such as `gateways.networking.istio.io`; `None` before the first list.
pub(super) type Defined = Option<BTreeSet<Text>>;

/// Publishes the names of the existing definitions.
pub(super) struct DefinitionsReceiver {
    defined: watch::Sender<Defined>,
    names: BTreeSet<Text>,
}

impl DefinitionsReceiver {
    pub(super) fn new(defined: watch::Sender<Defined>) -> Self {
        Self { defined, names: BTreeSet::new() }
    }

    fn publish(&self) {
        publish(&self.defined, &self.names);
    }
}

impl Receiver for DefinitionsReceiver {
    fn begin_list(&mut self) {
        self.names.clear();
    }

    fn listed(&mut self, objects: Vec<Value>) {
        self.names.extend(objects.iter().filter_map(name));
    }

    fn end_list(&mut self) {
        self.publish();
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Apply(object) => self.names.extend(name(&object)),
                WatchEvent::Delete(object) => {
                    if let Some(name) = name(&object) {
                        self.names.remove(&name);
                    }
                }
            }
        }
        self.publish();
    }

    fn absent(&mut self) {
        self.names.clear();
        self.publish();
    }
}

fn name(object: &Value) -> Option<Text> {
    object.pointer("/metadata/name").and_then(Value::as_str).map(Text::from)
}

/// Lists and watches a kind while it is defined. A kind that is not defined has no objects.
pub(super) async fn follow(
    api: Api,
    info: &'static KindInfo,
    namespace: Option<Text>,
    mut backoff: Backoff,
    mut objects: ObjectsReceiver,
    mut definitions: watch::Receiver<Defined>,
) {
    let definition = Text::from(format!("{}.{}", info.plural, info.group));
    loop {
        let is_defined = |defined: &Defined| defined.as_ref().map(|names| names.contains(&definition));
        let now = is_defined(&definitions.borrow_and_update());
        if now == Some(true) {
            match served_version(&api, info).await {
                Some(version) => {
                    info!(kind = %info.kind, version, "kind is defined");
                    let resource = Resource::new(info, version, namespace.clone());
                    // Returns when the API server no longer serves the kind.
                    objects = ListWatch::new(api.clone(), resource, backoff.clone(), objects).run().await;
                }
                // The definition exists, but the kind is not served yet, or not in a supported version.
                None => tokio::task::block_in_place(|| objects.absent()),
            }
            // The API server may serve the kind later without a change of the definition.
            tokio::select! {
                changed = definitions.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(backoff.failed()) => {}
            }
            continue;
        }
        if now == Some(false) {
            tokio::task::block_in_place(|| objects.absent());
            backoff.reset();
        }
        if definitions.changed().await.is_err() {
            return;
        }
    }
}

/// The version in which a kind is read: the first supported version that the API server serves.
async fn served_version(api: &Api, info: &'static KindInfo) -> Option<&'static str> {
    match api.versions(info.group).await {
        Ok(served) => info.versions.iter().copied().find(|version| served.iter().any(|it| it == version)),
        Err(ApiError::Absent | ApiError::Gone) => None,
        // The list fails too, and logs the failure.
        Err(ApiError::Unreachable(_) | ApiError::Other(_)) => info.versions.first().copied(),
    }
}
