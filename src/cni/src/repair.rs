//! Repairs pods with a sidecar that started before the plugin was installed.
//!
//! Their container `istio-validation` finds that traffic is not redirected, ends with exit code 126 and is started again.
//! Rules are written in the network namespace of such a pod, or it is deleted, or labelled for others.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use kube::Client;
use serde_json::{Value, json};
use sluice_kube::{ObjectPath, RequestError};
use tracing::{info, warn};

use crate::node_network::NodeNetwork;
use crate::plugin;
use crate::pod::{NodePod, PodName};
use crate::store::Store;

const PODS: ObjectPath = ObjectPath::new("/api/v1", "pods");
const EVENTS: ObjectPath = ObjectPath::new("/api/v1", "events");

/// What is done with a broken pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Method {
    /// Rules are written.
    Repair,
    /// The pod is deleted.
    Delete,
    /// The pod gets a label: key and value.
    Label(String, String),
}

/// Which pods are broken.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Criteria {
    /// An annotation of pods with a sidecar; empty for all pods.
    pub(crate) annotation: String,
    /// Name of the container; empty for all containers for initialisation.
    pub(crate) container: String,
    /// Its exit code; 0 for any.
    pub(crate) exit_code: i64,
    /// Its termination message; empty for any.
    pub(crate) message: String,
}

impl Criteria {
    fn is_broken(&self, pod: &NodePod) -> bool {
        if !self.annotation.is_empty() && !pod.annotations.contains_key(&self.annotation) {
            return false;
        }
        let containers = pod.init_states.iter();
        let mut named = containers.filter(|state| self.container.is_empty() || state.name == self.container);
        named.any(|state| {
            let ended = state.last.as_ref().is_some_and(|(code, message)| {
                let wanted = self.message.trim();
                (self.exit_code == 0 || self.exit_code == *code) && (wanted.is_empty() || wanted == message.trim())
            });
            // One that has succeeded since is not broken.
            ended && !state.succeeded
        })
    }
}

/// Repairs the pods of a node.
pub(crate) struct Repair {
    pub(crate) criteria: Criteria,
    pub(crate) method: Method,
    pub(crate) network: Arc<NodeNetwork>,
    pub(crate) client: Client,
}

impl Repair {
    /// Follows the pods of a store that nothing else reads.
    pub(crate) async fn run(self, store: Store) -> Result<()> {
        // The UIDs of pods that have been handled: their state changes only when they are started again.
        let mut handled: BTreeMap<PodName, String> = BTreeMap::new();
        loop {
            for name in store.dirty().await {
                let Some(pod) = store.pod(&name) else {
                    handled.remove(&name);
                    continue;
                };
                if handled.get(&name) == Some(&pod.uid) || !self.criteria.is_broken(&pod) {
                    continue;
                }
                match self.handle(&pod).await {
                    Ok(()) => {
                        info!(pod = %name, method = ?self.method, "broken pod is handled");
                        handled.insert(name, pod.uid);
                    }
                    // The next change of the pod, at the latest its next restart, is the next attempt.
                    Err(error) => warn!(pod = %name, error = format!("{error:#}"), "broken pod is not handled"),
                }
            }
        }
    }

    async fn handle(&self, pod: &NodePod) -> Result<()> {
        match &self.method {
            Method::Repair => {
                let (network, pod) = (Arc::clone(&self.network), pod.clone());
                let repair = move || plugin::redirect(&pod, &network.find(&pod)?);
                tokio::task::spawn_blocking(repair).await?
            }
            Method::Delete => {
                let result = self.delete(pod).await;
                self.record(pod, "DeleteBrokenPod", "deleted", "delete", &result).await;
                result
            }
            Method::Label(key, _) if pod.labels.contains_key(key) => Ok(()),
            Method::Label(key, value) => {
                let patch = json!({"metadata": {"labels": {key: value}}});
                let path = PODS.of(&pod.name.namespace, &pod.name.name, "status");
                let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
                let result = self.send(request, &patch).await;
                self.record(pod, "LabelBrokenPod", "labeled", "label", &result).await;
                result
            }
        }
    }

    async fn delete(&self, pod: &NodePod) -> Result<()> {
        let conditions = json!({"uid": pod.uid, "resourceVersion": pod.resource_version});
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions});
        let path = PODS.of(&pod.name.namespace, &pod.name.name, "");
        let request = http::Request::delete(path).header("content-type", "application/json");
        self.send(request, &options).await
    }

    /// Writes an Event about the pod.
    async fn record(&self, pod: &NodePod, reason: &str, done: &str, action: &str, result: &Result<()>) {
        let message = match result {
            Ok(()) => format!("pod detected as broken, {done}"),
            Err(error) => format!("pod detected as broken, but failed to {action}: {error:#}"),
        };
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message,
            "metadata": {"namespace": pod.name.namespace, "generateName": format!("{}.", pod.name.name)},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": pod.name.namespace,
                "name": pod.name.name, "uid": pod.uid},
            "source": {"component": "cni-repair"}, "count": 1,
        });
        let request = http::Request::post(EVENTS.all(&pod.name.namespace)).header("content-type", "application/json");
        if let Err(error) = self.send(request, &event).await {
            warn!(pod = %pod.name, error = format!("{error:#}"), "cannot write an Event");
        }
    }

    async fn send(&self, request: http::request::Builder, body: &Value) -> Result<()> {
        let request = request.body(body.to_string().into_bytes())?;
        let sent = sluice_kube::request::<Value>(&self.client, request).await;
        sent.map(drop).map_err(RequestError::from).context("request to the API server")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(state: Value, last: Value) -> bool {
        let criteria = Criteria {
            annotation: "sidecar.istio.io/status".to_owned(),
            container: "istio-validation".to_owned(),
            exit_code: 126,
            message: String::new(),
        };
        let statuses = json!([{"name": "istio-validation", "state": state, "lastState": {"terminated": last}}]);
        let object = json!({
            "metadata": {"name": "a", "namespace": "b", "uid": "u", "annotations": {"sidecar.istio.io/status": "{}"}},
            "status": {"initContainerStatuses": statuses},
        });
        let pod = NodePod::read(&object).expect("a pod");
        let other = NodePod { annotations: BTreeMap::new(), ..pod.clone() };
        assert!(!criteria.is_broken(&other), "a pod without a sidecar");
        criteria.is_broken(&pod)
    }

    #[test]
    fn only_failed_validation_is_broken() {
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        assert!(broken(waiting.clone(), json!({"exitCode": 126, "reason": "Error"})));
        assert!(!broken(waiting.clone(), json!({"exitCode": 1, "reason": "Error"})));
        assert!(!broken(waiting, json!({})));
        let completed = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        assert!(!broken(completed, json!({"exitCode": 126, "reason": "Error"})));
    }
}
