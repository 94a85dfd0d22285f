//! A port of a pod on the loopback, by the port-forward of the API server over WebSocket.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A forwarded port. It is closed when this is dropped.
pub(crate) struct Tunnel {
    /// The address on this machine.
    pub(crate) address: SocketAddr,
    failure: Failure,
    task: JoinHandle<()>,
}

/// Why the last connection failed.
type Failure = Arc<Mutex<Option<String>>>;

impl Tunnel {
    /// Listens on a local port (0: any free one), and forwards each connection to a port of a pod.
    pub(crate) async fn open(
        client: Client,
        namespace: &str,
        pod: &str,
        port: u16,
        local_port: u16,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, local_port)).await?;
        let address = listener.local_addr()?;
        let failure = Failure::default();
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let task = tokio::spawn(accept(listener, pods, pod.to_owned(), port, failure.clone()));
        Ok(Self { address, failure, task })
    }

    /// Why the last connection failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, pods: Api<Pod>, pod: String, port: u16, failure: Failure) {
    // The connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok((mut connection, _)) = listener.accept().await else {
            // Such as too many open files: connections that end free some.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (pods, pod, failure) = (pods.clone(), pod.clone(), failure.clone());
        connections.spawn(async move {
            let result = forward(&mut connection, &pods, &pod, port).await;
            // The client reads the reason once its connection ends, so this comes first.
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
            drop(connection);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(connection: &mut TcpStream, pods: &Api<Pod>, pod: &str, port: u16) -> Result<(), String> {
    let opened = pods.portforward(pod, &[port]).await;
    let mut forwarder = opened.map_err(|error| {
        let reason = sluice_kube::chain(&error);
        match error {
            // An API server before Kubernetes 1.30, or a proxy in front of it, may accept SPDY only.
            kube::Error::UpgradeConnection(_) => format!("the API server opens no WebSocket: {reason}"),
            _ => reason,
        }
    })?;
    let refusal = forwarder.take_error(port);
    let Some(mut stream) = forwarder.take_stream(port) else {
        return Err(format!("port {port} has no stream"));
    };
    // The sender of the refusal is dropped at the end of the stream.
    let refused = async {
        match refusal {
            Some(refusal) => match refusal.await {
                Some(reason) => reason,
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // The refusal is sent before the end of the stream, and is the reason of it.
        biased;
        reason = refused => Err(reason),
        copied = tokio::io::copy_bidirectional(connection, &mut stream) => {
            copied.map(drop).map_err(|error| error.to_string())
        }
    }
}
