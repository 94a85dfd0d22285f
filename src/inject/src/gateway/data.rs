//! The data of the templates of Gateways, with the names that Istio's templates use.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use sluice_model::gateway_api::{AddressKind, Gateway, GatewayDeployment};
use sluice_model::{Labels, Text, label};
use sluice_template::{NamedFields, Value};

use super::GatewayContext;
use crate::annotations::PROXY_IMAGE_TYPE;
use crate::injector::Injector;
use crate::message::message_value;
use crate::openshift::proxy_ids;
use crate::pod::{OBJECT_META, record};
use crate::proxy_config::{Target, effective, text_at};

/// Annotation of a Gateway: the image of its agentgateways, or its type.
const AGENTGATEWAY_IMAGE: &str = "gateway.istio.io/agentgatewayImage";

impl Injector {
    /// The data of the template of a Gateway.
    pub(super) fn gateway_data(&self, deployment: &GatewayDeployment, context: &GatewayContext<'_>) -> Value {
        let GatewayDeployment { gateway, .. } = deployment;
        let meta = &gateway.meta;
        let pod_labels = json!({(label::GATEWAY_NAME): meta.name.as_str()});
        let target = Target {
            root_namespace: &self.mesh.root_namespace,
            namespace: &meta.namespace,
            labels: &pod_labels,
            annotation: None,
        };
        let proxy_config = effective(&self.mesh.default_config, context.proxy_configs, target);
        let image_type = text_at(&proxy_config, &["image", "image_type"]).unwrap_or_default();
        let image = self.values.proxy_image(&image_type, meta.annotations.get(PROXY_IMAGE_TYPE).map(Text::as_str));
        let annotated = meta.annotations.get(AGENTGATEWAY_IMAGE).map(Text::as_str);
        let agentgateway_image = self.values.agentgateway_image(&image_type, annotated);
        let (user, group) = proxy_ids(Some(&deployment.namespace_ids));
        let mut labels = deployment.labels.clone();
        let network = self.values.text("/global/network");
        if deployment.takes_default_network && !network.is_empty() {
            labels.insert(label::NETWORK.into(), network.into());
        }
        let object_meta = json!({
            "name": meta.name.as_str(),
            "namespace": meta.namespace.as_str(),
            "uid": gateway.uid.as_str(),
            "labels": json_map(&meta.labels),
            "annotations": json_map(&meta.annotations),
        });
        let ports = deployment.ports.iter().map(|port| {
            named(
                "v1.ServicePort",
                vec![
                    ("Name", text(&port.name)),
                    ("Port", Value::Integer(port.port.into())),
                    ("Protocol", text(&port.transport)),
                    ("AppProtocol", text(&port.app_protocol)),
                ],
            )
        });
        named(
            "gateway.derivedInput",
            vec![
                ("Name", text(&meta.name)),
                ("Namespace", text(&meta.namespace)),
                ("UID", text(&gateway.uid)),
                ("Labels", dict(&meta.labels)),
                ("Annotations", dict(&meta.annotations)),
                ("ObjectMeta", record(&object_meta, &OBJECT_META)),
                ("Spec", spec(gateway)),
                ("GatewayClass", text(&gateway.class)),
                ("DeploymentName", text(&deployment.name)),
                ("ServiceAccount", text(&deployment.service_account)),
                ("Ports", Value::list(ports.collect())),
                ("ServiceType", text(&deployment.service_type)),
                ("ClusterID", text(context.cluster)),
                ("KubeVersion", Value::Integer(context.kubernetes_version.into())),
                ("Revision", text(&self.settings.revision)),
                ("NativeSidecars", Value::Bool(context.native_sidecars)),
                ("ProxyUID", Value::Integer(user)),
                ("ProxyGID", Value::Integer(group)),
                ("CompliancePolicy", text(&self.settings.compliance_policy)),
                ("InfrastructureLabels", dict(&labels)),
                ("InfrastructureAnnotations", dict(&deployment.annotations)),
                ("GatewayNameLabel", text(label::GATEWAY_NAME)),
                ("IsEastWestGateway", Value::Bool(deployment.is_east_west)),
                ("ControllerLabel", text(&deployment.controller_label())),
                ("ProxyImage", text(&image)),
                ("AgentgatewayImage", text(&agentgateway_image)),
                ("ProxyConfig", message_value(&proxy_config)),
                ("MeshConfig", message_value(&self.mesh.message)),
                ("Values", self.values.value.clone()),
            ],
        )
    }
}

fn spec(gateway: &Gateway) -> Value {
    let addresses = gateway.addresses.iter().map(|address| {
        let kind = match &address.kind {
            AddressKind::Unset | AddressKind::Ip => "IPAddress",
            AddressKind::Hostname => "Hostname",
            AddressKind::Other(kind) => kind.as_str(),
        };
        named("v1.GatewaySpecAddress", vec![("Type", text(kind)), ("Value", text(&address.value))])
    });
    let listeners = gateway.listeners.iter().map(|listener| {
        named(
            "v1.Listener",
            vec![
                ("Name", text(&listener.name)),
                ("Hostname", text(&listener.hostname)),
                ("Port", Value::Integer(listener.port.into())),
                ("Protocol", text(&listener.protocol)),
            ],
        )
    });
    named(
        "v1.GatewaySpec",
        vec![
            ("GatewayClassName", text(&gateway.class)),
            ("Addresses", Value::list(addresses.collect())),
            ("Listeners", Value::list(listeners.collect())),
        ],
    )
}

fn named(type_name: &'static str, fields: Vec<(&'static str, Value)>) -> Value {
    Value::Object(Arc::new(NamedFields { type_name, fields: fields.into_iter().collect() }))
}

fn text(text: &str) -> Value {
    Value::text(text)
}

fn dict(labels: &Labels) -> Value {
    Value::text_dict(labels.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}

fn json_map(labels: &Labels) -> Json {
    let entries = labels.iter().map(|(name, value)| (name.to_string(), json!(value.as_str())));
    Json::Object(entries.collect::<Map<String, Json>>())
}
