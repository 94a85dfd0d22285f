//! The application in a pod. The test starts it, and writes the requests it has to send to its standard input.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::command_process::CommandProcess;

/// Path that the application answers with the requests it received; `?marker=` selects paths that contain a text.
pub const RECEIVED: &str = "/received";

/// Protocol of a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub enum AppProtocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2, by prior knowledge or by ALPN.
    Http2,
    /// Plain TCP: the body is sent, and one line is read.
    Raw,
    /// UDP: the body is sent as a datagram, and one is read.
    Datagram,
}

/// TLS settings of the client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tls {
    /// Server name: sent as SNI, and verified in the server's certificate.
    pub server_name: String,
    /// Roots of the server's certificate, PEM.
    pub roots: String,
    /// The client's own certificate chain and key, PEM.
    pub identity: Option<(String, String)>,
    /// ALPN protocols.
    pub alpn: Vec<String>,
}

/// A tunnel to a waypoint (HBONE).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HboneTunnel {
    /// The waypoint.
    pub waypoint: SocketAddr,
    /// The identity that its certificate must have.
    pub identity: String,
    /// Roots of its certificate, PEM.
    pub roots: String,
    /// The client's certificate chain and key, PEM.
    pub certificate: (String, String),
}

/// One request to send from inside the pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppRequest {
    /// Echoed in the reply.
    pub id: u64,
    /// Where to connect.
    pub address: SocketAddr,
    /// `Host` header.
    pub host: String,
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Further headers.
    pub headers: BTreeMap<String, String>,
    /// Body, may be empty.
    pub body: String,
    /// Timeout in milliseconds.
    pub timeout_ms: u64,
    /// Its protocol.
    pub protocol: AppProtocol,
    /// Over TLS.
    pub tls: Option<Tls>,
    /// Through a tunnel to the address.
    pub tunnel: Option<HboneTunnel>,
    /// Reuses a connection of an earlier request, if there is one: HTTP/1.1 in plaintext only.
    pub reuse_connection: bool,
}

impl AppRequest {
    /// `GET /` of a host at an address, with a timeout of five seconds.
    #[must_use]
    pub fn get(address: SocketAddr, host: &str) -> Self {
        Self {
            id: 0,
            address,
            host: host.to_owned(),
            method: "GET".to_owned(),
            path: "/".to_owned(),
            headers: BTreeMap::new(),
            body: String::new(),
            timeout_ms: 5000,
            protocol: AppProtocol::Http1,
            tls: None,
            tunnel: None,
            reuse_connection: false,
        }
    }

    /// Opens a connection, sends a line, and reads one.
    #[must_use]
    pub fn raw(address: SocketAddr) -> Self {
        Self { protocol: AppProtocol::Raw, body: "hello\n".to_owned(), ..Self::get(address, "") }
    }

    /// Sends a datagram from a port of its own, and reads one.
    #[must_use]
    pub fn datagram(address: SocketAddr) -> Self {
        Self { protocol: AppProtocol::Datagram, body: "hello".to_owned(), timeout_ms: 1000, ..Self::get(address, "") }
    }

    /// With another path.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// With another method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        method.clone_into(&mut self.method);
        self
    }

    /// On a reused connection: thousands of connections would use up the ports of a pod.
    #[must_use]
    pub const fn reuse_connection(mut self) -> Self {
        self.reuse_connection = true;
        self
    }

    /// Over HTTP/2.
    #[must_use]
    pub fn http2(mut self) -> Self {
        self.protocol = AppProtocol::Http2;
        self
    }

    /// Over TLS.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Through a tunnel.
    #[must_use]
    pub fn through(mut self, tunnel: HboneTunnel) -> Self {
        self.tunnel = Some(tunnel);
        self
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A description of the request of a pod.
    #[must_use]
    pub fn describe(&self, from: &str) -> String {
        let tls = self.tls.as_ref().map(|tls| format!(" over TLS to {:?}", tls.server_name)).unwrap_or_default();
        let tunnel =
            self.tunnel.as_ref().map(|tunnel| format!(" through the waypoint {}", tunnel.waypoint)).unwrap_or_default();
        let Self { method, host, path, address, headers, protocol, .. } = self;
        format!("{from} sent {method} {host}{path} to {address}{tunnel} by {protocol:?}{tls} with {headers:?}")
    }
}

/// A response.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppResponse {
    /// Status code, 0 for a raw connection.
    pub status: u16,
    /// Headers; of several with one name, the last.
    pub headers: BTreeMap<String, String>,
    /// Body as text.
    pub body: String,
}

impl AppResponse {
    /// `name version` of the application that responded, empty if the body is not from one.
    #[must_use]
    pub fn responder(&self) -> String {
        let body = self.received_request();
        match (body["name"].as_str(), body["version"].as_str()) {
            (Some(name), Some(version)) => format!("{name} {version}"),
            _ => String::new(),
        }
    }

    /// The request as the application received it; null if the body is not from one.
    #[must_use]
    pub fn received_request(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppReply {
    /// Id of the request; 0 means that the application is ready.
    pub id: u64,
    /// From the start of the connect to the end of the body.
    pub elapsed_us: u64,
    /// The response, or the error.
    pub outcome: Result<AppResponse, String>,
}

impl AppReply {
    /// The first line of an application: its listeners are open.
    #[must_use]
    pub fn ready() -> Self {
        Self { id: 0, elapsed_us: 0, outcome: Err("ready".to_owned()) }
    }

    /// The application that responded with 200; otherwise `status N`, or the error.
    #[must_use]
    pub fn responder(&self) -> String {
        match &self.outcome {
            Ok(answer) if answer.status == 200 || answer.status == 0 => answer.responder(),
            Ok(answer) => format!("status {}", answer.status),
            Err(error) => error.clone(),
        }
    }

    /// Time from the start of the connect to the end of the body.
    #[must_use]
    pub const fn elapsed(&self) -> Duration {
        Duration::from_micros(self.elapsed_us)
    }
}

/// A running application. It ends when this is dropped.
pub struct App(CommandProcess);

impl App {
    /// Starts `command` (a `sluice-testapp`, perhaps inside a pod) and waits until it listens.
    ///
    /// # Errors
    /// It does not start, or is not ready within ten seconds.
    pub async fn start(command: Command) -> Result<Self> {
        Ok(Self(CommandProcess::start(command).await?))
    }

    /// Sends one request from inside the pod.
    ///
    /// # Errors
    /// The application has ended; a request that fails is an `Err` in the reply's outcome.
    pub async fn call(&self, call: AppRequest) -> Result<AppReply> {
        self.0.run(&call).await
    }
}
