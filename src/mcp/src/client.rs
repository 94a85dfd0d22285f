//! Configuration of another control plane, read over xDS (C08).
//!
//! The client subscribes to all kinds in the state of the world: servers of configuration serve that protocol in any case. A
//! response has all objects of its kind. While there is no stream, the last objects stay.

mod received;
mod stream;
mod tls;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use rustls::pki_types::ServerName;
use serde_json::json;
use sluice_crypto::CompliancePolicy;
use sluice_kube::Backoff;
use sluice_model::{ClientTls, Severity, Text};
use sluice_parse::KindInfo;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::DiscoveryResponse;
use sluice_sources::configuration::{ConfigSourceState, SourceFinding, SourceFindings, configuration_kinds};
use sluice_sources::{Cluster, Sink, log_rejects};
use sluice_tasks::restart_with;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::kinds::{kind_of_type, type_url};
use received::ReceivedObjects;
use stream::SourceStream;
pub use tls::SourceCredentials;
use tls::SourceTls;

/// Wait after a failed stream. It doubles with each further one.
const FIRST_RETRY_WAIT: Duration = Duration::from_millis(250);
/// Longest wait after a failed stream.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(10);
/// Time between two warnings with one reason about a source that cannot be read.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Reasons that are remembered, for example those of several addresses.
const MAX_REASONS: usize = 8;
/// The version that the node states, as istiod's client does.
const CLIENT_VERSION: &str = "65536.65536.65536";

/// What the node of the client says about this control plane.
#[derive(Clone, Debug)]
pub struct SourceNode {
    /// Namespace of this control plane.
    pub namespace: Text,
    /// Name of its pod; empty outside Kubernetes.
    pub pod: Text,
    /// The revision whose configuration is read; empty is all.
    pub revision: Text,
    /// DNS domain of services.
    pub domain: Text,
}

/// A source of configuration over xDS.
pub struct McpSource {
    /// `HOST:PORT`.
    pub server: Text,
    /// Its URL in the mesh config.
    pub address: Text,
    /// Its index in the mesh config.
    pub index: usize,
    /// TLS of the connection; `None` is plaintext.
    pub tls: Option<ClientTls>,
    /// Certificates that are not in files.
    pub credentials: Arc<dyn SourceCredentials>,
    /// Limits the parameters of TLS.
    pub policy: Option<CompliancePolicy>,
    /// The node of the client.
    pub node: SourceNode,
    /// The local cluster, which the objects are read for.
    pub cluster: Cluster,
    /// Receives the objects.
    pub sink: Arc<dyn Sink>,
    /// The state of the stream.
    pub state: ConfigSourceState,
    /// Findings about the source.
    pub findings: SourceFindings,
}

/// A source that is read, and what it has sent.
struct Reading {
    source: McpSource,
    received: ReceivedObjects,
    backoff: Backoff,
    /// The last reasons that were logged as warnings, the newest last, and when.
    warned: VecDeque<(Instant, String)>,
}

impl McpSource {
    /// Reads the source until `stop` is cancelled. It connects again after each failure.
    pub async fn run(self, stop: CancellationToken) {
        let received = ReceivedObjects::new(self.address.clone(), self.cluster.clone());
        self.state.received(0, received.not_answered());
        let name = format!("source of configuration {}", self.address);
        let mut reading = Reading {
            source: self,
            received,
            backoff: Backoff::new(FIRST_RETRY_WAIT, MAX_RETRY_WAIT),
            warned: VecDeque::new(),
        };
        // A new stream has all objects, so it contains what a panic has left out.
        let run = restart_with(&name, &mut reading, |reading| reading.run().boxed());
        tokio::select! {
            () = run => {}
            () = stop.cancelled() => {}
        }
    }
}

impl Reading {
    async fn run(&mut self) {
        loop {
            let Err(reason) = self.read().await;
            self.failed(reason);
            tokio::time::sleep(self.backoff.failed()).await;
        }
    }

    /// Reads one stream to its end.
    async fn read(&mut self) -> Result<std::convert::Infallible, String> {
        let McpSource { server, tls, credentials, policy, node, .. } = &self.source;
        let tls = match tls {
            Some(settings) => SourceTls::new(settings, &**credentials, *policy).await?.map(|tls| (tls, settings)),
            None => None,
        };
        let tls = tls.map(|(tls, settings)| Ok::<_, String>((tls, server_name(server, settings)?))).transpose()?;
        let types = configuration_kinds().map(type_url).collect();
        let mut stream = SourceStream::open(server, tls, |address| node.at(address), types).await?;
        loop {
            let response = stream.next().await?;
            let DiscoveryResponse { type_url, version_info, nonce, resources, .. } = response;
            if let Some(info) = kind_of_type(&type_url) {
                tokio::task::block_in_place(|| self.apply(info, &resources));
                self.connected();
            } else {
                debug!(target: "adsc", source = %self.source.address, type_url, "response of an unknown type");
            }
            // As in Istio, every response is acknowledged: invalid objects are findings, and the others apply.
            stream.acknowledge(type_url, version_info, nonce);
        }
    }

    /// Commits what a response changes.
    fn apply(&mut self, info: &'static KindInfo, resources: &[sluice_proto::google::protobuf::Any]) {
        let mut response = self.received.compare(info, resources);
        let changes = std::mem::take(&mut response.changes);
        for parsed in changes.iter().filter_map(|change| change.object.as_deref()) {
            log_rejects(parsed, &self.source.address, |_| Vec::new());
        }
        debug!(
            target: "adsc", source = %self.source.address, kind = %info.kind, resources = resources.len(),
            changes = changes.len(), "received configuration"
        );
        // Only what is committed counts as received.
        if !changes.is_empty() {
            self.source.sink.commit(changes);
        }
        if self.received.accept(response) {
            self.source.sink.synced(&self.source.cluster.id, &[info.kind]);
        }
        self.source.state.received(self.received.len(), self.received.not_answered());
    }

    /// A response has arrived.
    fn connected(&mut self) {
        self.backoff.reset();
        if self.source.state.connected() {
            info!(target: "adsc", source = %self.source.address, "reading configuration");
        }
        self.write_findings(None);
    }

    fn failed(&mut self, reason: String) {
        self.warned.retain(|(at, _)| at.elapsed() < WARNING_INTERVAL);
        if !self.warned.iter().any(|(_, known)| *known == reason) {
            if self.warned.len() == MAX_REASONS {
                self.warned.pop_front();
            }
            self.warned.push_back((Instant::now(), reason.clone()));
            let waiting = self.received.not_answered().len();
            warn!(target: "adsc", source = %self.source.address, reason, types_not_read = waiting, "cannot read configuration");
        } else {
            debug!(target: "adsc", source = %self.source.address, reason, "cannot read configuration");
        }
        self.write_findings(Some(&reason));
        self.source.state.failed(reason);
    }

    /// Writes the findings about the source, with the reason why there is no stream.
    fn write_findings(&self, failure: Option<&str>) {
        let failure = failure.map(|reason| {
            let applies = match self.received.not_answered().is_empty() {
                true => "its last objects apply",
                false => "proxies are not served until it has been read",
            };
            SourceFinding {
                field_path: format!("[{}].address", self.source.index),
                reason: format!("`{}` cannot be read, {applies}: {reason}", self.source.address),
                severity: Severity::Warning,
            }
        });
        let invalid = self.received.invalid().into_iter().map(|reason| SourceFinding {
            field_path: format!("[{}]", self.source.index),
            reason: format!("`{}`: {reason}", self.source.address),
            severity: Severity::Error,
        });
        self.source.findings.set(Some(self.source.index), failure.into_iter().chain(invalid).collect());
    }
}

impl SourceNode {
    /// The node of a client at an address.
    fn at(&self, address: IpAddr) -> Node {
        let Self { namespace, pod, revision, domain } = self;
        let pod = if pod.is_empty() { "sluiced" } else { pod };
        let mut metadata = json!({"GENERATOR": "api", "ISTIO_VERSION": CLIENT_VERSION, "NAMESPACE": namespace});
        if !revision.is_empty() {
            // A server may leave out what other revisions read.
            metadata["ISTIO_REVISION"] = revision.as_str().into();
        }
        let node = json!({
            "id": format!("sidecar~{address}~{pod}.{namespace}~{namespace}.svc.{domain}"),
            "metadata": metadata,
        });
        // The object has the fields of a node.
        sluice_proto::json::decode::<Node>(&node).map(|node| node.message).unwrap_or_default()
    }
}

/// The name that the certificate of the server has to have: the SNI, or the host.
fn server_name(server: &str, settings: &ClientTls) -> Result<ServerName<'static>, String> {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host).trim_matches(['[', ']']);
    let name = if settings.sni.is_empty() { host } else { &settings.sni };
    ServerName::try_from(name.to_owned()).map_err(|error| format!("{name:?} is not the name of a server: {error}"))
}

#[cfg(test)]
mod tests;
