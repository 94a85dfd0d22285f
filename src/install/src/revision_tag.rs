//! Revision tags: names that stand for a revision in labels of namespaces and pods (I09).

use http::Uri;
use serde_json::{Value as Json, json};

use crate::chart::Charts;
use crate::error::InstallError;
use crate::object::KubeObject;
use crate::operator::{DEFAULT_REVISION, InstallInputs, Installation};
use crate::render::Capabilities;

/// The label of the objects of a tag.
const TAG_LABEL: &str = "istio.io/tag";
/// What the names of webhooks for injection end with.
const INJECTION_WEBHOOK: &str = "sidecar-injector.istio.io";
/// Part of the labels that mark objects of an installation, which would remove those of a tag.
const INSTALLATION_LABELS: &str = "operator.istio.io";
/// Name of the configuration that validates objects without a revision. The default revision has it.
pub const DEFAULT_VALIDATOR: &str = "istiod-default-validator";

/// A revision tag.
#[derive(Clone, Debug)]
pub struct RevisionTag {
    /// The tag. The tag `default` makes its revision the default one.
    pub name: String,
    /// The revision that it stands for.
    pub revision: String,
    /// Namespace of the control plane.
    pub namespace: String,
    /// Name of the MutatingWebhookConfiguration. Without it, the name of the chart.
    pub webhook_name: Option<String>,
    /// Whether pods in namespaces without a label are injected.
    pub injects_all_namespaces: bool,
}

impl RevisionTag {
    /// The objects of the tag: the webhooks for injection and a Service, and the default validation for the tag `default`.
    /// `revision` is the MutatingWebhookConfiguration of the revision, whose address, roots and labels they have; `validator`
    /// is the default validation of the cluster.
    ///
    /// # Errors
    /// `revision` has no webhook for injection, or the chart does not render.
    pub fn objects(
        &self,
        revision: &KubeObject,
        validator: Option<&KubeObject>,
        charts: &Charts,
        capabilities: &Capabilities,
    ) -> Result<Vec<KubeObject>, InstallError> {
        let webhooks = revision.json()["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
        let injector = webhooks.iter().find(|webhook| is_injector(webhook)).ok_or_else(|| {
            let name = &revision.key().name;
            InstallError::refused(
                revision.key(),
                format!("could not find sidecar-injector webhook in canonical webhook {name:?}"),
            )
        })?;
        let mut objects = Vec::new();
        for manifest in self.installation()?.render(charts, capabilities)? {
            for mut object in manifest.objects {
                match object.key().kind.as_str() {
                    "MutatingWebhookConfiguration" if object.label(TAG_LABEL) == Some(&self.name) => {
                        for_injection(&mut object, injector);
                        inherit(&mut object, revision);
                        if let Some(name) = &self.webhook_name {
                            object = renamed(&object, name)?;
                        }
                    }
                    "ValidatingWebhookConfiguration"
                        if self.name == DEFAULT_REVISION && object.key().name == DEFAULT_VALIDATOR =>
                    {
                        for_validation(&mut object, injector, validator);
                        inherit(&mut object, revision);
                        object.set_label(TAG_LABEL, &self.name);
                    }
                    "Service" if object.label(TAG_LABEL) == Some(&self.name) => without_installation(&mut object),
                    _ => continue,
                }
                objects.push(object);
            }
        }
        Ok(objects)
    }

    fn installation(&self) -> Result<Installation, InstallError> {
        let mut spec = json!({
            "profile": "minimal",
            "components": {"base": {"enabled": false}},
            "values": {
                "revisionTags": [self.name],
                "sidecarInjectorWebhook": {"enableNamespacesByDefault": self.injects_all_namespaces},
            },
        });
        if self.revision != DEFAULT_REVISION {
            spec["revision"] = self.revision.as_str().into();
        }
        let operator = json!({"apiVersion": "install.istio.io/v1alpha1", "kind": "IstioOperator", "spec": spec});
        let files = vec![(format!("revision tag {}", self.name), operator.to_string())];
        Installation::read(&InstallInputs {
            files,
            namespace: Some(self.namespace.clone()),
            ..InstallInputs::default()
        })
    }
}

/// The configuration of a revision whose webhooks match nothing. It stays, so that the revision can become the default again.
#[must_use]
pub fn deactivated(configuration: &KubeObject) -> KubeObject {
    let never = json!({"matchLabels": {"istio.io/deactivated": "never-match"}});
    let mut configuration = configuration.clone();
    configuration.change(|json| {
        for webhook in json["webhooks"].as_array_mut().into_iter().flatten() {
            webhook["namespaceSelector"] = never.clone();
            webhook["objectSelector"] = never.clone();
        }
    });
    configuration
}

fn is_injector(webhook: &Json) -> bool {
    webhook["name"].as_str().is_some_and(|name| name.ends_with(INJECTION_WEBHOOK))
}

fn for_injection(object: &mut KubeObject, injector: &Json) {
    object.change(|json| {
        for webhook in json["webhooks"].as_array_mut().into_iter().flatten() {
            for field in ["clientConfig", "reinvocationPolicy"] {
                if !injector[field].is_null() {
                    webhook[field] = injector[field].clone();
                }
            }
        }
    });
}

fn for_validation(object: &mut KubeObject, injector: &Json, validator: Option<&KubeObject>) {
    const PATH: &str = "/validate";
    let mut address = injector["clientConfig"].clone();
    if let Some(url) = address["url"].as_str().map(|url| at_path(url, PATH)) {
        address["url"] = url.into();
    }
    if address["service"].is_object() {
        address["service"]["path"] = PATH.into();
    }
    // sluiced changes Ignore to Fail once the webhook is reached, which must not be reverted.
    let known = validator.map_or(&Json::Null, |validator| &validator.json()["webhooks"]);
    let policy_of =
        |name: &Json| known.as_array()?.iter().find(|webhook| webhook["name"] == *name)?.get("failurePolicy");
    object.change(|json| {
        for webhook in json["webhooks"].as_array_mut().into_iter().flatten() {
            webhook["clientConfig"] = address.clone();
            if let Some(policy) = policy_of(&webhook["name"]) {
                webhook["failurePolicy"] = policy.clone();
            }
        }
    });
}

fn at_path(url: &str, path: &str) -> String {
    match url.parse::<Uri>() {
        Ok(uri) => match (uri.scheme(), uri.authority()) {
            (Some(scheme), Some(authority)) => format!("{scheme}://{authority}{path}"),
            _ => url.to_owned(),
        },
        Err(_) => url.to_owned(),
    }
}

/// Adds labels and annotations of the configuration of the revision.
fn inherit(object: &mut KubeObject, revision: &KubeObject) {
    let metadata = &revision.json()["metadata"];
    for (name, value) in metadata["labels"].as_object().into_iter().flatten() {
        if let Some(value) = value.as_str().filter(|_| name != "app") {
            object.set_label(name, value);
        }
    }
    if let Some(annotations) = metadata["annotations"].as_object() {
        object.change(|json| {
            for (name, value) in annotations {
                json["metadata"]["annotations"][name] = value.clone();
            }
        });
    }
    without_installation(object);
}

/// Removes the labels by which an installation finds its objects.
fn without_installation(object: &mut KubeObject) {
    object.change(|json| {
        if let Some(labels) = json["metadata"]["labels"].as_object_mut() {
            labels.retain(|name, _| !name.contains(INSTALLATION_LABELS));
        }
    });
}

fn renamed(object: &KubeObject, name: &str) -> Result<KubeObject, InstallError> {
    let mut json = object.json().clone();
    json["metadata"]["name"] = name.into();
    KubeObject::new(json).ok_or_else(|| InstallError::input("--webhook-name", "a name is expected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration of a revision with these values, as the API server has it.
    fn revision(name: &str, client: Json) -> KubeObject {
        let webhook = json!({
            "name": "rev.namespace.sidecar-injector.istio.io", "clientConfig": client, "reinvocationPolicy": "IfNeeded",
        });
        KubeObject::new(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "istio-sidecar-injector", "annotations": {"own": "x"}, "labels": {
                "app": "sidecar-injector", "istio.io/rev": name, "team": "mesh",
                "operator.istio.io/managed": "Reconcile", "install.operator.istio.io/owning-resource": "mesh",
            }},
            "webhooks": [webhook],
        }))
        .expect("an object")
    }

    fn tag(name: &str, revision: &str) -> RevisionTag {
        RevisionTag {
            name: name.to_owned(),
            revision: revision.to_owned(),
            namespace: "istio-system".to_owned(),
            webhook_name: None,
            injects_all_namespaces: false,
        }
    }

    fn objects(tag: &RevisionTag, revision: &KubeObject, validator: Option<&KubeObject>) -> Vec<KubeObject> {
        let charts = Charts::embedded().expect("charts");
        tag.objects(revision, validator, &charts, &Capabilities::default()).expect("they render")
    }

    #[test]
    fn tag_has_the_address_and_labels_of_its_revision() {
        let service =
            json!({"name": "istiod-canary", "namespace": "istio-system", "path": "/inject/net/a", "port": 443});
        let canary = revision("canary", json!({"service": service, "caBundle": "cm9vdHM="}));
        let objects = objects(&tag("prod", "canary"), &canary, None);
        let keys: Vec<String> = objects.iter().map(|object| object.key().to_string()).collect();
        let expected =
            ["Service istio-system/istiod-revision-tag-prod", "MutatingWebhookConfiguration istio-revision-tag-prod"];
        assert_eq!(keys, expected);
        let webhooks = objects[1].json()["webhooks"].as_array().expect("webhooks");
        assert_eq!(webhooks.len(), 2, "namespaces and pods with the label");
        for webhook in webhooks {
            assert_eq!(webhook["clientConfig"], json!({"service": service, "caBundle": "cm9vdHM="}));
            assert_eq!(webhook["reinvocationPolicy"], "IfNeeded");
            assert!(webhook.to_string().contains(r#""values":["prod"]"#), "{webhook}");
        }
        assert_eq!(objects[0].json()["spec"]["selector"], json!({"app": "istiod", "istio.io/rev": "canary"}));
        for (object, app) in objects.iter().zip(["istiod", "sidecar-injector"]) {
            let labels = object.json()["metadata"]["labels"].to_string();
            assert!(!labels.contains("operator.istio.io"), "an installation would remove it: {labels}");
            let stated = [object.label("app"), object.label("istio.io/rev"), object.label(TAG_LABEL)];
            assert_eq!(stated, [Some(app), Some("canary"), Some("prod")]);
        }
        assert_eq!((objects[1].label("team"), objects[1].annotation("own")), (Some("mesh"), Some("x")));
    }

    #[test]
    fn tag_default_selects_by_the_label_of_injection_and_validates() {
        let canary = revision("canary", json!({"url": "https://mesh.example:15017/inject/net/a"}));
        let validator = KubeObject::new(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": DEFAULT_VALIDATOR},
            "webhooks": [{"name": "validation.istio.io", "failurePolicy": "Fail"}],
        }));
        let mut default = tag("default", "canary");
        default.injects_all_namespaces = true;
        let objects = objects(&default, &canary, validator.as_ref());
        let find = |kind: &str| objects.iter().find(|object| object.key().kind == kind).expect(kind).json();
        let mutating = find("MutatingWebhookConfiguration");
        assert_eq!(mutating["metadata"]["name"], "istio-revision-tag-default");
        assert_eq!(mutating["webhooks"].as_array().map(Vec::len), Some(5));
        assert_eq!(mutating["webhooks"][0]["clientConfig"]["url"], "https://mesh.example:15017/inject/net/a");
        let validating = find("ValidatingWebhookConfiguration");
        assert_eq!(validating["metadata"]["labels"][TAG_LABEL], "default");
        let webhook = &validating["webhooks"][0];
        assert_eq!(webhook["clientConfig"], json!({"url": "https://mesh.example:15017/validate"}));
        assert_eq!(webhook["failurePolicy"], "Fail", "that of the cluster stays");
    }

    #[test]
    fn webhooks_may_have_another_name_and_have_to_be_there() {
        let mut prod = tag("prod", "default");
        prod.webhook_name = Some("own".to_owned());
        let own = objects(&prod, &revision("default", json!({"url": "https://a/inject"})), None);
        assert!(own.iter().any(|object| object.key().to_string() == "MutatingWebhookConfiguration own"));
        let mut empty = revision("default", Json::Null);
        empty.change(|json| json["webhooks"] = json!([{"name": "other.example.com"}]));
        let charts = Charts::embedded().expect("charts");
        let error = prod.objects(&empty, None, &charts, &Capabilities::default()).expect_err("no webhook");
        assert!(error.to_string().contains("could not find sidecar-injector webhook"), "{error}");
    }

    #[test]
    fn deactivated_webhooks_match_nothing() {
        let off = deactivated(&revision("default", json!({"url": "https://a/inject"})));
        let never = json!({"matchLabels": {"istio.io/deactivated": "never-match"}});
        assert_eq!(off.json()["webhooks"][0]["namespaceSelector"], never);
        assert_eq!(off.json()["webhooks"][0]["objectSelector"], never);
        assert_eq!(off.json()["webhooks"][0]["clientConfig"]["url"], "https://a/inject");
    }
}
