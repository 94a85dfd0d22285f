//! Watches of the managed objects of all kinds.

use futures::FutureExt as _;
use serde_json::Value;
use sluice_kube::{Api, ByKey, KubeOptions, ListWatch, ObjectsByKey};
use sluice_model::Text;
use sluice_model::gateway_api::DeployedKind;
use sluice_tasks::restart_with;
use tokio::task::JoinSet;

use crate::kinds::managed_resource;
use crate::stored::{DeployedId, StoredObject, StoredObjects};

/// Starts the watches. They end when the set is dropped.
pub(crate) fn start(api: &Api, options: KubeOptions, stored: &StoredObjects) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for kind in DeployedKind::ALL {
        let receiver = ByKey::new(Managed { kind, stored: stored.clone() });
        let mut watch = ListWatch::new(api.clone(), managed_resource(kind), options.backoff(), receiver);
        tasks.spawn(async move {
            let (_, name) = kind.names();
            let task = format!("watch of deployed {name}");
            restart_with(&task, &mut watch, |watch| watch.run().boxed()).await;
        });
    }
    tasks
}

/// Passes the objects of a kind to the stored objects.
struct Managed {
    kind: DeployedKind,
    stored: StoredObjects,
}

impl ObjectsByKey for Managed {
    type Key = DeployedId;

    fn key(&self, object: &Value) -> Option<DeployedId> {
        let text = |field: &str| Text::from(object["metadata"][field].as_str().unwrap_or_default());
        Some(DeployedId { kind: self.kind, namespace: text("namespace"), name: text("name") })
    }

    fn set(&mut self, id: DeployedId, object: &Value) {
        self.stored.observe(id, StoredObject::of(object));
    }

    fn remove(&mut self, id: &DeployedId) {
        self.stored.remove(id);
    }

    fn listed(&mut self) {
        self.stored.listed(self.kind);
    }
}
