//! Whether an installation is possible: rights, versions, and what else is in the cluster. Findings that
//! `istioctl x precheck` also makes have its codes (I06).

mod versions;

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::chart::Charts;
use crate::cluster::TargetCluster;
use crate::error::InstallError;
use crate::manifest::Manifest;
use crate::object::{KubeObject, ObjectKey};
use crate::operator::{Component, Installation};
use crate::ownership::helm_release;
use crate::render::Capabilities;

pub use versions::FromVersion;

/// What an installation does with objects.
const VERBS: [&str; 5] = ["get", "list", "create", "patch", "delete"];
/// Selects the control planes of a cluster.
const CONTROL_PLANES: &str = "app=istiod";
/// Selects the webhooks for injection.
const INJECTORS: &str = "app=sidecar-injector";

/// How serious a finding is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Severity {
    /// The installation would fail, or break another one.
    Error,
    /// The user should know it.
    Warning,
}

/// A result of a check.
#[derive(Clone, Debug)]
pub struct PrecheckFinding {
    /// How serious it is.
    pub severity: Severity,
    /// The object, or what was checked.
    pub subject: String,
    /// What is wrong, and what to do.
    pub reason: String,
    /// The code of `istioctl`, such as `IST0141`, if it has one.
    pub code: Option<&'static str>,
}

impl PrecheckFinding {
    fn new(severity: Severity, subject: impl ToString, reason: impl Into<String>) -> Self {
        Self { severity, subject: subject.to_string(), reason: reason.into(), code: None }
    }

    fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    fn error(subject: impl ToString, reason: impl Into<String>) -> Self {
        Self::new(Severity::Error, subject, reason)
    }
}

/// Checks whether a cluster permits an installation, and whether changes since an earlier version concern it. It writes nothing.
///
/// # Errors
/// The API server does not answer, or a chart does not render.
pub async fn precheck(
    installation: &Installation,
    charts: &Charts,
    cluster: &TargetCluster,
    from_version: Option<FromVersion>,
) -> Result<Vec<PrecheckFinding>, InstallError> {
    let capabilities = cluster.capabilities().await?;
    let mut findings = Vec::new();
    findings.extend(kubernetes_version(charts, &capabilities));
    if !findings.is_empty() {
        // The charts do not render.
        return Ok(findings);
    }
    let manifests = installation.render_for(charts, &capabilities, cluster).await?;
    findings.extend(rights(&manifests, cluster).await?);
    findings.extend(releases(&manifests, cluster).await?);
    findings.extend(control_planes(installation, cluster).await?);
    findings.extend(injectors(installation, &manifests, cluster).await?);
    findings.extend(definitions(&manifests, cluster).await?);
    findings.extend(versions::gateway_api(cluster).await?);
    if let Some(from) = from_version {
        findings.extend(versions::changes_since(from, cluster).await?);
    }
    Ok(findings)
}

fn kubernetes_version(charts: &Charts, capabilities: &Capabilities) -> Option<PrecheckFinding> {
    let constraint = charts.control_plane.kube_version.as_deref()?;
    let bound = constraint.trim_start_matches(">=").split('.').map_while(|part| part.parse::<u32>().ok());
    let bound: Vec<u32> = bound.take(2).collect();
    let is_met = capabilities.version().is_some_and(|(major, minor)| [major, minor].as_slice() >= bound.as_slice());
    let reason = format!("{} does not meet {constraint}", capabilities.kube_version);
    (!is_met).then(|| PrecheckFinding::error("Kubernetes", reason).with_code("IST0142"))
}

/// The rights of the caller for each kind and namespace.
async fn rights(manifests: &[Manifest], cluster: &TargetCluster) -> Result<Vec<PrecheckFinding>, InstallError> {
    let mut kinds = BTreeSet::new();
    for object in manifests.iter().flat_map(|manifest| &manifest.objects) {
        let ObjectKey { api_version, kind, namespace, .. } = object.key().clone();
        kinds.insert(ObjectKey { api_version, kind, namespace, name: String::new() });
    }
    let mut findings = Vec::new();
    for key in kinds {
        let mut missing = Vec::new();
        for verb in VERBS {
            if !cluster.may(verb, &key).await? {
                missing.push(verb);
            }
        }
        if !missing.is_empty() {
            let place = if key.namespace.is_empty() { String::new() } else { format!(" in {}", key.namespace) };
            let reason = format!("the current user may not {} objects of this kind{place}", missing.join(", "));
            let finding = PrecheckFinding::error(format!("{} ({})", key.kind, key.api_version), reason);
            findings.push(finding.with_code("IST0141"));
        }
    }
    Ok(findings)
}

/// Objects that a release of helm has.
async fn releases(manifests: &[Manifest], cluster: &TargetCluster) -> Result<Vec<PrecheckFinding>, InstallError> {
    let mut findings = Vec::new();
    for object in manifests.iter().flat_map(|manifest| &manifest.objects) {
        let found = cluster.get(object.key()).await?;
        if let Some(release) = found.as_ref().and_then(helm_release) {
            let reason =
                format!("it belongs to the release {release} of helm, which the installation would not take over");
            findings.push(PrecheckFinding::error(object.key(), reason));
        }
    }
    Ok(findings)
}

/// Other control planes.
async fn control_planes(
    installation: &Installation,
    cluster: &TargetCluster,
) -> Result<Vec<PrecheckFinding>, InstallError> {
    if installation.components.iter().all(|spec| spec.component != Component::Pilot) {
        return Ok(Vec::new());
    }
    let mut findings = Vec::new();
    for found in cluster.list(("apps/v1", "Deployment"), CONTROL_PLANES).await? {
        let revision = found.label("istio.io/rev").unwrap_or("default");
        let is_same_namespace = found.key().namespace == installation.namespace;
        findings.push(match (revision == installation.revision, is_same_namespace) {
            (true, false) => {
                let reason =
                    format!("a control plane of revision {revision} is in another namespace; choose another revision");
                PrecheckFinding::error(found.key(), reason)
            }
            (true, true) if installation.owner(Component::Pilot).owns(&found) => continue,
            (true, true) => PrecheckFinding::new(
                Severity::Warning,
                found.key(),
                format!("a control plane of revision {revision} exists, and is replaced"),
            ),
            (false, _) => PrecheckFinding::new(
                Severity::Warning,
                found.key(),
                format!("a control plane of revision {revision} runs beside this one"),
            ),
        });
    }
    Ok(findings)
}

/// Webhooks of others that inject the same pods.
async fn injectors(
    installation: &Installation,
    manifests: &[Manifest],
    cluster: &TargetCluster,
) -> Result<Vec<PrecheckFinding>, InstallError> {
    const KIND: (&str, &str) = ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration");
    let rendered: Vec<&KubeObject> =
        manifests.iter().flat_map(|manifest| &manifest.objects).filter(|object| object.key().kind == KIND.1).collect();
    let wanted: BTreeSet<String> = rendered.iter().flat_map(|object| selectors(object.json())).collect();
    let mut findings = Vec::new();
    for found in cluster.list(KIND, INJECTORS).await? {
        let is_replaced = rendered.iter().any(|object| object.key() == found.key());
        if is_replaced || installation.owner(Component::Pilot).owns(&found) {
            continue;
        }
        if selectors(found.json()).iter().any(|selector| wanted.contains(selector)) {
            let reason = "it injects the same pods; remove it, or choose another revision or other revision tags";
            findings.push(PrecheckFinding::error(found.key(), reason));
        }
    }
    Ok(findings)
}

/// The selectors of webhooks as texts.
fn selectors(configuration: &Json) -> Vec<String> {
    let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
    webhooks
        .map(|webhook| {
            format!("{} {}", canonical(&webhook["namespaceSelector"]), canonical(&webhook["objectSelector"]))
        })
        .collect()
}

/// A selector with its requirements in order.
fn canonical(selector: &Json) -> String {
    let mut parts: Vec<String> =
        selector["matchExpressions"].as_array().into_iter().flatten().map(Json::to_string).collect();
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    parts.extend(labels.map(|(name, value)| format!("{name}={value}")));
    parts.sort();
    parts.join(",")
}

/// CRDs of the cluster that the installation would change or that are missing.
async fn definitions(manifests: &[Manifest], cluster: &TargetCluster) -> Result<Vec<PrecheckFinding>, InstallError> {
    let mut findings = Vec::new();
    let rendered = manifests.iter().flat_map(|manifest| &manifest.objects);
    let rendered: Vec<&KubeObject> =
        rendered.filter(|object| object.key().kind == "CustomResourceDefinition").collect();
    for definition in &rendered {
        let Some(found) = cluster.get(definition.key()).await? else { continue };
        let versions = definition.json()["spec"]["versions"].as_array().into_iter().flatten();
        let known: Vec<&Json> = versions.map(|version| &version["name"]).collect();
        let stored = found.json()["status"]["storedVersions"].as_array().into_iter().flatten();
        let unknown: Vec<&str> = stored.filter(|version| !known.contains(version)).filter_map(Json::as_str).collect();
        if !unknown.is_empty() {
            let reason =
                format!("objects are stored in versions that the new definition does not have: {}", unknown.join(", "));
            findings.push(PrecheckFinding::error(found.key(), reason));
        }
    }
    let key = ObjectKey {
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        namespace: String::new(),
        name: "virtualservices.networking.istio.io".to_owned(),
    };
    if rendered.is_empty() && cluster.get(&key).await?.is_none() {
        let reason = "the cluster does not have Istio's CRDs, and the installation does not create them";
        findings.push(PrecheckFinding::new(Severity::Warning, key, reason));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_equal_in_any_order() {
        let configuration =
            |expressions: Json| json!({"webhooks": [{"namespaceSelector": {"matchExpressions": expressions}}]});
        let (a, b) = (json!({"key": "a", "operator": "Exists"}), json!({"key": "b", "operator": "DoesNotExist"}));
        assert_eq!(selectors(&configuration(json!([a, b]))), selectors(&configuration(json!([b, a]))));
        assert_ne!(selectors(&configuration(json!([a]))), selectors(&configuration(json!([b]))));
    }

    #[test]
    fn old_kubernetes_is_a_finding() {
        let charts = Charts::embedded().expect("charts");
        let version = |text: &str| {
            let capabilities = Capabilities { kube_version: text.to_owned(), ..Capabilities::default() };
            kubernetes_version(&charts, &capabilities).map(|finding| finding.reason)
        };
        assert_eq!(version("v1.34.1+k3s1"), None);
        assert_eq!(version("v1.24.9").as_deref(), Some("v1.24.9 does not meet >=1.25.0-0"));
    }
}
