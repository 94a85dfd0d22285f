//! Connections over a seqpacket socket: packets are messages, and may carry a file descriptor.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use prost::Message as _;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, listen, recv, sendmsg, socket_with,
};
use sluice_proto::istio::workload::zds::workload_request::Payload;
use sluice_proto::istio::workload::zds::workload_response;
use sluice_proto::istio::workload::zds::{WorkloadRequest, WorkloadResponse, ZdsHello};
use sluice_redirection::namespace::NetworkNamespace;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Time limit of a message from ztunnel and of a write.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
/// Longest message of ztunnel.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// A listening seqpacket socket.
pub(super) struct SeqpacketListener(AsyncFd<OwnedFd>);

impl SeqpacketListener {
    /// Listens. A socket of an earlier run is replaced.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let descriptor = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        bind(&descriptor, &SocketAddrUnix::new(path)?)?;
        listen(&descriptor, BACKLOG)?;
        Ok(Self(asynchronous(descriptor)?))
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Connection> {
        let accept = |descriptor: &OwnedFd| Ok(accept_with(descriptor, FLAGS)?);
        let descriptor = self.0.async_io(Interest::READABLE, accept).await?;
        Ok(Connection(asynchronous(descriptor)?))
    }
}

/// A connection of ztunnel.
pub(super) struct Connection(AsyncFd<OwnedFd>);

impl Connection {
    /// The first message: the version of the protocol.
    pub(super) async fn hello(&self) -> io::Result<i32> {
        Ok(ZdsHello::decode(self.receive().await?.as_slice())?.version)
    }

    /// Sends a request and waits for its acknowledgement; `Some` is the error in it.
    pub(super) async fn request(
        &self,
        payload: Payload,
        namespace: Option<&NetworkNamespace>,
    ) -> io::Result<Option<String>> {
        let message = WorkloadRequest { payload: Some(payload) }.encode_to_vec();
        let send = self.0.async_io(Interest::WRITABLE, |descriptor| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let rights: Vec<_> = namespace.iter().map(|namespace| namespace.as_fd()).collect();
            if !rights.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(&rights));
            }
            Ok(sendmsg(descriptor, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL)?)
        });
        limited(send).await?;
        let response = WorkloadResponse::decode(self.receive().await?.as_slice())?;
        match response.payload {
            Some(workload_response::Payload::Ack(ack)) => Ok(Some(ack.error).filter(|error| !error.is_empty())),
            None => Err(invalid("response without an acknowledgement")),
        }
    }

    /// Waits until ztunnel closes the connection, or sends something, which is an error.
    pub(super) async fn ended(&self) -> io::Result<()> {
        match self.0.async_io(Interest::READABLE, receive).await {
            Ok(message) if message.is_empty() => Ok(()),
            Ok(_) => Err(invalid("message without a request")),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn receive(&self) -> io::Result<Vec<u8>> {
        let message = limited(self.0.async_io(Interest::READABLE, receive)).await?;
        if message.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(message)
    }
}

#[expect(deprecated, reason = "the replacement is unsafe; an `OwnedFd` keeps the contract that it asks for")]
fn asynchronous(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(descriptor)
}

async fn limited<T>(operation: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let result = tokio::time::timeout(TIMEOUT, operation).await;
    result.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "ztunnel does not answer within 5 s")))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A packet; an empty one is the end. File descriptors in it are closed: none is asked for.
fn receive(descriptor: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let (_, length) = recv(descriptor, buffer.as_mut_slice(), RecvFlags::TRUNC)?;
    if length > MAX_MESSAGE_BYTES {
        return Err(invalid("message of more than 64 KiB"));
    }
    buffer.truncate(length);
    Ok(buffer)
}
