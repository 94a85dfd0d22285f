//! The protocol with ztunnel (ZDS): which pods of the node are enrolled, with their network namespaces.
//!
//! Every connection receives a snapshot of all workloads, then changes. A new workload is sent to the newest connection, a
//! removed one to all: while ztunnel is replaced, both versions are connected.

mod connection;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_proto::istio::workload::zds::workload_request::Payload;
use sluice_proto::istio::workload::zds::{AddWorkload, DelWorkload, KeepWorkload, SnapshotSent, WorkloadInfo};
use sluice_redirection::namespace::NetworkNamespace;
use sluice_tasks::catch_panic;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use connection::{Connection, SeqpacketListener};

/// Changes that wait for a connection.
const QUEUED_CHANGES: usize = 100;
/// Pause after a failed connection, so that a client that fails at once does not occupy the agent.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A request that was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ZdsError {
    /// No ztunnel is connected.
    #[error("no ztunnel is connected")]
    NotConnected,
    /// The connection ended before the acknowledgement.
    #[error("the connection to ztunnel ended")]
    Closed,
    /// ztunnel reports an error.
    #[error("ztunnel: {0}")]
    Rejected(String),
}

/// An enrolled pod.
#[derive(Clone, Debug)]
struct Workload {
    info: WorkloadInfo,
    /// `None` if it is not known: ztunnel keeps the one that it has.
    namespace: Option<Arc<NetworkNamespace>>,
}

/// A change for a connection.
struct Change {
    payload: Payload,
    namespace: Option<Arc<NetworkNamespace>>,
    done: oneshot::Sender<Result<(), ZdsError>>,
}

/// The workloads of the node, and the connections that receive them.
#[derive(Default)]
pub(crate) struct ZdsServer {
    /// By UID.
    workloads: Mutex<BTreeMap<String, Workload>>,
    /// In the order of arrival.
    connections: Mutex<Vec<(usize, mpsc::Sender<Change>)>>,
    next_id: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ZdsServer {
    /// Puts a pod into snapshots without sending it. Without a namespace, ztunnel keeps the one that it has.
    pub(crate) fn restore(&self, uid: &str, info: WorkloadInfo, namespace: Option<Arc<NetworkNamespace>>) {
        lock(&self.workloads).insert(uid.to_owned(), Workload { info, namespace });
    }

    /// The namespace of a pod, if it is enrolled and the namespace is known.
    pub(crate) fn namespace(&self, uid: &str) -> Option<Arc<NetworkNamespace>> {
        lock(&self.workloads).get(uid)?.namespace.clone()
    }

    /// Sends a pod to the newest connection.
    ///
    /// # Errors
    /// It is not acknowledged. It stays in snapshots.
    pub(crate) async fn add(
        &self,
        uid: &str,
        info: WorkloadInfo,
        namespace: Arc<NetworkNamespace>,
    ) -> Result<(), ZdsError> {
        self.restore(uid, info.clone(), Some(Arc::clone(&namespace)));
        let newest = lock(&self.connections).last().map(|(_, sender)| sender.clone());
        let payload = Payload::Add(AddWorkload { uid: uid.to_owned(), workload_info: Some(info) });
        send(&newest.ok_or(ZdsError::NotConnected)?, payload, Some(namespace)).await
    }

    /// Removes a pod from snapshots, and from all connections. Returns its namespace.
    ///
    /// # Errors
    /// A connection reports an error. One that has ended needs no removal: the next snapshot does not have the pod.
    pub(crate) async fn remove(&self, uid: &str) -> Result<(), ZdsError> {
        lock(&self.workloads).remove(uid);
        let all: Vec<_> = lock(&self.connections).iter().map(|(_, sender)| sender.clone()).collect();
        let mut result = Ok(());
        for sender in all {
            let payload = Payload::Del(DelWorkload { uid: uid.to_owned() });
            match send(&sender, payload, None).await {
                Err(error @ ZdsError::Rejected(_)) => result = Err(error),
                Err(ZdsError::Closed | ZdsError::NotConnected) | Ok(()) => {}
            }
        }
        result
    }

    /// Number of connections.
    pub(crate) fn connected(&self) -> usize {
        lock(&self.connections).len()
    }

    /// Listens on a seqpacket socket and serves every connection.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub(crate) fn listen(
        self: &Arc<Self>,
        path: &Path,
    ) -> io::Result<impl Future<Output = anyhow::Result<()>> + Send + use<>> {
        let listener = SeqpacketListener::bind(path)?;
        let server = Arc::clone(self);
        Ok(async move {
            loop {
                match listener.accept().await {
                    Ok(connection) => {
                        let server = Arc::clone(&server);
                        tokio::spawn(async move {
                            // ztunnel connects again, and receives a new snapshot.
                            if let Err(panic) = catch_panic(server.serve(connection)).await {
                                warn!(error = %panic, connected = server.connected(), "connection of ztunnel failed");
                            }
                        });
                    }
                    Err(error) => warn!(%error, "cannot accept a connection of ztunnel"),
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        })
    }

    async fn serve(&self, connection: Connection) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, mut changes) = mpsc::channel(QUEUED_CHANGES);
        // Before the snapshot, so that it misses no change.
        lock(&self.connections).push((id, sender));
        let listed = ListedConnection { server: self, id };
        info!(connection = id, connected = self.connected(), "ztunnel connected");
        let result = self.run(&connection, &mut changes).await;
        drop(listed);
        // Requests that wait for an answer fail when `changes` is dropped.
        match result {
            Ok(()) => info!(connection = id, connected = self.connected(), "ztunnel disconnected"),
            Err(error) => warn!(connection = id, %error, "connection of ztunnel failed"),
        }
    }

    async fn run(&self, connection: &Connection, changes: &mut mpsc::Receiver<Change>) -> io::Result<()> {
        let version = connection.hello().await?;
        info!(version, "hello of ztunnel");
        self.send_snapshot(connection).await?;
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                // ztunnel sends nothing unasked: this is its end, or an error.
                ended = connection.ended() => return ended,
            };
            let Some(Change { payload, namespace, done }) = change else { return Ok(()) };
            let answer = connection.request(payload, namespace.as_deref()).await;
            let failed = answer.as_ref().err().map(|error| io::Error::new(error.kind(), error.to_string()));
            let answer = match answer {
                Ok(None) => Ok(()),
                Ok(Some(message)) => Err(ZdsError::Rejected(message)),
                Err(_) => Err(ZdsError::Closed),
            };
            // The caller may no longer wait.
            let _ = done.send(answer);
            if let Some(error) = failed {
                // A late answer would be taken as that of the next request.
                return Err(error);
            }
        }
    }

    async fn send_snapshot(&self, connection: &Connection) -> io::Result<()> {
        let workloads = lock(&self.workloads).clone();
        let count = workloads.len();
        for (uid, Workload { info, namespace }) in workloads {
            let payload = match &namespace {
                Some(_) => Payload::Add(AddWorkload { uid: uid.clone(), workload_info: Some(info) }),
                None => Payload::Keep(KeepWorkload { uid: uid.clone() }),
            };
            if let Some(error) = connection.request(payload, namespace.as_deref()).await? {
                warn!(uid, error, "ztunnel rejects a workload of the snapshot");
            }
        }
        if let Some(error) = connection.request(Payload::SnapshotSent(SnapshotSent {}), None).await? {
            warn!(error, "ztunnel rejects the snapshot");
        }
        info!(workloads = count, "snapshot sent to ztunnel");
        Ok(())
    }
}

/// Removes a connection from the list of the server when it is dropped, also by a panic: a sender whose receiver is gone
/// would be counted, and be the newest connection.
struct ListedConnection<'s> {
    server: &'s ZdsServer,
    id: usize,
}

impl Drop for ListedConnection<'_> {
    fn drop(&mut self) {
        let id = self.id;
        lock(&self.server.connections).retain(|(other, _)| *other != id);
    }
}

async fn send(
    sender: &mpsc::Sender<Change>,
    payload: Payload,
    namespace: Option<Arc<NetworkNamespace>>,
) -> Result<(), ZdsError> {
    let (done, answer) = oneshot::channel();
    sender.send(Change { payload, namespace, done }).await.map_err(|_| ZdsError::Closed)?;
    answer.await.map_err(|_| ZdsError::Closed)?
}

#[cfg(test)]
mod tests {
    use sluice_testkit::zds::{ZdsClient, ZdsMessage};

    use super::*;

    #[tokio::test]
    async fn connection_that_panics_is_no_longer_counted_and_ends_its_requests() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("zds.sock");
        let listener = SeqpacketListener::bind(&path).expect("a socket");
        let ztunnel = ZdsClient::connect(&path).await.expect("it connects");
        let connection = listener.accept().await.expect("a connection");
        let server = Arc::new(ZdsServer::default());
        let (inject, injected) = oneshot::channel::<()>();
        let serving = tokio::spawn({
            let server = Arc::clone(&server);
            async move {
                let serving = std::pin::pin!(server.serve(connection));
                tokio::select! {
                    () = serving => {}
                    _ = injected => panic!("injected by the test"),
                }
            }
        });
        assert!(matches!(ztunnel.receive().await, Ok(ZdsMessage::SnapshotSent)));
        ztunnel.acknowledge("").expect("acknowledged");
        assert_eq!(server.connected(), 1);
        // ztunnel does not acknowledge it.
        let removal = tokio::spawn({
            let server = Arc::clone(&server);
            async move { server.remove("pod").await }
        });
        assert!(matches!(ztunnel.receive().await, Ok(ZdsMessage::Del(uid)) if uid == "pod"));
        inject.send(()).expect("the task runs");
        assert!(serving.await.expect_err("it panics").is_panic());
        assert_eq!(server.connected(), 0, "only connections that are served count");
        removal.await.expect("it ends").expect("the next snapshot does not have the pod");
    }
}
