//! A port of a pod on the loopback.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::port_forward::forward;

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
        let pod = (namespace.to_owned(), pod.to_owned());
        let task = tokio::spawn(accept(listener, client, pod, port, failure.clone()));
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

async fn accept(listener: TcpListener, client: Client, pod: (String, String), port: u16, failure: Failure) {
    // The connections end with this task.
    let mut connections = JoinSet::new();
    while let Ok((mut connection, _)) = listener.accept().await {
        let (client, (namespace, pod), failure) = (client.clone(), pod.clone(), failure.clone());
        connections.spawn(async move {
            let result = forward(&mut connection, &client, (&namespace, &pod), port).await;
            // The caller reads the reason once its connection ends, so this comes first.
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
            drop(connection);
        });
        while connections.try_join_next().is_some() {}
    }
}
