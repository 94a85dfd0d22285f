//! Kinds of CustomResourceDefinitions, read while their definition exists (C04).

use std::collections::BTreeSet;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::Value;
use sluice_kube::{Api, Backoff, Discovery, ListWatch, ObjectsByKey, Receiver as _, Resource};
use sluice_model::Text;
use sluice_parse::KindInfo;
use sluice_tasks::restart_with;
use tokio::sync::watch;
use tracing::{debug, info};

use super::objects::ObjectsReceiver;
use super::{publish, task_name};

/// Time between the first two checks whether a defined kind is served. It doubles with each further one.
const FIRST_RECHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Longest time between two checks.
const MAX_RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Names of the definitions, such as `gateways.networking.istio.io`; `None` before the first list.
pub(super) type Defined = Option<BTreeSet<Text>>;

/// Publishes the names of the existing definitions.
pub(super) struct Definitions {
    defined: watch::Sender<Defined>,
    names: BTreeSet<Text>,
}

impl Definitions {
    pub(super) fn new(defined: watch::Sender<Defined>) -> Self {
        Self { defined, names: BTreeSet::new() }
    }
}

impl ObjectsByKey for Definitions {
    type Key = Text;

    fn key(&self, object: &Value) -> Option<Text> {
        object["metadata"]["name"].as_str().map(Text::from)
    }

    fn set(&mut self, name: Text, _: &Value) {
        self.names.insert(name);
    }

    fn remove(&mut self, name: &Text) {
        self.names.remove(name);
    }

    fn changed(&mut self) {
        publish(&self.defined, &self.names);
    }
}

/// Lists and watches a kind while it is defined. A kind that is not defined has no objects. The objects of a kind whose
/// definition disappears stay until discovery says that the kind is not served.
pub(super) async fn follow(
    api: Api,
    info: &'static KindInfo,
    namespace: Option<Text>,
    backoff: Backoff,
    mut objects: ObjectsReceiver,
    mut definitions: watch::Receiver<Defined>,
) {
    let cluster = objects.cluster().clone();
    let (group, versions) = cluster.api_of(info);
    let definition = Text::from(format!("{}.{group}", info.plural));
    let mut recheck = Backoff::new(FIRST_RECHECK_INTERVAL, MAX_RECHECK_INTERVAL);
    loop {
        let is_defined = |defined: &Defined| defined.as_ref().map(|names| names.contains(&definition));
        let now = is_defined(&definitions.borrow_and_update());
        if now == Some(true) || (now == Some(false) && objects.has_objects()) {
            let version = match api.discover(group, info.plural, &versions).await {
                Discovery::Served(version) => {
                    objects.served();
                    Some(version)
                }
                // The definition exists, but the kind is not served yet, or not in a supported version.
                Discovery::NotServed => None,
                // The list fails too, and logs the failure.
                Discovery::Unknown(reason) => {
                    debug!(kind = %info.kind, reason, "discovery does not answer about a kind");
                    versions.first().copied()
                }
            };
            match version {
                Some(version) => {
                    info!(kind = %info.kind, version, "kind is defined");
                    let resource = Resource::new(info, (group, version), namespace.clone());
                    let mut watch = ListWatch::new(api.clone(), resource, backoff.clone(), objects);
                    restart_with(&task_name(info), &mut watch, |watch| watch.run_while_served().boxed()).await;
                    objects = watch.into_receiver();
                    recheck.reset();
                }
                None => tokio::task::block_in_place(|| objects.absent()),
            }
            // The API server may serve the kind later without a change of the definition.
            tokio::select! {
                changed = definitions.changed() => match changed {
                    Ok(()) => recheck.reset(),
                    Err(_) => return,
                },
                () = tokio::time::sleep(recheck.failed()) => {}
            }
            continue;
        }
        if now == Some(false) {
            tokio::task::block_in_place(|| objects.absent());
        }
        if definitions.changed().await.is_err() {
            return;
        }
        recheck.reset();
    }
}
