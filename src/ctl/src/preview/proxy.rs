//! The proxy that a preview is for.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};
use sluice_model::Proxy;
use sluice_parse::parse_proxy;
use sluice_proto::envoy::config::core::v3::Node;

use super::objects::{CLUSTER, DOMAIN, PreviewObjects};
use crate::preview_args::{PreviewArgs, PreviewProxyType};

/// Why the flags describe no proxy. The text is for the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum DescriptionError {
    /// The file of --node does not exist or cannot be read.
    #[error("{}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file of --node is not JSON.
    #[error("{}: {error}", .path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: serde_json::Error,
    },
    /// The node does not describe a proxy.
    #[error("the node is invalid: {0}")]
    InvalidNode(String),
    /// Neither --pod nor --node is given.
    #[error("one of --pod and --node is required")]
    NoProxy,
    /// The text of --pod has no namespace.
    #[error("--pod: {0:?} is not of the form NAME.NAMESPACE")]
    InvalidPodName(String),
    /// The files do not have the Pod.
    #[error("--pod: the files contain no valid Pod {name}; they contain {}. --node describes a proxy without a Pod", list(.known))]
    UnknownPod {
        /// NAME.NAMESPACE as given.
        name: String,
        /// The Pods of the files.
        known: Vec<String>,
    },
    /// The Pod has no address.
    #[error("--pod: Pod {0} has no address in status.podIPs")]
    NoAddress(String),
}

fn list(pods: &[String]) -> String {
    if pods.is_empty() { "no Pods".to_owned() } else { pods.join(", ") }
}

/// The proxy that the flags describe.
///
/// # Errors
/// The Pod or the file does not exist, or the node is invalid.
pub(super) fn describe(args: &PreviewArgs, objects: &PreviewObjects) -> Result<Proxy, DescriptionError> {
    let node = match (&args.node, &args.pod) {
        (Some(path), _) => {
            let unreadable = |error| DescriptionError::Unreadable { path: path.clone(), error };
            let not_json = |error| DescriptionError::NotJson { path: path.clone(), error };
            let text = std::fs::read_to_string(path).map_err(unreadable)?;
            serde_json::from_str(&text).map_err(not_json)?
        }
        (None, Some(pod)) => node_of_pod(pod, args.proxy_type, objects)?,
        (None, None) => return Err(DescriptionError::NoProxy),
    };
    let invalid = |error: &dyn Display| DescriptionError::InvalidNode(error.to_string());
    let node = sluice_proto::json::decode::<Node>(&node).map_err(|error| invalid(&error))?;
    parse_proxy(&node.message, &BTreeMap::new()).map_err(|error| invalid(&error))
}

/// The node that the proxy of a Pod sends, as the agent builds it.
fn node_of_pod(name: &str, proxy_type: PreviewProxyType, objects: &PreviewObjects) -> Result<Value, DescriptionError> {
    let (pod_name, namespace) =
        name.rsplit_once('.').ok_or_else(|| DescriptionError::InvalidPodName(name.to_owned()))?;
    let unknown = || DescriptionError::UnknownPod { name: name.to_owned(), known: objects.pod_names() };
    let pod = objects.pod(namespace, pod_name).ok_or_else(unknown)?;
    let address = pod.ips.first().ok_or_else(|| DescriptionError::NoAddress(name.to_owned()))?;
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
