//! Writes the roots into the webhook configurations of the revision (W09, W12, P20), so that the API server trusts the
//! webhooks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use sluice_kube::{
    Api, Backoff, KubeOptions, ListWatch, ObjectPath, Receiver, RequestError, Resource, Term, WatchEvent, WatchStates,
};
use sluice_model::{Text, label};
use sluice_tasks::{FailedAttempts, restart_with};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::metrics::PatchMetrics;
use crate::server::TrustBundle;
use crate::{AuthorityMetrics, api_request};

/// End of the names of webhooks that inject pods. Other webhooks of a mutating configuration are not ours.
const INJECTION_WEBHOOK: &str = "sidecar-injector.istio.io";
const GATEWAYS: ObjectPath = ObjectPath::new("/apis/networking.istio.io/v1", "gateways");

/// A kind of webhook configuration.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum WebhookKind {
    /// MutatingWebhookConfiguration: injection.
    Mutating,
    /// ValidatingWebhookConfiguration: validation.
    Validating,
}

impl WebhookKind {
    fn name(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Validating => "ValidatingWebhookConfiguration",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Mutating => "mutatingwebhookconfigurations",
            Self::Validating => "validatingwebhookconfigurations",
        }
    }

    /// Whether a webhook of a configuration of this kind is served by the control plane in `namespace`.
    fn is_ours(self, webhook: &Value, namespace: &str) -> bool {
        let name = webhook["name"].as_str().unwrap_or_default();
        // Another control plane of the same revision has other roots.
        let is_of_namespace =
            webhook.pointer("/clientConfig/service/namespace").and_then(Value::as_str).is_none_or(|it| it == namespace);
        is_of_namespace && (self == Self::Validating || name.ends_with(INJECTION_WEBHOOK))
    }
}

/// The configurations of a kind by name.
type Configurations = BTreeMap<(WebhookKind, String), Value>;

/// Keeps the roots in webhook configurations up to date.
#[derive(Clone)]
pub struct WebhookConfigurationWriter {
    client: Client,
    cluster: Text,
    system_namespace: Text,
    revision: Text,
    kinds: Vec<WebhookKind>,
    bundle: watch::Receiver<TrustBundle>,
    states: WatchStates,
    options: KubeOptions,
    metrics: PatchMetrics,
}

impl WebhookConfigurationWriter {
    /// Writes into the configurations of these kinds with the label of a revision. `control_plane` is its cluster, namespace
    /// and revision.
    #[must_use]
    pub fn new(
        client: Client,
        control_plane: (Text, Text, Text),
        kinds: Vec<WebhookKind>,
        bundle: watch::Receiver<TrustBundle>,
        metrics: &AuthorityMetrics,
    ) -> Self {
        let (states, options, metrics) = (WatchStates::default(), KubeOptions::default(), metrics.patches.clone());
        let (cluster, system_namespace, revision) = control_plane;
        Self { client, cluster, system_namespace, revision, kinds, bundle, states, options, metrics }
    }

    /// Adds the watched collections to `states`.
    #[must_use]
    pub fn with_states(self, states: WatchStates) -> Self {
        Self { states, ..self }
    }

    /// Runs until the term ends.
    pub async fn run(self, term: impl Into<Term>) {
        let term = term.into();
        let (found, current) = watch::channel(Configurations::new());
        let watching = self.kinds.iter().map(|kind| {
            let resource = Resource::webhook_configurations(kind.name(), kind.plural(), &self.revision);
            let api = Api::new(self.client.clone(), self.cluster.clone(), self.options, self.states.clone());
            let receiver = ConfigurationsReceiver { kind: *kind, found: found.clone(), listed: Configurations::new() };
            let mut watch = ListWatch::new(api, resource, self.options.backoff(), receiver);
            let name = format!("watch of {}", kind.name());
            async move { restart_with(&name, &mut watch, |watch| watch.run().boxed()).await }
        });
        let watching = futures::future::join_all(watching);
        tokio::select! {
            () = term.ended().cancelled() => {}
            _ = watching => {}
            () = self.write_all(current, &term) => {}
        }
    }

    async fn write_all(&self, mut current: watch::Receiver<Configurations>, term: &Term) {
        let mut bundle = self.bundle.clone();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));
        let failures = FailedAttempts::of("webhook configuration writer");
        let mut failed_before = BTreeSet::new();
        // The version that the last write of a configuration replaced: the watch has not delivered that write yet.
        let mut replaced: BTreeMap<(WebhookKind, String), String> = BTreeMap::new();
        loop {
            let roots = bundle.borrow_and_update().roots.clone();
            let configurations = current.borrow_and_update().clone();
            let mut failed = false;
            for ((kind, name), configuration) in &configurations {
                let key = (*kind, name.clone());
                let version = configuration["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                if replaced.get(&key).is_some_and(|replaced| replaced == version) {
                    continue;
                }
                let (change, patched) = match patched(*kind, configuration, &roots, &self.system_namespace) {
                    Some(patched) => ("roots", patched),
                    None => {
                        let closed = fail_closed(*kind, configuration, &self.system_namespace);
                        let Some(closed) = closed.filter(|_| !roots.is_empty()) else { continue };
                        // The next check follows after a growing delay.
                        let Ok(is_called) = term.write(self.webhook_is_called()).await else { return };
                        failed |= !is_called;
                        if !is_called {
                            continue;
                        }
                        ("failurePolicy Fail", closed)
                    }
                };
                self.metrics.attempt(name);
                if failed_before.remove(&key) {
                    self.metrics.retry(name);
                }
                let Ok(written) = term.write(self.write(*kind, name, &patched)).await else { return };
                match written {
                    Ok(()) => {
                        replaced.insert(key, version.to_owned());
                        if *kind == WebhookKind::Validating {
                            self.metrics.validation_updated();
                        }
                        info!(target: "ca", kind = kind.name(), name, change, "wrote a webhook configuration");
                    }
                    // It has changed since it was read. The watch reports that.
                    Err(RequestError::Status { code: 409, .. }) => failed = true,
                    Err(error) => {
                        failed = true;
                        failed_before.insert(key);
                        self.metrics.failure(name);
                        if *kind == WebhookKind::Validating {
                            let code = match &error {
                                RequestError::Status { code, .. } => Some(*code),
                                _ => None,
                            };
                            self.metrics.validation_failed(code);
                        }
                        if let Some(failures) = failures.count() {
                            warn!(
                                target: "ca", kind = kind.name(), name, change, %error, failures,
                                "failed to write a webhook configuration, retrying; reported once a minute"
                            );
                        }
                    }
                }
            }
            let retry = async {
                if failed {
                    tokio::time::sleep(backoff.failed()).await;
                } else {
                    backoff.reset();
                    std::future::pending().await
                }
            };
            tokio::select! {
                changed = bundle.changed() => if changed.is_err() { return },
                changed = current.changed() => if changed.is_err() { return },
                () = retry => {}
            }
        }
    }

    /// Whether the API server calls the webhook for validation: it refuses an object that the webhook always refuses (W12).
    /// The object is created in a dry run, so it is not stored if the webhook is not called.
    async fn webhook_is_called(&self) -> bool {
        let path = format!("{}?dryRun=All", GATEWAYS.all(&self.system_namespace));
        let object = json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "Gateway",
            "metadata": {
                "name": "invalid-gateway",
                "namespace": self.system_namespace.as_str(),
                // Webhooks for validation select objects by this label.
                "labels": {"istio.io/rev": self.revision.as_str()},
                "annotations": {label::ALWAYS_REJECT: "true"},
            },
            "spec": {},
        });
        match api_request::send(&self.client, Method::POST, path, Some(&object)).await {
            Err(kube::Error::Api(status)) if status.message.contains(label::ALWAYS_REJECT) => true,
            result => {
                let answer =
                    result.err().map_or_else(|| "accepted".to_owned(), |error| RequestError::from(error).to_string());
                debug!(target: "ca", answer, "the API server does not call the webhook for validation yet");
                false
            }
        }
    }

    /// Replaces the configuration if it has not changed since it was read.
    async fn write(&self, kind: WebhookKind, name: &str, object: &Value) -> Result<(), RequestError> {
        let path = ObjectPath::new("/apis/admissionregistration.k8s.io/v1", kind.plural()).of("", name, "");
        api_request::send(&self.client, Method::PUT, path, Some(object)).await?;
        Ok(())
    }
}

/// The configuration with these roots; `None` if it has them, or if there are none.
fn patched(kind: WebhookKind, configuration: &Value, roots: &str, namespace: &str) -> Option<Value> {
    if roots.is_empty() {
        return None;
    }
    let encoded = STANDARD.encode(roots);
    let mut patched = configuration.clone();
    let mut has_changed = false;
    for webhook in patched.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
        if !kind.is_ours(webhook, namespace) || webhook["clientConfig"]["caBundle"] == encoded.as_str() {
            continue;
        }
        if let Some(client) = webhook.get_mut("clientConfig").and_then(Value::as_object_mut) {
            client.insert("caBundle".to_owned(), encoded.clone().into());
            has_changed = true;
        }
    }
    has_changed.then_some(patched)
}

/// The configuration with `failurePolicy: Fail`; `None` if it has it. Only validation begins with another policy, so that
/// objects can be stored before the control plane is ready.
fn fail_closed(kind: WebhookKind, configuration: &Value, namespace: &str) -> Option<Value> {
    let mut closed = configuration.clone();
    let webhooks = closed.get_mut("webhooks").and_then(Value::as_array_mut);
    let mut has_changed = false;
    let is_open = |webhook: &&mut Value| webhook["failurePolicy"] == "Ignore" && kind.is_ours(webhook, namespace);
    for webhook in webhooks.into_iter().flatten().filter(is_open) {
        webhook["failurePolicy"] = "Fail".into();
        has_changed = true;
    }
    (has_changed && kind == WebhookKind::Validating).then_some(closed)
}

struct ConfigurationsReceiver {
    kind: WebhookKind,
    found: watch::Sender<Configurations>,
    /// Those of the list in progress.
    listed: Configurations,
}

impl ConfigurationsReceiver {
    /// The key of an object, and the object with the fields that items of lists do not have.
    fn entry(&self, mut object: Value) -> Option<((WebhookKind, String), Value)> {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let fields = object.as_object_mut()?;
        fields.entry("apiVersion").or_insert_with(|| "admissionregistration.k8s.io/v1".into());
        fields.entry("kind").or_insert_with(|| self.kind.name().into());
        Some(((self.kind, name), object))
    }
}

impl Receiver for ConfigurationsReceiver {
    fn begin_list(&mut self) {
        self.listed.clear();
    }

    fn listed(&mut self, objects: Vec<Value>) {
        let entries: Vec<_> = objects.into_iter().filter_map(|object| self.entry(object)).collect();
        self.listed.extend(entries);
    }

    fn end_list(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        self.found.send_modify(|found| {
            found.retain(|(kind, _), _| *kind != self.kind);
            found.extend(listed);
        });
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        self.found.send_modify(|found| {
            for event in events {
                match event {
                    WatchEvent::Apply(object) => found.extend(self.entry(object)),
                    WatchEvent::Delete(object) => {
                        if let Some((key, _)) = self.entry(object) {
                            found.remove(&key);
                        }
                    }
                }
            }
        });
    }

    fn absent(&mut self) {
        self.begin_list();
        self.end_list();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_webhooks_of_the_control_plane_get_the_roots() {
        let webhook = |name: &str| json!({"name": name, "clientConfig": {"service": {"name": "istiod"}}});
        let configuration =
            json!({"webhooks": [webhook("rev.object.sidecar-injector.istio.io"), webhook("other.example.com")]});
        let bundle = |object: &Value, n: usize| object["webhooks"][n]["clientConfig"]["caBundle"].clone();
        let mutating = patched(WebhookKind::Mutating, &configuration, "roots", "istio-system").expect("a change");
        assert_eq!((bundle(&mutating, 0), bundle(&mutating, 1)), (json!("cm9vdHM="), Value::Null));
        assert_eq!(patched(WebhookKind::Mutating, &mutating, "roots", "istio-system"), None, "it has the roots");
        let validating = patched(WebhookKind::Validating, &configuration, "roots", "istio-system").expect("a change");
        assert_eq!(bundle(&validating, 1), json!("cm9vdHM="));
        assert_eq!(
            patched(WebhookKind::Validating, &configuration, "", "istio-system"),
            None,
            "there are no roots yet"
        );
        let other = json!({"webhooks": [{"name": "v", "clientConfig": {"service": {"namespace": "other"}}}]});
        assert_eq!(patched(WebhookKind::Validating, &other, "roots", "istio-system"), None);
        assert_eq!(patched(WebhookKind::Mutating, &json!({"webhooks": "x"}), "roots", "istio-system"), None);
    }

    #[test]
    fn only_configurations_for_validation_are_closed() {
        let configuration = json!({"webhooks": [{"failurePolicy": "Fail"}, {"failurePolicy": "Ignore"}]});
        let closed = fail_closed(WebhookKind::Validating, &configuration, "istio-system").expect("a change");
        assert_eq!(closed, json!({"webhooks": [{"failurePolicy": "Fail"}, {"failurePolicy": "Fail"}]}));
        assert_eq!(fail_closed(WebhookKind::Validating, &closed, "istio-system"), None);
        assert_eq!(fail_closed(WebhookKind::Mutating, &configuration, "istio-system"), None);
    }
}
