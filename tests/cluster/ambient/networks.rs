//! An ambient mesh of two clusters in two networks, each with a control plane that reads both (multi-primary). Packets do not pass
//! from one network to the other: the only way is the address of the east-west gateway.
//!
//! ```text
//! network near: client ── ingress gateway (Envoy) ═╗ two tunnels,           network far:
//!               walker ── node proxy ══════════════╩═ one in the other ══ east-west gateway (Envoy) ── node proxy ── tea
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::ads::Protocol;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::balancer::Balancer;
use sluice_testkit::pods::cluster_mesh::ClusterMesh;
use sluice_testkit::pods::identity::Authority;
use sluice_testkit::pods::network::{PodNet, pods_are_permitted};
use sluice_testkit::pods::workload::{PodRole, Workload};

use super::node_agent::NodeAgent;
use super::ztunnel::{Accepted, AddressDiscovery, NodeLocation, Ztunnel};
use super::{CLIENTS, SERVERS};
use crate::fixture::{ALL, RunningControlPlane, SYSTEM, start_with_values, until};

const HBONE_PORT: u16 = 15008;
const EAST_WEST: &str = "east-west";
/// Requests in a row that have to be answered.
const REPEATED: usize = 5;
/// The services with this label are global.
const GLOBAL: &str = "meshConfig.serviceScopeConfigs=\
    [{\"scope\":\"GLOBAL\",\"servicesSelector\":{\"matchLabels\":{\"scope\":\"all\"}}}]";

/// A cluster in a network of its own.
struct Site {
    id: &'static str,
    network: &'static str,
    cluster: Cluster,
}

impl Site {
    /// `None` if the programs of clusters are not built.
    async fn start(id: &'static str, network: &'static str) -> Result<Option<Self>> {
        let Some(cluster) = start_with_values(&["--set-json", GLOBAL]).await? else { return Ok(None) };
        cluster.install_crds("istio.yaml", ALL).await?;
        cluster.install_crds("gateway-api.yaml", ALL).await?;
        let labels = json!({"metadata": {"labels": {"topology.istio.io/network": network}}});
        cluster.patch("v1", "Namespace", ("", SYSTEM), &labels).await?;
        for namespace in [CLIENTS, SERVERS] {
            cluster.create_namespace(namespace, json!({"istio.io/dataplane-mode": "ambient"})).await?;
        }
        let labels = json!({"scope": "all"});
        cluster.apply(&super::service("tea", json!({"app": "tea"}), labels)).await?;
        Ok(Some(Self { id, network, cluster }))
    }

    /// Lets the control plane of another cluster read this one.
    async fn is_read_by(&self, other: &Self) -> Result<()> {
        let account = json!({"namespace": SYSTEM, "name": "reader"});
        self.cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})).await?;
        self.cluster
            .apply(&json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": "reader"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "namespace": SYSTEM, "name": "reader"}],
            }))
            .await?;
        let token = self.cluster.create_token((SYSTEM, "reader"), None, None).await?;
        let kubeconfig = self.cluster.kubeconfig(self.cluster.address(), &token).to_string();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": {self.id: kubeconfig},
            "metadata": {"name": self.network, "namespace": SYSTEM, "labels": {"istio/multiCluster": "true"}},
        });
        other.cluster.apply(&secret).await.map(drop)
    }

    /// The control plane of this cluster. `authority`: a directory for its intermediate authority.
    async fn control_plane(&self, authority: &Path) -> Result<RunningControlPlane> {
        let authority = authority.display().to_string();
        let variables = [
            ("POD_NAME", "istiod-1"),
            ("CLUSTER_ID", self.id),
            ("ROOT_CA_DIR", &authority),
            ("CA_TRUSTED_NODE_ACCOUNTS", "istio-system/ztunnel"),
            ("PILOT_ENABLE_AMBIENT", "true"),
            ("AMBIENT_ENABLE_MULTI_NETWORK", "true"),
            ("AMBIENT_ENABLE_MULTI_NETWORK_INGRESS", "true"),
        ];
        RunningControlPlane::start_with(&self.cluster, self.cluster.address(), &variables).await
    }

    async fn node_proxy(&self, node: &str, control_plane: SocketAddr) -> Result<Ztunnel> {
        let at = NodeLocation { cluster: &self.cluster, cluster_id: self.id, network: self.network, node };
        Ztunnel::start(at, AddressDiscovery::All, control_plane).await
    }

    /// Starts the CNI agent of a node, which redirects the traffic of a pod to a node proxy. Rules of the node itself are written in
    /// the namespace `own`.
    async fn enrol(
        &self,
        ztunnel: &Ztunnel,
        (node, own): (&str, &PodNet),
        mesh: &ClusterMesh<'_>,
        pod: &str,
    ) -> Result<NodeAgent<'_>> {
        let pod = mesh.pods.pod(pod);
        let agent = NodeAgent::start(&self.cluster, node, own, &[pod]).await?;
        ztunnel.follow_agent(&agent.ztunnel_socket(), &[pod]).await?;
        agent.has_annotated(pod, Some("enabled")).await?;
        Ok(agent)
    }

    /// Declares the east-west gateway with an address of its load balancer, or without one.
    async fn expose(&self, address: Option<Ipv4Addr>) -> Result<()> {
        let ingress: Vec<Value> = address.iter().map(|address| json!({"ip": address})).collect();
        let status = json!({"loadBalancer": {"ingress": ingress}});
        self.cluster.write_status("v1", "Service", (SYSTEM, EAST_WEST), status).await
    }
}

/// The Gateway of the east-west gateway, and its Service.
fn east_west_gateway(network: &str) -> [Value; 2] {
    let metadata = json!({"namespace": SYSTEM, "name": EAST_WEST, "labels": {"topology.istio.io/network": network}});
    let tls = json!({"mode": "Terminate", "options": {"gateway.istio.io/tls-terminate-mode": "ISTIO_MUTUAL"}});
    let listener = json!({"name": "mesh", "port": HBONE_PORT, "protocol": "HBONE", "tls": tls});
    let selector = json!({"gateway.networking.k8s.io/gateway-name": EAST_WEST});
    [
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata,
            "spec": {"gatewayClassName": "istio-east-west", "listeners": [listener]},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"type": "LoadBalancer", "selector": selector, "ports": [{"name": "mesh", "port": HBONE_PORT}]},
        }),
    ]
}

/// The declaration of the east-west gateway of another network at an address.
fn remote_gateway(network: &str, address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {
            "namespace": SYSTEM, "name": network, "labels": {"topology.istio.io/network": network},
            "annotations": {"gateway.istio.io/service-account": EAST_WEST},
        },
        "spec": {
            "gatewayClassName": "istio-remote", "addresses": [{"type": "IPAddress", "value": address}],
            "listeners": [{
                "name": "mesh", "port": HBONE_PORT, "protocol": "HBONE",
                "tls": {"mode": "Terminate", "options": {"gateway.istio.io/tls-terminate-mode": "ISTIO_MUTUAL"}},
            }],
        },
    })
}

/// An Istio Gateway for the ingress gateway, and its route to `tea`.
fn ingress_route() -> [Value; 2] {
    let object = |kind: &str, spec: Value| {
        json!({"apiVersion": "networking.istio.io/v1", "kind": kind, "spec": spec,
               "metadata": {"namespace": CLIENTS, "name": "door"}})
    };
    let servers = json!([{"port": {"number": 8080, "name": "http", "protocol": "HTTP"}, "hosts": ["tea.example"]}]);
    let route = json!([{"route": [{"destination": {"host": "tea.bank.svc.cluster.local"}}]}]);
    [
        object("Gateway", json!({"selector": {"istio": "ingressgateway"}, "servers": servers})),
        object("VirtualService", json!({"hosts": ["tea.example"], "gateways": ["door"], "http": route})),
    ]
}

/// Sends a request until `expected` answers, [`REPEATED`] times in a row.
async fn answers(mesh: &ClusterMesh<'_>, from: &str, request: &AppRequest, expected: &str) -> Result<()> {
    let pod = mesh.pods.pod(from);
    let (mut in_a_row, mut last) = (0, String::new());
    let what = format!("{}: expected {expected}", request.describe(from));
    let waited = until(&what, async || {
        last = pod.call(request.clone()).await?.responder();
        in_a_row = if last == expected { in_a_row + 1 } else { 0 };
        Ok(in_a_row == REPEATED)
    });
    waited.await.with_context(|| format!("the last answer is {last:?}"))
}

/// Checks that an Envoy has rejected no resource.
async fn has_rejected_nothing(mesh: &ClusterMesh<'_>, pod: &str) -> Result<()> {
    let envoy = mesh.pods.pod(pod).envoy.as_ref().context("the pod has an Envoy")?;
    let rejected = envoy.rejected().await?;
    ensure!(rejected.is_empty(), "{pod} has rejected {rejected:?}\n{}", envoy.log_tail());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_pass_to_another_network_through_its_east_west_gateway() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let (near, far) = tokio::try_join!(Site::start("Kubernetes", "near"), Site::start("far", "far"))?;
    let (Some(near), Some(far)) = (near, far) else { return Ok(()) };
    tokio::try_join!(near.is_read_by(&far), far.is_read_by(&near))?;
    let mut near_mesh = ClusterMesh::in_network(&near.cluster, near.id, near.network)?;
    let mut far_mesh = ClusterMesh::in_network(&far.cluster, far.id, far.network)?;
    // The address at which the network `far` is reached from `near`.
    let address = near_mesh.pods.host_ip();
    let exposed = Balancer::start((address, HBONE_PORT).into()).await?;
    for object in east_west_gateway(far.network) {
        far.cluster.apply(&object).await?;
    }
    far.expose(None).await?;
    for object in ingress_route().into_iter().chain([remote_gateway(far.network, address)]) {
        near.cluster.apply(&object).await?;
    }
    let authorities = tempfile::tempdir()?;
    let organization = Authority::new()?;
    let mut running = Vec::new();
    for site in [&near, &far] {
        let authority = authorities.path().join(site.id);
        organization.plug_in(&authority, site.id, organization.root())?;
        running.push(site.control_plane(&authority).await?);
    }
    // Pods reach the control plane of their cluster at the address of the host in their network.
    let mut discovery = Vec::new();
    for (control_plane, mesh) in running.iter().zip([&near_mesh, &far_mesh]) {
        let balancer = Balancer::start((mesh.pods.host_ip(), 0).into()).await?;
        balancer.set_targets(control_plane.server.secure);
        discovery.push(balancer);
    }
    let [of_near, of_far] = [discovery[0].address, discovery[1].address];
    let client = |name, role| Workload::new(name, name, role).namespace(CLIENTS);
    let workloads = [
        client("client", PodRole::NoProxy),
        client("walker", PodRole::NoProxy).zone("r", "a"),
        client("ingress", PodRole::Gateway(Protocol::Delta, "ingressgateway")),
    ];
    near_mesh.deploy(&workloads, of_near).await?;
    let east_west = |name| Workload::new(name, EAST_WEST, PodRole::EastWest(Protocol::Delta)).namespace(SYSTEM);
    let tea = Workload::new("tea", "tea", PodRole::NoProxy).namespace(SERVERS).zone("r", "b");
    far_mesh.deploy(&[east_west("east-west-1"), tea], of_far).await?;
    let at = |mesh: &ClusterMesh<'_>, pod: &str, port: u16| SocketAddr::new(mesh.pods.pod(pod).net.ip.into(), port);
    exposed.set_targets([at(&far_mesh, "east-west-1", HBONE_PORT)]);
    let of_clients = near.node_proxy("machine-r-a", of_near).await?;
    let of_servers = far.node_proxy("machine-r-b", of_far).await?;
    let nodes = [near_mesh.pods.add_network()?, far_mesh.pods.add_network()?];
    let _of_walker = near.enrol(&of_clients, ("machine-r-a", &nodes[0]), &near_mesh, "walker").await?;
    let _of_tea = far.enrol(&of_servers, ("machine-r-b", &nodes[1]), &far_mesh, "tea").await?;
    let outcome = async {
        let through_gateway = AppRequest::get(at(&near_mesh, "ingress", 8080), "tea.example");
        let through_node_proxy = near_mesh.get(SERVERS, "tea").await?;
        // Gateways know the address that is declared in their cluster.
        answers(&near_mesh, "client", &through_gateway, "tea v1").await?;
        // All know the address that the Gateway has in its own cluster.
        near.cluster.delete("gateway.networking.k8s.io/v1", "Gateway", SYSTEM, far.network).await?;
        answers(&near_mesh, "client", &through_gateway, "status 503").await?;
        far.expose(Some(address)).await?;
        answers(&near_mesh, "client", &through_gateway, "tea v1").await?;
        answers(&near_mesh, "walker", &through_node_proxy, "tea v1").await?;
        // The node proxy of the other network ends the inner tunnel, so it knows the client and what that states.
        let application = at(&far_mesh, "tea", 8080);
        let expected = |client: &str, baggage: Option<&str>| Accepted {
            client: Some(format!("spiffe://cluster.local/ns/shop/sa/{client}")),
            to: application,
            is_permitted: true,
            from_network: Some("near".to_owned()),
            baggage: baggage.map(str::to_owned),
        };
        let accepted = of_servers.accepted();
        let walker = expected("walker", Some("k8s.namespace.name=shop"));
        ensure!(accepted.contains(&expected("ingress", None)) && accepted.contains(&walker), "{accepted:#?}");

        // Another gateway replaces the first one.
        far_mesh.deploy(&[east_west("east-west-2")], of_far).await?;
        exposed.set_targets([at(&far_mesh, "east-west-2", HBONE_PORT)]);
        has_rejected_nothing(&far_mesh, "east-west-1").await?;
        far_mesh.pods.stop("east-west-1")?;
        answers(&near_mesh, "client", &through_gateway, "tea v1").await?;
        answers(&near_mesh, "walker", &through_node_proxy, "tea v1").await?;

        // Without a gateway, the other network is not reached, and with one again it is.
        far.expose(None).await?;
        answers(&near_mesh, "client", &through_gateway, "status 503").await?;
        far.expose(Some(address)).await?;
        answers(&near_mesh, "client", &through_gateway, "tea v1").await?;
        answers(&near_mesh, "walker", &through_node_proxy, "tea v1").await?;
        has_rejected_nothing(&near_mesh, "ingress").await?;
        has_rejected_nothing(&far_mesh, "east-west-2").await
    };
    outcome.await.with_context(|| {
        format!("failed connections of the node proxies: {:#?}", [of_clients.failures(), of_servers.failures()])
    })
}
