//! A node proxy with the protocols of ztunnel: addresses and policies over delta ADS, certificates for the pods of its node, and
//! tunnels (HBONE) from and to these pods.
//!
//! It listens in the network namespace of each pod, to which the rules of the CNI agent redirect the traffic of the pod.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sys::socket::{setsockopt, sockopt};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use sluice_redirection::ambient::ZTUNNEL_MARK;
use sluice_redirection::namespace::NetworkNamespace;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::hbone::{self, HboneStream, TunnelConnection, TunnelCredentials};
use sluice_testkit::pods::identity::{certificates, private_key};
use sluice_testkit::pods::pod_set::Pod;
use sluice_testkit::pods::workload::Workload;
use sluice_testkit::secure::{self, CertificateRequest, ClientTls, signing_request};
use sluice_testkit::zds::{ZdsClient, ZdsMessage};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::transport::Channel;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::addresses::{Addresses, RemoteService, Route, TUNNEL_PORT};
use super::policy::{WorkloadConnection, permit};
use crate::fixture::SYSTEM;

/// The service account of node proxies.
const ACCOUNT: &str = "ztunnel";
const OUTBOUND_PORT: u16 = 15001;
const INBOUND_PORT: u16 = 15006;
/// Longest wait for the answer to a request for a name.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to open a tunnel: a connection that other tunnels have used may be closing.
const MAX_ATTEMPTS: usize = 3;

/// How addresses are requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AddressDiscovery {
    /// All of them.
    All,
    /// Each when a connection needs it.
    OnDemand,
}

/// Where a node proxy runs.
#[derive(Clone, Copy)]
pub(crate) struct NodeLocation<'a> {
    /// The cluster.
    pub(crate) cluster: &'a Cluster,
    /// Its id.
    pub(crate) cluster_id: &'a str,
    /// Its network, empty if there is only one.
    pub(crate) network: &'a str,
    /// The node.
    pub(crate) node: &'a str,
}

/// A connection that was accepted for a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Accepted {
    /// The SPIFFE id of the client; `None` in plaintext.
    pub(crate) client: Option<String>,
    /// The address of the application.
    pub(crate) to: SocketAddr,
    /// Whether policies permit it.
    pub(crate) is_permitted: bool,
    /// The network that the client states.
    pub(crate) from_network: Option<String>,
    /// The metadata that the client states.
    pub(crate) baggage: Option<String>,
}

/// The node proxy of a node. It ends when this is dropped.
pub(crate) struct Ztunnel {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<Result<()>>>,
}

struct Shared {
    discovery: AddressDiscovery,
    network: String,
    channel: Channel,
    token: String,
    roots: String,
    addresses: RwLock<Addresses>,
    changed: watch::Sender<u64>,
    requests: mpsc::UnboundedSender<String>,
    /// Connections for tunnels by identity of the client, address and identity of the server.
    connections: Mutex<BTreeMap<(String, SocketAddr, String), TunnelConnection>>,
    accepted: Mutex<Vec<Accepted>>,
    failures: Mutex<BTreeMap<String, usize>>,
}

/// A pod of the node.
struct LocalPod {
    ip: Ipv4Addr,
    identity: String,
    workload_namespace: String,
    namespace: NetworkNamespace,
    credentials: TunnelCredentials,
}

impl Ztunnel {
    /// Creates the pod of a node proxy, and connects to a control plane as it.
    pub(crate) async fn start(
        at: NodeLocation<'_>,
        discovery: AddressDiscovery,
        control_plane: SocketAddr,
    ) -> Result<Self> {
        let NodeLocation { cluster, cluster_id, network, node } = at;
        let account = json!({"namespace": SYSTEM, "name": ACCOUNT});
        cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})).await?;
        let name = format!("{ACCOUNT}-{node}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": SYSTEM, "name": name, "labels": {"app": ACCOUNT}},
            "spec": {"nodeName": node, "serviceAccountName": ACCOUNT,
                     "containers": [{"name": "istio-proxy", "image": "ztunnel"}]},
        });
        let pod = cluster.apply(&pod).await?;
        let uid = pod["metadata"]["uid"].as_str().context("the pod has a UID")?;
        let token = cluster.create_token((SYSTEM, ACCOUNT), Some("istio-ca"), Some((&name, uid))).await?;
        let roots = cluster.get("v1", "ConfigMap", SYSTEM, "istio-ca-root-cert").await?.unwrap_or_default();
        let roots = roots["data"]["root-cert.pem"].as_str().context("the ConfigMap has roots")?.to_owned();
        let options = ClientTls::default();
        let channel = secure::connect(control_plane, "istiod.istio-system.svc", &roots, &options).await?;
        let identity = Identity::of_node(&json!({
            "id": format!("ztunnel~192.0.2.10~{name}.{SYSTEM}~{SYSTEM}.svc.cluster.local"),
            "metadata": {
                "NAMESPACE": SYSTEM, "SERVICE_ACCOUNT": ACCOUNT, "NODE_NAME": node, "CLUSTER_ID": cluster_id,
                "NETWORK": network,
            },
        }))?;
        let stream = AdsStream::open_with_token(channel.clone(), Protocol::Delta, identity, &token)?;
        let (requests, requested) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            discovery,
            network: network.to_owned(),
            channel,
            token,
            roots,
            addresses: RwLock::default(),
            changed: watch::Sender::new(0),
            requests,
            connections: Mutex::default(),
            accepted: Mutex::default(),
            failures: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().follow(stream, requested));
        Ok(Self { shared, tasks: Mutex::new(tasks) })
    }

    /// Serves the pods that the CNI agent of the node enrols, until it withdraws them. `pods`: those that it may enrol.
    pub(crate) async fn follow_agent(&self, socket: &Path, pods: &[&Pod]) -> Result<()> {
        let agent = ZdsClient::connect(socket).await?;
        let name = |Workload { namespace, name, app, .. }: &Workload| format!("{namespace}/{name}/{app}");
        let addresses = pods.iter().map(|pod| (name(&pod.workload), pod.net.ip)).collect();
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn(self.shared.clone().serve_agent(agent, addresses));
        Ok(())
    }

    /// The connections that were accepted so far for pods of the node.
    pub(crate) fn accepted(&self) -> Vec<Accepted> {
        self.shared.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why connections have failed so far, and how often.
    pub(crate) fn failures(&self) -> BTreeMap<String, usize> {
        self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a certificate of an identity is refused. Only those of pods of the node are issued.
    pub(crate) async fn is_refused(&self, identity: &str) -> bool {
        self.shared.certificate(identity).await.is_err()
    }
}

impl Shared {
    /// Follows addresses and policies.
    async fn follow(
        self: Arc<Self>,
        mut stream: AdsStream,
        mut requested: mpsc::UnboundedReceiver<String>,
    ) -> Result<()> {
        stream.subscribe(Kind::WdsAuthz.type_url(), &[], BTreeMap::new())?;
        let mut names = Vec::new();
        if self.discovery == AddressDiscovery::All {
            stream.subscribe(Kind::WdsAddress.type_url(), &names, BTreeMap::new())?;
        }
        loop {
            tokio::select! {
                update = stream.next() => {
                    let update = update?.context("the control plane ends the stream")?;
                    self.addresses.write().unwrap_or_else(PoisonError::into_inner).apply(&update)?;
                    stream.ack(&update)?;
                    self.changed.send_modify(|version| *version += 1);
                }
                Some(name) = requested.recv() => {
                    names.push(name);
                    stream.subscribe(Kind::WdsAddress.type_url(), &names, BTreeMap::new())?;
                }
            }
        }
    }

    /// Serves each pod from its enrolment until its withdrawal. `addresses`: of pods by namespace, name and service account.
    async fn serve_agent(self: Arc<Self>, agent: ZdsClient, addresses: BTreeMap<String, Ipv4Addr>) -> Result<()> {
        let mut served: BTreeMap<String, watch::Sender<()>> = BTreeMap::new();
        let mut listeners = JoinSet::new();
        loop {
            let served_now = match agent.wait_for_message().await? {
                ZdsMessage::Add { uid, namespace: Some(_), .. } if served.contains_key(&uid) => Ok(()),
                ZdsMessage::Add { uid, name, namespace: Some(namespace) } => {
                    let file = format!("/proc/self/fd/{}", namespace.as_raw_fd());
                    let serve = async {
                        let ip = *addresses.get(&name).context("the pod is to be enrolled")?;
                        let namespace = NetworkNamespace::open(Path::new(&file))?;
                        let stop = watch::Sender::new(());
                        self.serve(LocalPod::new(&self, &name, ip, namespace).await?, &mut listeners, &stop)?;
                        served.insert(uid, stop);
                        anyhow::Ok(())
                    };
                    serve.await.with_context(|| format!("serve {name}"))
                }
                ZdsMessage::Add { name, namespace: None, .. } => Err(anyhow!("{name} has no network namespace")),
                ZdsMessage::Del(uid) => {
                    if let Some(stop) = served.remove(&uid) {
                        stop.send_replace(());
                        // The next enrolment needs the ports.
                        stop.closed().await;
                    }
                    Ok(())
                }
                ZdsMessage::Keep(_) | ZdsMessage::SnapshotSent => Ok(()),
            };
            let error = served_now.err().map(|error| {
                self.failed("the CNI agent", &error);
                format!("{error:#}")
            });
            agent.acknowledge(&error.unwrap_or_default())?;
        }
    }

    /// Listens in the namespace of a pod, until `stop` sends. Open connections and tunnels continue.
    fn serve(
        self: &Arc<Self>,
        pod: LocalPod,
        listeners: &mut JoinSet<Result<()>>,
        stop: &watch::Sender<()>,
    ) -> Result<()> {
        let listen = |port: u16| -> Result<TcpListener> {
            let listener = pod.namespace.run(|| StdListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener).with_context(|| format!("listen on port {port}"))
        };
        let (outbound, inbound, tunnels) = (listen(OUTBOUND_PORT)?, listen(INBOUND_PORT)?, listen(TUNNEL_PORT)?);
        let acceptor = pod.acceptor()?;
        let pod = Arc::new(pod);
        let (shared, local) = (self.clone(), pod.clone());
        let handle = move |stream, _| outbound_connection(shared.clone(), local.clone(), stream);
        listeners.spawn(accept(outbound, stop.subscribe(), handle));
        let (shared, local) = (self.clone(), pod.clone());
        let handle = move |stream, from| plaintext_connection(shared.clone(), local.clone(), stream, from);
        listeners.spawn(accept(inbound, stop.subscribe(), handle));
        let (shared, ends) = (self.clone(), stop.subscribe());
        let handle = move |stream, from| {
            tunnel_connection(shared.clone(), pod.clone(), acceptor.clone(), ends.clone(), (stream, from))
        };
        listeners.spawn(accept(tunnels, stop.subscribe(), handle));
        Ok(())
    }

    /// Where a connection goes, once the names that this depends on are answered.
    async fn route(&self, to: SocketAddr) -> Result<Route> {
        let mut changed = self.changed.subscribe();
        let mut requested = String::new();
        let answered = async {
            loop {
                let route = self.addresses.read().unwrap_or_else(PoisonError::into_inner).route(to)?;
                let Route::Unknown(name) = route else { return Ok(route) };
                if self.discovery == AddressDiscovery::OnDemand && requested != name {
                    self.requests.send(name.clone()).context("request a name")?;
                    requested = name;
                } else if self.discovery == AddressDiscovery::All && *changed.borrow() > 0 {
                    // All addresses are known, so this one is outside of the mesh.
                    return Ok(Route::Plaintext(to));
                }
                changed.changed().await.context("the stream has ended")?;
            }
        };
        tokio::time::timeout(ANSWER_TIMEOUT, answered).await.with_context(|| format!("no answer about {to}"))?
    }

    /// A certificate of an identity, and its key.
    async fn certificate(&self, identity: &str) -> Result<(String, String)> {
        let (key, csr) = signing_request()?;
        let mut request = CertificateRequest::with_token(&csr, &self.token);
        request.metadata.push(("ImpersonatedIdentity", identity.to_owned()));
        Ok((request.send(&self.channel).await?.concat(), key))
    }

    /// Opens a tunnel of a pod, on a connection that its tunnels to the same proxy share. `to`: the authority of the request.
    async fn tunnel(&self, pod: &LocalPod, proxy: SocketAddr, identity: &str, to: &str) -> Result<HboneStream> {
        let key = (pod.identity.clone(), proxy, identity.to_owned());
        let mut last = None;
        for _ in 0..MAX_ATTEMPTS {
            let shared = self.connections.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
            let mut connection = match shared {
                Some(connection) => connection,
                None => {
                    let stream = pod.connect(proxy).await?;
                    let connection =
                        hbone::connect(stream, proxy.ip(), &pod.credentials, &[identity.to_owned()]).await?;
                    let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
                    connections.insert(key.clone(), connection.clone());
                    connection
                }
            };
            match hbone::open(&mut connection, to, &[]).await {
                Ok(Ok(tunnel)) => return Ok(tunnel),
                Ok(Err(status)) => bail!("{proxy} refuses a tunnel to {to} with {status}"),
                Err(error) => {
                    self.connections.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
                    last = Some(error);
                }
            }
        }
        Err(last.context("an attempt was made")?)
    }

    /// Opens a tunnel of a pod to a service in another network, in a tunnel to the gateway of that network.
    async fn double_tunnel(&self, pod: &LocalPod, to: &RemoteService) -> Result<HboneStream> {
        let outer = self.tunnel(pod, to.gateway, &to.gateway_identity, &to.authority).await?;
        let mut inner = hbone::connect(outer, to.gateway.ip(), &pod.credentials, &to.identities).await?;
        let baggage = format!("k8s.namespace.name={}", pod.workload_namespace);
        let headers = [("baggage", baggage.as_str()), ("x-forwarded-network", self.network.as_str())];
        let opened = hbone::open(&mut inner, &to.authority, &headers).await?;
        opened.map_err(|status| anyhow::anyhow!("a proxy behind {} refuses a tunnel with {status}", to.gateway))
    }

    /// Whether policies permit a connection to a pod. `stated`: the headers of its tunnel.
    async fn permits(
        &self,
        pod: &LocalPod,
        (client, from): (Option<&str>, IpAddr),
        to: SocketAddr,
        stated: &HeaderMap,
    ) -> Result<bool> {
        // The policies of a workload are named in it.
        self.route(SocketAddr::new(pod.ip.into(), to.port())).await?;
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        let workload = addresses.workload_at(pod.ip.into()).context("the workload of the pod is known")?;
        let is_permitted = permit(addresses.policies.values(), workload, &WorkloadConnection { client, from, to });
        let header = |name: &str| stated.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (from_network, baggage) = (header("x-forwarded-network"), header("baggage"));
        let accepted = Accepted { client: client.map(str::to_owned), to, is_permitted, from_network, baggage };
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).push(accepted);
        Ok(is_permitted)
    }

    /// The address in the authority of a CONNECT request, or that of the pod for the host and port of a service.
    async fn destination(&self, pod: &LocalPod, authority: &str) -> Result<Option<SocketAddr>> {
        if let Ok(address) = authority.parse() {
            return Ok(Some(address));
        }
        self.route(SocketAddr::new(pod.ip.into(), TUNNEL_PORT)).await?;
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        Ok(addresses.port_of(pod.ip.into(), authority).map(|port| SocketAddr::new(pod.ip.into(), port)))
    }

    fn failed(&self, what: &str, error: &anyhow::Error) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry(format!("{what}: {error:#}")).or_default() += 1;
    }
}

impl LocalPod {
    /// The pod with a name as ZDS has it, and a certificate for it.
    async fn new(shared: &Shared, name: &str, ip: Ipv4Addr, namespace: NetworkNamespace) -> Result<Self> {
        let mut parts = name.split('/');
        let (workload_namespace, account) = (parts.next().unwrap_or_default(), parts.next_back().unwrap_or_default());
        let identity = format!("spiffe://cluster.local/ns/{workload_namespace}/sa/{account}");
        let certificate = shared.certificate(&identity).await.with_context(|| format!("certificate of {identity}"))?;
        let credentials = TunnelCredentials { certificate, roots: shared.roots.clone() };
        Ok(Self { ip, identity, workload_namespace: workload_namespace.to_owned(), namespace, credentials })
    }

    /// Connects from the namespace of the pod. The rules of the pod do not redirect the connection.
    async fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        let socket = self.namespace.run(TcpSocket::new_v4)??;
        setsockopt(&socket, sockopt::Mark, &ZTUNNEL_MARK).context("mark a socket")?;
        socket.connect(to).await.with_context(|| format!("connect to {to}"))
    }

    /// Accepts clients with a certificate of the mesh.
    fn acceptor(&self) -> Result<TlsAcceptor> {
        let roots: RootCertStore = hbone::root_store(&self.credentials.roots)?;
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().context("read the roots")?;
        let (chain, key) = &self.credentials.certificate;
        let builder = ServerConfig::builder().with_client_cert_verifier(verifier);
        let mut config = builder.with_single_cert(certificates(chain)?, private_key(key)?)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Handles each connection of a listener, until `stop` receives or its sender is dropped.
async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    mut stop: watch::Receiver<()>,
    handle: impl Fn(TcpStream, IpAddr) -> F,
) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Connections that wait to be accepted precede the end.
            biased;
            accepted = listener.accept() => {
                let (stream, from) = accepted.context("accept a connection")?;
                connections.spawn(handle(stream, from.ip()));
            }
            Some(_) = connections.join_next() => {}
            _ = stop.changed() => break,
        }
    }
    drop((listener, stop, handle));
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// The destination of a connection before it was redirected.
fn original_destination(stream: &TcpStream) -> Result<SocketAddr> {
    let address = rustix::net::sockopt::ip_original_dst(stream).context("read the original destination")?;
    Ok(SocketAddr::V4(address))
}

async fn outbound_connection(shared: Arc<Shared>, pod: Arc<LocalPod>, mut stream: TcpStream) {
    let forward = async {
        let to = original_destination(&stream)?;
        match shared.route(to).await? {
            Route::Plaintext(to) => {
                let mut server = pod.connect(to).await?;
                // Either side may end the connection at any time.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
            }
            Route::Remote(service) => {
                let mut tunnel = shared.double_tunnel(&pod, &service).await?;
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut tunnel).await;
            }
            Route::Tunnel { proxy, identity, destination } => {
                let mut tunnel = shared.tunnel(&pod, proxy, &identity, &destination.to_string()).await?;
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut tunnel).await;
            }
            Route::Unknown(name) => bail!("{name} is not answered"),
        }
        anyhow::Ok(())
    };
    if let Err(error) = forward.await {
        shared.failed(&format!("a connection of {}", pod.identity), &error);
    }
}

async fn plaintext_connection(shared: Arc<Shared>, pod: Arc<LocalPod>, mut stream: TcpStream, from: IpAddr) {
    let forward = async {
        let to = original_destination(&stream)?;
        ensure!(
            shared.permits(&pod, (None, from), to, &HeaderMap::new()).await?,
            "policies do not permit plaintext from {from} to {to}"
        );
        let mut server = pod.connect(to).await?;
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
        anyhow::Ok(())
    };
    if let Err(error) = forward.await {
        shared.failed(&format!("a plaintext connection to {}", pod.identity), &error);
    }
}

async fn tunnel_connection(
    shared: Arc<Shared>,
    pod: Arc<LocalPod>,
    acceptor: TlsAcceptor,
    mut stop: watch::Receiver<()>,
    (stream, from): (TcpStream, IpAddr),
) {
    let serve = async {
        let stream = acceptor.accept(stream).await.context("TLS handshake")?;
        let presented = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let client = spiffe_id(presented.context("the client has a certificate")?)?;
        let service = service_fn(|request: Request<Incoming>| {
            let (shared, pod, client) = (shared.clone(), pod.clone(), client.clone());
            async move {
                let status = match connect_request(&shared, &pod, (&client, from), request).await {
                    Ok(status) => status,
                    Err(error) => {
                        shared.failed(&format!("a tunnel of {client} to {}", pod.identity), &error);
                        StatusCode::SERVICE_UNAVAILABLE
                    }
                };
                let mut response = Response::new(Empty::<Bytes>::new());
                *response.status_mut() = status;
                Ok::<_, hyper::Error>(response)
            }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // The client may end the connection at any time.
            _ = &mut connection => return Ok(()),
            _ = stop.changed() => drop(stop),
        }
        // Open tunnels continue, and there are no new ones.
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
        anyhow::Ok(())
    };
    if let Err(error) = serve.await {
        shared.failed(&format!("tunnels from {from} to {}", pod.identity), &error);
    }
}

/// Answers a CONNECT request, and forwards the data of its tunnel.
async fn connect_request(
    shared: &Shared,
    pod: &LocalPod,
    (client, from): (&str, IpAddr),
    request: Request<Incoming>,
) -> Result<StatusCode> {
    let to = match request.uri().authority() {
        Some(authority) => shared.destination(pod, authority.as_str()).await?,
        None => None,
    };
    let Some(to) = to.filter(|to| request.method() == Method::CONNECT && to.ip() == IpAddr::from(pod.ip)) else {
        return Ok(StatusCode::BAD_REQUEST);
    };
    if !shared.permits(pod, (Some(client), from), to, request.headers()).await? {
        return Ok(StatusCode::UNAUTHORIZED);
    }
    let mut server = pod.connect(to).await?;
    tokio::spawn(async move {
        let Ok(tunnel) = hyper::upgrade::on(request).await else { return };
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(tunnel), &mut server).await;
    });
    Ok(StatusCode::OK)
}

/// The SPIFFE id in a certificate.
fn spiffe_id(der: &[u8]) -> Result<String> {
    let (_, certificate) = X509Certificate::from_der(der).context("read a certificate")?;
    let names = certificate.subject_alternative_name()?.context("the certificate has names")?;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    });
    uris.next().context("the certificate has a SPIFFE id")
}
