//! The objects that are deployed for a Gateway: templates `kube-gateway`, `agentgateway`, `agentgateway-waypoint` and `waypoint`, and overlays of ConfigMaps (G04).
//!
//! - `data.rs`: the data of the templates.
//! - `overlay.rs`: strategic merge of overlays.

mod data;
mod overlay;

#[cfg(test)]
mod tests;

use serde_json::{Value as Json, json};
use sluice_model::gateway_api::{DeployedKind, GatewayDeployment};
use sluice_model::{ProxyConfigResource, label};
use sluice_parse::yaml::{Limits, parse_documents};
use sluice_template::{Scope, quoted};

use crate::injector::Injector;
use overlay::apply_overlays;

/// What a rendering depends on beside the Gateway and the configuration of the injector.
#[derive(Clone, Copy)]
pub struct GatewayContext<'a> {
    /// All ProxyConfig resources.
    pub proxy_configs: &'a [&'a ProxyConfigResource],
    /// Id of the cluster.
    pub cluster: &'a str,
    /// Version of the API server: major version × 100 + minor version, so 128 is Kubernetes 1.28.
    pub kubernetes_version: u32,
    /// Whether proxies in pods of applications are native sidecars.
    pub native_sidecars: bool,
}

/// A rendered object.
#[derive(Clone, Debug, PartialEq)]
pub struct DeployedObject {
    /// Its kind.
    pub kind: DeployedKind,
    /// Its name. Its namespace is that of the Gateway.
    pub name: String,
    /// The whole object.
    pub object: Json,
}

impl Injector {
    /// The objects of a Gateway, in the order in which they are written.
    ///
    /// # Errors
    /// The configuration has no such template, the template fails, or an overlay cannot be applied.
    pub fn render_gateway(
        &self,
        deployment: &GatewayDeployment,
        context: &GatewayContext<'_>,
    ) -> Result<Vec<DeployedObject>, String> {
        if !deployment.problem.is_empty() {
            return Err(deployment.problem.to_string());
        }
        let name = deployment.template.as_str();
        let template = self
            .config
            .templates
            .get(name)
            .ok_or_else(|| format!("the configuration of the injector has no template {}", quoted(name)))?;
        let data = self.gateway_data(deployment, context);
        let text =
            template.execute(&data, &Scope::new(&self.settings.environment)).map_err(|failure| failure.to_string())?;
        let limits = Limits { allows_duplicate_keys: true, ..Limits::default() };
        let mut objects = Vec::new();
        for document in parse_documents(&text, &limits) {
            let value = document.map_err(|error| format!("template {name} renders invalid YAML: {error}"))?.value;
            let kind = kind_of(&value)?;
            if let Some(object) = apply_overlays(kind, value, &deployment.overlays)? {
                objects.push(finish(kind, object, deployment)?);
            }
        }
        Ok(objects)
    }
}

/// The kind of a rendered object.
fn kind_of(object: &Json) -> Result<DeployedKind, String> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let named = DeployedKind::ALL.into_iter().find(|kind| kind.names() == (text("apiVersion"), text("kind")));
    named.ok_or_else(|| {
        let known =
            DeployedKind::ALL.into_iter().map(DeployedKind::names).map(|(version, kind)| format!("{version} {kind}"));
        let known: Vec<String> = known.collect();
        format!(
            "the template renders an object {} {}, which is none of {}",
            quoted(text("apiVersion")),
            quoted(text("kind")),
            known.join(", ")
        )
    })
}

/// Checks that an object is one of the Gateway, and adds the label by which it is known to be managed.
fn finish(kind: DeployedKind, mut object: Json, deployment: &GatewayDeployment) -> Result<DeployedObject, String> {
    let meta = &deployment.gateway.meta;
    let (_, kind_name) = kind.names();
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (name, namespace) = (text("name"), text("namespace"));
    if meta.namespace != *namespace {
        return Err(format!(
            "the template renders a {kind_name} in namespace {}, expected {}",
            quoted(&namespace),
            quoted(&meta.namespace)
        ));
    }
    let is_expected = deployment.name == *name || deployment.service_account == *name;
    if !is_expected && !name.starts_with(meta.name.as_str()) {
        return Err(format!(
            "the template renders a {kind_name} {}, expected {}, {} or a name that begins with {}",
            quoted(&name),
            quoted(&deployment.name),
            quoted(&deployment.service_account),
            quoted(&meta.name)
        ));
    }
    let labels = crate::pod::meta_mut(&mut object, "labels").ok_or("metadata.labels is not an object")?;
    labels.insert(label::GATEWAY_MANAGED.to_owned(), json!(deployment.controller_label()));
    Ok(DeployedObject { kind, name, object })
}
