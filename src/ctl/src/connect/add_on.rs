//! Servers beside the control plane that are found by the label of their pods, such as Prometheus.

use std::path::PathBuf;

use super::kubernetes::{ClusterFlags, KubeconfigCluster, PodReference, running};
use super::request::Requester;
use super::{ForwardedPort, PodEndpoint, QueryError, at_address, forward, requester_of};

/// An add-on of Istio with pages for a browser.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AddOn {
    /// Its name in messages.
    pub(crate) title: &'static str,
    /// The label of its pods.
    pub(crate) label: &'static str,
    /// Port of its pages in the pod.
    pub(crate) port: u16,
    /// Path of its first page.
    pub(crate) path: &'static str,
}

pub(crate) const PROMETHEUS: AddOn =
    AddOn { title: "Prometheus", label: "app.kubernetes.io/name=prometheus", port: 9_090, path: "" };
pub(crate) const GRAFANA: AddOn =
    AddOn { title: "Grafana", label: "app.kubernetes.io/name=grafana", port: 3_000, path: "" };
pub(crate) const KIALI: AddOn = AddOn { title: "Kiali", label: "app=kiali", port: 20_001, path: "kiali" };
pub(crate) const JAEGER: AddOn = AddOn { title: "Jaeger", label: "app=jaeger", port: 16_686, path: "" };
pub(crate) const ZIPKIN: AddOn = AddOn { title: "Zipkin", label: "app=zipkin", port: 9_411, path: "" };
pub(crate) const SKYWALKING: AddOn = AddOn { title: "SkyWalking", label: "app=skywalking-ui", port: 8_080, path: "" };

/// Where an add-on is looked for, and the port that is forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddOnTarget<'t> {
    pub(crate) cluster: &'t ClusterFlags,
    /// A namespace after that of the control plane; empty for none.
    pub(crate) namespace: &'t str,
    pub(crate) port: ForwardedPort,
}

/// Forwards a port of the first running pod of an add-on.
pub(crate) fn connect_to_add_on(add_on: &AddOn, target: &AddOnTarget<'_>) -> Result<PodEndpoint, QueryError> {
    let requester = Requester::new(None, None)?;
    let endpoint = requester.runtime.block_on(async {
        let cluster = KubeconfigCluster::of(&target.cluster.target).await?;
        let pod = find(&cluster, add_on, [&target.cluster.istio_namespace, target.namespace]).await?;
        forward(&cluster, &pod, target.port).await
    })?;
    Ok(PodEndpoint { endpoint, requester })
}

async fn find(cluster: &KubeconfigCluster, add_on: &AddOn, namespaces: [&str; 2]) -> Result<PodReference, QueryError> {
    let [first, second] = namespaces;
    let mut searched = vec![first];
    if !second.is_empty() && second != first {
        searched.push(second);
    }
    for namespace in &searched {
        let pods = running(&cluster.pods(namespace, add_on.label).await?);
        if let Some(pod) = pods.into_iter().next() {
            return Ok(pod);
        }
    }
    let AddOn { title, label, .. } = add_on;
    let namespaces = searched.join(" or ");
    Err(QueryError::NotFound(format!("{title}: no running pod in namespace {namespaces} has the label {label}")))
}

/// The server of an add-on at an address.
pub(crate) fn add_on_at(
    address: &str,
    ca_file: Option<&PathBuf>,
    token_file: Option<&PathBuf>,
) -> Result<PodEndpoint, QueryError> {
    Ok(PodEndpoint { endpoint: at_address(address)?, requester: requester_of(address, ca_file, token_file, false)? })
}
