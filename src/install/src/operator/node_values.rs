//! The values of the charts of node agents, `cni` and `ztunnel`, and what the control plane has to know of these agents.

use serde_json::{Value as Json, json};

use super::fields::{OperatorFields, text_of};
use super::{Component, DEFAULT_REVISION, Reader};
use crate::error::InstallError;
use crate::values::merge;

/// Values below `global` that the chart `cni` has. The hub and the tag of proxies are not those of the agent.
const CNI_GLOBALS: [&str; 7] =
    ["imagePullPolicy", "imagePullSecrets", "logAsJson", "logging", "networkPolicy", "platform", "resourceScope"];
/// Values below `global` that the chart `ztunnel` has.
const ZTUNNEL_GLOBALS: [&str; 13] = [
    "caAddress",
    "hub",
    "imagePullPolicy",
    "imagePullSecrets",
    "logAsJson",
    "multiCluster",
    "network",
    "networkPolicy",
    "platform",
    "resourceScope",
    "tag",
    "trustBundleName",
    "variant",
];
/// The name of ztunnel, its service account and its rights, unless a value states another one.
const ZTUNNEL_NAME: &str = "ztunnel";

/// The name of ztunnel with values of its chart.
pub(crate) fn ztunnel_name(values: &Json) -> String {
    text_of(&values["resourceName"]).filter(|name| !name.is_empty()).unwrap_or_else(|| ZTUNNEL_NAME.to_owned())
}

impl Reader<'_> {
    /// Whether a component is installed that is not a gateway.
    pub(super) fn has(&self, component: Component, all: &OperatorFields<'_>) -> Result<bool, InstallError> {
        let is_default = self.profile.has(component) || all.get(component.key()).is_some();
        Ok(all.child(component.key())?.flag("enabled")?.unwrap_or(is_default))
    }

    /// The values of the chart `cni`.
    pub(super) fn cni_values(&self, fields: &OperatorFields<'_>) -> Result<Json, InstallError> {
        let mut values = json!({"global": self.globals(&CNI_GLOBALS)});
        if self.profile.chart_profile == "ambient" {
            values["ambient"] = json!({"enabled": true});
        }
        self.complete(values, Component::Cni, fields)
    }

    /// The values of the chart `ztunnel`.
    pub(super) fn ztunnel_values(&self, fields: &OperatorFields<'_>) -> Result<Json, InstallError> {
        let mut values = json!({"global": self.globals(&ZTUNNEL_GLOBALS)});
        values["global"]["istioNamespace"] = self.namespace.as_str().into();
        if self.profile.chart_profile == "ambient" && values["global"]["variant"].is_null() {
            values["global"]["variant"] = "distroless".into();
        }
        let metadata = &self.values["meshConfig"]["defaultConfig"]["proxyMetadata"];
        if !metadata.is_null() {
            values["meshConfig"] = json!({"defaultConfig": {"proxyMetadata": metadata}});
        }
        self.complete(values, Component::Ztunnel, fields)
    }

    /// What the control plane has to know of node agents, under the values of the user.
    pub(super) fn node_settings(&self, all: &OperatorFields<'_>) -> Result<Json, InstallError> {
        let mut pilot = json!({});
        if self.has(Component::Cni, all)? {
            pilot["cni"] = json!({"enabled": true});
        }
        if self.has(Component::Ztunnel, all)? {
            let namespace = all.child(Component::Ztunnel.key())?.text("namespace")?;
            pilot["trustedZtunnelNamespace"] = namespace.unwrap_or_else(|| self.namespace.clone()).into();
            pilot["trustedZtunnelName"] = ztunnel_name(&self.values["ztunnel"]).into();
        }
        Ok(pilot)
    }

    /// Values below `global` that a chart has.
    fn globals(&self, names: &[&str]) -> Json {
        let mut globals = json!({});
        for name in names {
            if let Some(value) = self.values["global"].get(name) {
                globals[*name] = value.clone();
            }
        }
        if self.profile.chart_profile == "openshift" && globals["platform"].is_null() {
            globals["platform"] = "openshift".into();
        }
        globals
    }

    /// Adds the revision, the user's values of the chart, and the hub and the tag of the component.
    fn complete(
        &self,
        mut values: Json,
        component: Component,
        fields: &OperatorFields<'_>,
    ) -> Result<Json, InstallError> {
        if self.revision != DEFAULT_REVISION {
            values["revision"] = self.revision.as_str().into();
        }
        if let Some(own) = self.values.get(component.key()) {
            merge(&mut values, own);
        }
        for name in ["hub", "tag"] {
            if let Some(value) = fields.text(name)? {
                values[name] = value.into();
            }
        }
        Ok(values)
    }
}
