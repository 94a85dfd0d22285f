//! A TCP load balancer, as kube-proxy is one for the Service of a control plane.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Forwards each connection to one of its targets, in turn. A target that refuses is skipped.
pub struct Balancer {
    /// The address it listens on.
    pub address: SocketAddr,
    targets: Arc<Mutex<Vec<SocketAddr>>>,
    task: JoinHandle<()>,
}

impl Balancer {
    /// A balancer without targets at an address. Port 0 is a free port.
    ///
    /// # Errors
    /// It cannot listen on the address.
    pub async fn start(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await.context("listen for connections to balance")?;
        let address = listener.local_addr()?;
        let targets = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(accept(listener, targets.clone()));
        Ok(Self { address, targets, task })
    }

    /// Replaces the targets. Open connections stay.
    pub fn set_targets(&self, targets: impl IntoIterator<Item = SocketAddr>) {
        *self.targets.lock().unwrap_or_else(PoisonError::into_inner) = targets.into_iter().collect();
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, targets: Arc<Mutex<Vec<SocketAddr>>>) {
    let next = AtomicUsize::new(0);
    while let Ok((mut client, _)) = listener.accept().await {
        let mut targets = targets.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !targets.is_empty() {
            let first = next.fetch_add(1, Ordering::Relaxed) % targets.len();
            targets.rotate_left(first);
        }
        tokio::spawn(async move {
            for target in targets {
                if let Ok(mut server) = TcpStream::connect(target).await {
                    // Either side may end the connection at any time.
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    return;
                }
            }
        });
    }
}
