//! Ambient mode with real parts: the control plane as its chart installs it, a waypoint that it deploys and that runs as a real Envoy,
//! node proxies with the protocols of ztunnel, which is not published as a package, and the CNI agents of both nodes.
//!
//! ```text
//! node machine-r-a: client, stranger, outsider ── tunnels ── waypoint ── tunnels ── node machine-r-b: tea, vault, mirror
//!          outsider ── plaintext ── gateway door ── tunnels ───┘                            │
//!          insider with a sidecar ───────────────── tunnels ────────────────────────────────┘
//! ```

mod addresses;
mod networks;
mod node_agent;
mod policy;
mod ztunnel;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Request;
use node_agent::NodeAgent;
use serde_json::{Value, json};
use sluice_testkit::ads::Protocol;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node::TestNode;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::cluster_mesh::ClusterMesh;
use sluice_testkit::pods::envoy;
use sluice_testkit::pods::load::{Stream, under_load};
use sluice_testkit::pods::network::{PodNet, pods_are_permitted};
use sluice_testkit::pods::pod_set::Pod;
use sluice_testkit::pods::workload::{PodRole, Workload};
use ztunnel::{Accepted, AddressDiscovery, NodeLocation, Ztunnel};

use crate::fixture::{ALL, CHART, SYSTEM, manifest, programs, until};
use crate::upgrade::{helm, images};

/// The namespace of clients.
const CLIENTS: &str = "shop";
/// The namespace of servers, and of their waypoint.
const SERVERS: &str = "bank";
const WAYPOINT: &str = "waypoint";
const CLIENT_ID: &str = "spiffe://cluster.local/ns/shop/sa/client";
const STRANGER_ID: &str = "spiffe://cluster.local/ns/shop/sa/stranger";
const WAYPOINT_ID: &str = "spiffe://cluster.local/ns/bank/sa/waypoint";
const INSIDER_ID: &str = "spiffe://cluster.local/ns/shop/sa/insider";
/// The port of the gateway.
const DOOR_PORT: u16 = 8080;
/// Pods that are not enrolled.
const NOT_ENROLLED: [&str; 3] = ["outsider", "insider", "door"];
/// The applications of tea.
const TEA: [&str; 2] = ["tea v1", "tea v2"];
/// Requests in a row that have to be answered in the same way. By chance, one of two versions answers all of them in one of 1,000
/// cases.
const REPEATED: usize = 10;
/// Time for which requests are sent after the first waypoint has ended.
const OBSERVED: Duration = Duration::from_secs(1);

/// The cluster, its pods and its node proxies.
struct Ambient<'a> {
    cluster: &'a Cluster,
    mesh: &'a ClusterMesh<'a>,
    node: &'a TestNode<'a>,
    /// The node proxy of clients requests addresses when it needs them, that of servers has all.
    of_clients: &'a Ztunnel,
    of_servers: &'a Ztunnel,
    /// The namespaces of the nodes of clients and of servers.
    nodes: [PodNet; 2],
}

fn workloads() -> Vec<Workload> {
    let client = |name| Workload::new(name, name, PodRole::NoProxy).namespace(CLIENTS).zone("r", "a");
    let server = |name, app| Workload::new(name, app, PodRole::NoProxy).namespace(SERVERS).zone("r", "b");
    vec![
        client("client"),
        client("stranger"),
        client("outsider"),
        Workload::new("insider", "insider", PodRole::Sidecar(Protocol::Delta)).namespace(CLIENTS).zone("r", "a"),
        Workload::new("door", "door", PodRole::Gateway(Protocol::Delta, "door")).namespace(CLIENTS).zone("r", "a"),
        server("tea-v1", "tea"),
        server("tea-v2", "tea").version("v2"),
        server("vault", "vault"),
        server("mirror", "mirror"),
    ]
}

/// A Service of servers, with labels.
fn service(name: &str, selector: Value, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": SERVERS, "labels": labels},
        "spec": {"selector": selector, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    })
}

/// An object of servers.
fn object(api_version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": SERVERS}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread")]
async fn ambient_mesh_with_a_waypoint() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    let cluster = Cluster::start(&programs).await?;
    cluster.install_crds("istio.yaml", ALL).await?;
    cluster.install_crds("gateway-api.yaml", ALL).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    for namespace in [CLIENTS, SERVERS] {
        cluster.create_namespace(namespace, json!({"istio.io/dataplane-mode": "ambient"})).await?;
    }
    let mut mesh = ClusterMesh::new(&cluster)?;
    let host = mesh.pods.host_ip();
    let programs = images(&mesh.pods)?;
    // The image has Envoy at the default path.
    let envoy = format!("meshConfig.defaultConfig.binaryPath={}", mesh.pods.linked_path(&envoy::binary()?)?.display());
    let mut node = TestNode::new(&cluster, &[SYSTEM, SERVERS], &mut mesh.pods, 5, programs).await?;
    let discovery = node.serve((SYSTEM, "istiod"), 15012, (host, 15012).into()).await?;
    mesh.pods.add_name("istiod.istio-system.svc", host)?;
    node.during(async {
        let chart = manifest(CHART).display().to_string();
        let install = ["install", "istiod", &chart, "--namespace", SYSTEM, "--wait", "--timeout", "2m"];
        let values = ["--set", "profile=ambient", "--set", "autoscaleEnabled=false", "--set", &envoy];
        helm(&cluster, &[&install[..], &values].concat()).await?;
        cluster.apply(&waypoint()).await?;
        // The injector would set it.
        mesh.variables = vec![("ISTIO_META_ENABLE_HBONE", "true".to_owned())];
        mesh.deploy(&workloads(), discovery).await?;
        let on = |node| NodeLocation { cluster: &cluster, cluster_id: "Kubernetes", network: "", node };
        let of_clients = Ztunnel::start(on("machine-r-a"), AddressDiscovery::OnDemand, discovery).await?;
        let of_servers = Ztunnel::start(on("machine-r-b"), AddressDiscovery::All, discovery).await?;
        let nodes = [mesh.pods.add_network()?, mesh.pods.add_network()?];
        let (of_clients, of_servers) = (&of_clients, &of_servers);
        let ambient = Ambient { cluster: &cluster, mesh: &mesh, node: &node, of_clients, of_servers, nodes };
        let outcome = ambient.run().await;
        let failures = [of_clients.failures(), of_servers.failures()];
        outcome.with_context(|| format!("failed connections of the node proxies: {failures:#?}"))
    })
    .await
}

/// The Gateway of the waypoint.
fn waypoint() -> Value {
    let listener = json!({"name": "mesh", "port": 15008, "protocol": "HBONE"});
    object(
        "gateway.networking.k8s.io/v1",
        "Gateway",
        WAYPOINT,
        json!({"gatewayClassName": "istio-waypoint", "listeners": [listener]}),
    )
}

impl Ambient<'_> {
    async fn run(&self) -> Result<()> {
        let agents = self.enrolment().await.context("enrolment")?;
        self.withdrawal(&agents).await.context("withdrawal")?;
        self.policies_of_connections().await.context("policies of connections")?;
        self.waypoint_is_deployed().await.context("deployment of the waypoint")?;
        self.policies_of_requests().await.context("policies of requests")?;
        self.routes().await.context("routes")?;
        self.mirrors_and_faults().await.context("mirrors and faults")?;
        self.telemetry().await.context("telemetry")?;
        self.gateway().await.context("a gateway and the waypoint")?;
        self.sidecar().await.context("a sidecar")?;
        self.replacement().await.context("replacement of the waypoint")
    }

    fn ip(&self, pod: &str) -> IpAddr {
        self.mesh.pods.pod(pod).net.ip.into()
    }

    /// A request to the application of a pod, without a Service.
    fn to_pod(&self, pod: &str) -> AppRequest {
        AppRequest::get(SocketAddr::new(self.ip(pod), 8080), pod)
    }

    async fn to_service(&self, name: &str) -> Result<AppRequest> {
        self.mesh.get(SERVERS, name).await
    }

    /// Sends a request until one of these answers, [`REPEATED`] times in a row.
    async fn answers(&self, from: &str, request: &AppRequest, expected: &[&str]) -> Result<()> {
        let what = format!("{expected:?}");
        self.repeats(from, request, &what, |reply| expected.contains(&reply.responder().as_str())).await
    }

    /// Sends a request until no application answers, [`REPEATED`] times in a row.
    async fn is_denied(&self, from: &str, request: &AppRequest) -> Result<()> {
        self.repeats(from, request, "no answer", |reply| reply.outcome.is_err()).await
    }

    async fn repeats(
        &self,
        from: &str,
        request: &AppRequest,
        what: &str,
        is_expected: impl Fn(&AppReply) -> bool,
    ) -> Result<()> {
        let pod = self.mesh.pods.pod(from);
        let (mut in_a_row, mut last) = (0, String::new());
        let what = format!("{}: expected {what}", request.describe(from));
        let waited = until(&what, async || {
            let reply = pod.call(request.clone()).await?;
            in_a_row = if is_expected(&reply) { in_a_row + 1 } else { 0 };
            last = reply.responder();
            Ok(in_a_row == REPEATED)
        });
        waited.await.with_context(|| format!("the last answer is {last:?}"))
    }

    /// Whether the node proxy of servers has permitted a connection of a client to a pod.
    fn has_accepted(&self, client: Option<&str>, pod: &str) -> bool {
        let to = SocketAddr::new(self.ip(pod), 8080);
        let is_expected = |it: &Accepted| it.client.as_deref() == client && it.to == to && it.is_permitted;
        self.of_servers.accepted().iter().any(is_expected)
    }

    /// Pods receive connections in plaintext until they are enrolled, and over mutual TLS from others that are enrolled.
    async fn enrolment(&self) -> Result<[NodeAgent<'_>; 2]> {
        let direct = service("direct", json!({"app": "tea"}), json!({}));
        self.cluster.apply(&direct).await?;
        self.answers("client", &self.to_pod("tea-v1"), &["tea v1"]).await?;
        ensure!(self.of_servers.accepted().is_empty(), "no traffic is redirected yet");
        let excluded = json!({"metadata": {"labels": {"istio.io/dataplane-mode": "none"}}});
        for name in NOT_ENROLLED {
            self.cluster.patch("v1", "Pod", (CLIENTS, name), &excluded).await?;
        }
        // Connections of a pod that is enrolled as well, and of one that is not.
        let streams = ["client", "outsider"]
            .map(|from| Stream::on_new_connections(self.mesh.pods.shared(from), self.to_pod("tea-v1"), "tea v1"));
        let (agents, requests) = under_load(&streams, self.agents()).await?;
        eprintln!("{requests} requests while pods were enrolled");
        ensure!(self.of_clients.is_refused("spiffe://cluster.local/ns/bank/sa/vault").await, "a pod of another node");
        self.answers("client", &self.to_service("direct").await?, &TEA).await?;
        let from_client =
            || TEA.len() == ["tea-v1", "tea-v2"].iter().filter(|pod| self.has_accepted(Some(CLIENT_ID), pod)).count();
        until("both applications are called through tunnels", async || {
            self.answers("client", &self.to_service("direct").await?, &TEA).await?;
            Ok(from_client())
        })
        .await?;
        // A pod that is not enrolled is accepted without an identity.
        self.answers("outsider", &self.to_pod("tea-v1"), &["tea v1"]).await?;
        ensure!(self.has_accepted(None, "tea-v1"), "plaintext is redirected, too");
        Ok(agents)
    }

    /// Starts the CNI agents of both nodes, which enrol their pods.
    async fn agents(&self) -> Result<[NodeAgent<'_>; 2]> {
        let [of_clients, of_servers] = &self.nodes;
        Ok([
            self.agent("machine-r-a", of_clients, CLIENTS, self.of_clients).await?,
            self.agent("machine-r-b", of_servers, SERVERS, self.of_servers).await?,
        ])
    }

    async fn agent(&self, node: &str, own: &PodNet, namespace: &str, ztunnel: &Ztunnel) -> Result<NodeAgent<'_>> {
        let pods: Vec<&Pod> = self
            .mesh
            .pods
            .iter()
            .filter(|(name, pod)| pod.workload.namespace == namespace && !NOT_ENROLLED.contains(name))
            .map(|(_, pod)| pod)
            .collect();
        let agent = NodeAgent::start(self.cluster, node, own, &pods).await?;
        ztunnel.follow_agent(&agent.ztunnel_socket(), &pods).await.with_context(|| format!("the agent of {node}"))?;
        for pod in pods {
            agent.has_annotated(pod, Some("enabled")).await?;
        }
        Ok(agent)
    }

    /// A client and its server are withdrawn and enrolled again while they are called.
    async fn withdrawal(&self, agents: &[NodeAgent<'_>; 2]) -> Result<()> {
        let pods = ["client", "tea-v1"].map(|name| self.mesh.pods.pod(name));
        let set_mode = async |mode: &str, redirection: Option<&str>| -> Result<()> {
            let labels = json!({"metadata": {"labels": {"istio.io/dataplane-mode": mode}}});
            for pod in pods {
                let key = (pod.workload.namespace, pod.workload.name);
                self.cluster.patch("v1", "Pod", key, &labels).await?;
            }
            for (agent, pod) in agents.iter().zip(pods) {
                agent.has_annotated(pod, redirection).await?;
            }
            Ok(())
        };
        let to_server = self.to_pod("tea-v1");
        let streams = [("client", &to_server), ("stranger", &to_server), ("outsider", &to_server)]
            .map(|(from, call)| Stream::on_new_connections(self.mesh.pods.shared(from), call.clone(), "tea v1"));
        self.tunnels_arrive("stranger", STRANGER_ID).await?;
        let ((), requests) = under_load(&streams, set_mode("none", None)).await?;
        eprintln!("{requests} requests while pods were withdrawn");
        let before = self.of_servers.accepted().len();
        self.answers("client", &to_server, &["tea v1"]).await?;
        ensure!(self.of_servers.accepted().len() == before, "the node proxy does not serve the pod");
        let ((), requests) = under_load(&streams, set_mode("ambient", Some("enabled"))).await?;
        eprintln!("{requests} requests while pods were enrolled again");
        self.tunnels_arrive("client", CLIENT_ID).await
    }

    /// A client calls a server until it sends all requests in tunnels from now on.
    async fn tunnels_arrive(&self, client: &str, identity: &str) -> Result<()> {
        until("the client sends tunnels only", async || {
            let before = self.of_servers.accepted().len();
            self.answers(client, &self.to_pod("tea-v1"), &["tea v1"]).await?;
            let tunnels =
                self.of_servers.accepted()[before..].iter().filter(|it| it.client.as_deref() == Some(identity)).count();
            Ok(tunnels >= REPEATED)
        })
        .await
    }

    /// Policies of the pods themselves, which node proxies enforce.
    async fn policies_of_connections(&self) -> Result<()> {
        self.cluster.apply(&service("vault", json!({"app": "vault"}), json!({}))).await?;
        let (to_service, to_pod) = (self.to_service("vault").await?, self.to_pod("vault"));
        for client in ["client", "stranger"] {
            self.answers(client, &to_service, &["vault v1"]).await?;
        }
        self.answers("outsider", &to_pod, &["vault v1"]).await?;
        let selector = json!({"matchLabels": {"app": "vault"}});
        let api = "security.istio.io/v1";
        let strict = json!({"selector": selector, "mtls": {"mode": "STRICT"}});
        self.cluster.apply(&object(api, "PeerAuthentication", "vault", strict)).await?;
        self.is_denied("outsider", &to_pod).await?;
        self.answers("stranger", &to_service, &["vault v1"]).await?;
        let source = json!({"source": {"principals": ["cluster.local/ns/shop/sa/client"]}});
        let allow = json!({"selector": selector, "action": "ALLOW", "rules": [{"from": [source]}]});
        self.cluster.apply(&object(api, "AuthorizationPolicy", "vault", allow)).await?;
        self.is_denied("stranger", &to_service).await?;
        self.answers("client", &to_service, &["vault v1"]).await?;
        let source = json!({"source": {"namespaces": [CLIENTS]}});
        let to = json!({"operation": {"ports": ["8080"]}});
        let deny = json!({"selector": selector, "action": "DENY", "rules": [{"from": [source], "to": [to]}]});
        self.cluster.apply(&object(api, "AuthorizationPolicy", "closed", deny)).await?;
        self.is_denied("client", &to_service).await?;
        for name in ["closed", "vault"] {
            self.cluster.delete(api, "AuthorizationPolicy", SERVERS, name).await?;
        }
        for client in ["client", "stranger"] {
            self.answers(client, &to_service, &["vault v1"]).await?;
        }
        Ok(())
    }

    /// The control plane deploys the waypoint, and services use it.
    async fn waypoint_is_deployed(&self) -> Result<()> {
        let gateway = async || -> Result<Value> {
            let gateway = self.cluster.get("gateway.networking.k8s.io/v1", "Gateway", SERVERS, WAYPOINT).await?;
            Ok(gateway.unwrap_or_default()["status"].take())
        };
        until("the waypoint is programmed", async || {
            let status = gateway().await?;
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            Ok(conditions.any(|it| it["type"] == "Programmed" && it["status"] == "True"))
        })
        .await
        .with_context(|| "the status of the Gateway")?;
        let is_ready = || self.node.ready().keys().any(|name| name.starts_with(WAYPOINT));
        until("the pod of the waypoint is ready", async || Ok(is_ready())).await?;
        let labels = json!({"istio.io/use-waypoint": WAYPOINT});
        for name in ["guarded", "routed", "shaped", "steady"] {
            self.cluster.apply(&service(name, json!({"app": "tea"}), labels.clone())).await?;
        }
        self.answers("client", &self.to_service("steady").await?, &TEA).await?;
        until("the waypoint sends tunnels to the application", async || {
            self.answers("client", &self.to_service("steady").await?, &TEA).await?;
            Ok(self.has_accepted(Some(WAYPOINT_ID), "tea-v1") && self.has_accepted(Some(WAYPOINT_ID), "tea-v2"))
        })
        .await
    }

    /// Policies of a Service, which its waypoint enforces.
    async fn policies_of_requests(&self) -> Result<()> {
        let guarded = self.to_service("guarded").await?;
        self.answers("stranger", &guarded, &TEA).await?;
        let source = json!({"source": {"principals": ["cluster.local/ns/shop/sa/client"]}});
        let to = json!({"operation": {"methods": ["GET"], "paths": ["/public*"]}});
        let target = json!([{"group": "", "kind": "Service", "name": "guarded"}]);
        let allow = json!({"targetRefs": target, "action": "ALLOW", "rules": [{"from": [source], "to": [to]}]});
        self.cluster.apply(&object("security.istio.io/v1", "AuthorizationPolicy", "guarded", allow)).await?;
        let public = guarded.clone().path("/public/menu");
        self.answers("stranger", &public, &["status 403"]).await?;
        self.answers("client", &public, &TEA).await?;
        self.answers("client", &guarded.clone().path("/private"), &["status 403"]).await?;
        self.answers("client", &public.method("POST"), &["status 403"]).await
    }

    async fn routes(&self) -> Result<()> {
        for version in ["v1", "v2"] {
            let selector = json!({"app": "tea", "version": version});
            self.cluster.apply(&service(&format!("tea-{version}"), selector, json!({}))).await?;
        }
        let to = |name: &str| json!([{"name": name, "port": 80}]);
        let header = json!([{"headers": [{"name": "x-version", "value": "v2"}]}]);
        let spec = json!({
            "parentRefs": [{"group": "", "kind": "Service", "name": "routed"}],
            "rules": [{"matches": header, "backendRefs": to("tea-v2")}, {"backendRefs": to("tea-v1")}],
        });
        self.cluster.apply(&object("gateway.networking.k8s.io/v1", "HTTPRoute", "routed", spec)).await?;
        let routed = self.to_service("routed").await?;
        self.answers("client", &routed.clone().header("x-version", "v2"), &["tea v2"]).await?;
        self.answers("client", &routed.header("x-version", "v1"), &["tea v1"]).await
    }

    async fn mirrors_and_faults(&self) -> Result<()> {
        self.cluster.apply(&service("mirror", json!({"app": "mirror"}), json!({}))).await?;
        let route = json!([{"destination": {"host": "shaped"}}]);
        let spec = json!({"hosts": ["shaped"], "http": [
            {
                "match": [{"headers": {"x-fault": {"exact": "yes"}}}], "route": route,
                "fault": {"abort": {"httpStatus": 418, "percentage": {"value": 100}}},
            },
            {"route": route, "mirror": {"host": "mirror"}},
        ]});
        self.cluster.apply(&object("networking.istio.io/v1", "VirtualService", "shaped", spec)).await?;
        let shaped = self.to_service("shaped").await?;
        self.answers("client", &shaped.clone().header("x-fault", "yes"), &["status 418"]).await?;
        let mirrored = shaped.path("/mirrored");
        self.answers("client", &mirrored, &TEA).await?;
        let received = async || anyhow::Ok(self.mesh.pods.pod("mirror").received("/mirrored").await?.len());
        until("each request is mirrored", async || Ok(received().await? >= REPEATED)).await
    }

    /// The waypoint logs requests as a Telemetry says. The tests run an upstream Envoy, which has no filter for Istio's metrics.
    async fn telemetry(&self) -> Result<()> {
        let target = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": WAYPOINT}]);
        let spec = json!({"targetRefs": target, "accessLogging": [{"providers": [{"name": "envoy"}]}]});
        self.cluster.apply(&object("telemetry.istio.io/v1", "Telemetry", "logs", spec)).await?;
        let logged = self.to_service("routed").await?.path("/logged").header("x-version", "v2");
        let ready = self.node.ready();
        let pod = ready.keys().find(|name| name.starts_with(WAYPOINT)).context("the waypoint is ready")?;
        let mut log = String::new();
        let is_logged = |line: &str| {
            let parts = ["\"GET /logged HTTP/1.1\" 200 ", "tea-v2.bank.svc.cluster.local"];
            parts.iter().all(|part| line.contains(part))
        };
        let waited = until("the waypoint logs a request", async || {
            self.answers("client", &logged, &["tea v2"]).await?;
            let uri = format!("/api/v1/namespaces/{SERVERS}/pods/{pod}/log");
            log = self.cluster.client().request_text(Request::get(uri).body(Vec::new())?).await?;
            Ok(log.lines().any(is_logged))
        });
        let tail = |log: &str| log.lines().rev().take(5).collect::<Vec<_>>().join("\n");
        waited.await.with_context(|| format!("its log ends with\n{}", tail(&log)))
    }

    /// A request to a host of the gateway.
    fn to_door(&self, host: &str) -> AppRequest {
        AppRequest::get(SocketAddr::new(self.ip("door"), DOOR_PORT), host)
    }

    /// The gateway sends to a Service through its waypoint, if the Service says so.
    async fn gateway(&self) -> Result<()> {
        let api = "networking.istio.io/v1";
        let of_clients = |kind: &str, name: &str, spec: Value| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": CLIENTS}, "spec": spec});
        let port = json!({"number": DOOR_PORT, "name": "http", "protocol": "HTTP"});
        let spec = json!({"selector": {"istio": "door"}, "servers": [{"port": port, "hosts": ["*"]}]});
        self.cluster.apply(&of_clients("Gateway", "door", spec)).await?;
        for (name, for_ingress) in [("entered", "true"), ("passed", "false")] {
            let labels = json!({"istio.io/use-waypoint": WAYPOINT, "istio.io/ingress-use-waypoint": for_ingress});
            self.cluster.apply(&service(name, json!({"app": "tea"}), labels)).await?;
        }
        for name in ["entered", "passed", "tea-v1"] {
            let route = json!([{"destination": {"host": format!("{name}.{SERVERS}.svc.cluster.local")}}]);
            let hosts = [format!("{name}.example")];
            let spec = json!({"hosts": hosts, "gateways": ["door"], "http": [{"route": route}]});
            self.cluster.apply(&of_clients("VirtualService", name, spec)).await?;
        }
        let [entered, passed] = ["entered.example", "passed.example"].map(|host| self.to_door(host));
        for request in [&entered, &passed] {
            self.answers("outsider", request, &TEA).await?;
        }
        // The waypoint enforces the policy of a Service, and sees the identity of the gateway.
        for name in ["entered", "passed"] {
            let target = json!([{"group": "", "kind": "Service", "name": name}]);
            let source = json!({"source": {"principals": ["cluster.local/ns/shop/sa/door"]}});
            let to = json!({"operation": {"paths": ["/public*"]}});
            let allow = json!({"targetRefs": target, "action": "ALLOW", "rules": [{"from": [source], "to": [to]}]});
            self.cluster.apply(&object("security.istio.io/v1", "AuthorizationPolicy", name, allow)).await?;
        }
        self.answers("outsider", &entered.clone().path("/private"), &["status 403"]).await?;
        self.answers("outsider", &entered.path("/public"), &TEA).await?;
        self.answers("outsider", &passed.path("/private"), &TEA).await
    }

    /// A sidecar sends over tunnels to the pods of a Service, and not through its waypoint, as with Istio.
    async fn sidecar(&self) -> Result<()> {
        let steady = self.to_service("steady").await?;
        self.answers("insider", &steady, &TEA).await?;
        until("both applications are called by tunnels of the sidecar", async || {
            self.answers("insider", &steady, &TEA).await?;
            Ok(["tea-v1", "tea-v2"].iter().all(|pod| self.has_accepted(Some(INSIDER_ID), pod)))
        })
        .await?;
        // The waypoint would deny this.
        self.answers("insider", &self.to_service("entered").await?.path("/private"), &TEA).await
    }

    /// Another pod of the waypoint replaces the first one while requests are sent.
    async fn replacement(&self) -> Result<()> {
        let before = self.node.ready();
        let request = self.to_service("tea-v1").await?;
        let labels = json!({"istio.io/use-waypoint": WAYPOINT, "istio.io/ingress-use-waypoint": "true"});
        let labels = json!({"metadata": {"labels": labels}});
        self.cluster.patch("v1", "Service", (SERVERS, "tea-v1"), &labels).await?;
        let through_gateway = self.to_door("tea-v1.example");
        let senders =
            [("client", &request), ("stranger", &request), ("insider", &request), ("outsider", &through_gateway)];
        for (from, request) in senders {
            self.answers(from, request, &["tea v1"]).await?;
        }
        let streams =
            senders.map(|(from, request)| Stream::new(self.mesh.pods.shared(from), request.clone(), "tea v1"));
        let restart = json!({"spec": {"template": {"metadata": {"annotations": {"restarted": "yes"}}}}});
        let is_old = |name: &str| name.starts_with(WAYPOINT) && before.contains_key(name);
        let change = async {
            self.cluster.patch("apps/v1", "Deployment", (SERVERS, WAYPOINT), &restart).await?;
            until("the first pod of the waypoint has ended", async || {
                Ok(self.node.ended().iter().any(|pod| is_old(&pod.name)))
            })
            .await?;
            tokio::time::sleep(OBSERVED).await;
            Ok(())
        };
        let ((), requests) = under_load(&streams, change).await?;
        eprintln!("{requests} requests while the waypoint was replaced");
        let ready = self.node.ready();
        let mut waypoints = ready.keys().filter(|name| name.starts_with(WAYPOINT));
        ensure!(waypoints.any(|name| !is_old(name)), "another pod is ready: {ready:?}");
        Ok(())
    }
}
