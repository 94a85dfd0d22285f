//! The proxy that a preview is for.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_model::Proxy;
use sluice_parse::parse_proxy;
use sluice_proto::envoy::config::core::v3::Node;

use super::objects::{CLUSTER, DOMAIN, PreviewObjects};
use crate::args::{PreviewArgs, PreviewProxyType};

/// The proxy that the flags describe.
///
/// # Errors
/// A text for the user: the Pod or the file does not exist, or the node is invalid.
pub(super) fn describe(args: &PreviewArgs, objects: &PreviewObjects) -> Result<Proxy, String> {
    let node = match (&args.node, &args.pod) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?
        }
        (None, Some(pod)) => node_of_pod(pod, args.proxy_type, objects)?,
        (None, None) => return Err("one of --pod and --node is required".to_owned()),
    };
    let node = sluice_proto::json::decode::<Node>(&node).map_err(|error| format!("the node is invalid: {error}"))?;
    parse_proxy(&node.message, &BTreeMap::new()).map_err(|error| format!("the node is invalid: {error}"))
}

/// The node that the proxy of a Pod sends, as the agent makes it.
fn node_of_pod(name: &str, proxy_type: PreviewProxyType, objects: &PreviewObjects) -> Result<Value, String> {
    let (pod_name, namespace) =
        name.rsplit_once('.').ok_or_else(|| format!("--pod: {name:?} is not of the form NAME.NAMESPACE"))?;
    let pod = objects.pod(namespace, pod_name).ok_or_else(|| {
        let known = objects.pod_names();
        let known = if known.is_empty() { "no Pods".to_owned() } else { known.join(", ") };
        format!("--pod: the files have no valid Pod {name}; they have {known}. --node describes a proxy without a Pod")
    })?;
    let address = pod.ips.first().ok_or_else(|| format!("--pod: Pod {name} has no address in status.podIPs"))?;
    let kind = match proxy_type {
        PreviewProxyType::Sidecar => "sidecar",
        PreviewProxyType::Router => "router",
    };
    let addresses: Vec<&str> = pod.ips.iter().map(|ip| ip.as_str()).collect();
    Ok(json!({
        "id": format!("{kind}~{address}~{pod_name}.{namespace}~{namespace}.svc.{DOMAIN}"),
        "cluster": format!("{}.{namespace}", pod.workload_name),
        "metadata": {
            "NAME": pod_name,
            "NAMESPACE": namespace,
            "CLUSTER_ID": CLUSTER,
            "INSTANCE_IPS": addresses.join(","),
            "SERVICE_ACCOUNT": pod.service_account,
            "WORKLOAD_NAME": pod.workload_name,
            "NODE_NAME": pod.node,
            "LABELS": pod.labels,
            "ANNOTATIONS": pod.annotations,
        },
    }))
}
