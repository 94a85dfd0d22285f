//! Unix sockets for Envoy, which is of the agent's user, and for applications, which may have another one.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use futures::Stream;
use sluice_listen::{AcceptBackoff, ListenMetrics};
use tokio::net::{UnixListener, UnixStream};

/// The users who may connect to a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SocketUsers {
    /// The agent's user.
    Own,
    /// All users of containers that mount the directory.
    All,
}

impl SocketUsers {
    fn mode(self) -> u32 {
        match self {
            Self::Own => 0o600,
            Self::All => 0o666,
        }
    }
}

/// Listens on a socket. A stale socket of an earlier run is replaced.
///
/// # Errors
/// The directory is not writable.
pub(crate) fn listen(path: &Path, users: SocketUsers) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(users.mode()))?;
    Ok(listener)
}

/// The connections of a socket, with a pause after each that cannot be accepted.
pub(crate) fn incoming(
    listener: UnixListener,
    name: &'static str,
    metrics: &ListenMetrics,
) -> impl Stream<Item = io::Result<UnixStream>> + use<> {
    let backoff = AcceptBackoff::new(name, metrics);
    futures::stream::unfold((listener, backoff), async |(listener, mut backoff)| {
        loop {
            backoff.pause().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    backoff.accepted();
                    return Some((Ok(stream), (listener, backoff)));
                }
                Err(error) => backoff.failed(&error),
            }
        }
    })
}

/// Whether a server accepts connections on the socket.
pub(crate) async fn is_served(path: &Path) -> bool {
    let connect = tokio::time::timeout(Duration::from_secs(1), UnixStream::connect(path));
    connect.await.is_ok_and(|connected| connected.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_has_its_mode_and_replaces_a_stale_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sub/socket");
        assert!(!is_served(&path).await);
        let mode = || std::fs::metadata(&path).expect("stat").permissions().mode() & 0o777;
        let first = listen(&path, SocketUsers::Own).expect("listen");
        assert!(is_served(&path).await);
        assert_eq!(mode(), 0o600);
        drop(first);
        assert!(path.exists() && !is_served(&path).await, "the socket is stale");
        let _second = listen(&path, SocketUsers::All).expect("listen again");
        assert!(is_served(&path).await);
        assert_eq!(mode(), 0o666);
    }
}
