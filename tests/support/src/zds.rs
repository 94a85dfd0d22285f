//! The side of ztunnel in ZDS: it receives the pods of its node from the CNI agent, with their network namespaces.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use prost::Message as _;
use rustix::io::ioctl_fionbio;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use sluice_proto::istio::workload::zds::workload_request::Payload;
use sluice_proto::istio::workload::zds::{
    Ack, Version, WorkloadRequest, WorkloadResponse, ZdsHello, workload_response,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::wait::until_async;

/// Largest message of an agent.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Longest wait for a message.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A message of the agent.
#[derive(Debug)]
pub enum ZdsMessage {
    /// A pod is enrolled.
    Add {
        /// UID of the pod.
        uid: String,
        /// `NAMESPACE/NAME/SERVICE-ACCOUNT`.
        name: String,
        /// Its network namespace.
        namespace: Option<OwnedFd>,
    },
    /// The pod with this UID stays enrolled, and its network namespace is not known.
    Keep(String),
    /// The pod with this UID is withdrawn.
    Del(String),
    /// All pods were sent.
    SnapshotSent,
}

/// A connection to the socket of an agent.
pub struct ZdsClient(AsyncFd<OwnedFd>);

impl ZdsClient {
    /// Connects once the agent listens, and says hello.
    ///
    /// # Errors
    /// The path is too long, or the agent ends the connection.
    pub async fn connect(path: &Path) -> Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let socket = until_async("the agent listens", async || {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
            connect(&socket, &address).ok()?;
            ioctl_fionbio(&socket, true).ok()?;
            Some(socket)
        })
        .await;
        let client = Self(asynchronous(socket)?);
        client.send(&ZdsHello { version: Version::V1 as i32 }.encode_to_vec())?;
        Ok(client)
    }

    /// The next message.
    ///
    /// # Errors
    /// None arrives within 20 s, or it cannot be read.
    pub async fn receive(&self) -> Result<ZdsMessage> {
        timeout(RECEIVE_TIMEOUT, self.wait_for_message()).await.context("the agent sends nothing")?
    }

    /// The same without a limit of time.
    ///
    /// # Errors
    /// The message cannot be read, or the agent has ended the connection.
    pub async fn wait_for_message(&self) -> Result<ZdsMessage> {
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        let receive = |socket: &OwnedFd| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
            let descriptor = ancillary.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                _ => None,
            });
            Ok((received.bytes, descriptor))
        };
        let (bytes, descriptor) = self.0.async_io(Interest::READABLE, receive).await.context("receive")?;
        let message = WorkloadRequest::decode(buffer.get(..bytes).unwrap_or_default())?;
        Ok(match message.payload {
            Some(Payload::Add(add)) => {
                let info = add.workload_info.unwrap_or_default();
                ZdsMessage::Add {
                    uid: add.uid,
                    name: format!("{}/{}/{}", info.namespace, info.name, info.service_account),
                    namespace: descriptor,
                }
            }
            Some(Payload::Keep(keep)) => ZdsMessage::Keep(keep.uid),
            Some(Payload::Del(del)) => ZdsMessage::Del(del.uid),
            Some(Payload::SnapshotSent(_)) => ZdsMessage::SnapshotSent,
            None => bail!("an empty request, of {bytes} bytes"),
        })
    }

    /// Acknowledges the last message, with an error unless the text is empty.
    ///
    /// # Errors
    /// The agent has ended the connection.
    pub fn acknowledge(&self, error: &str) -> Result<()> {
        let payload = workload_response::Payload::Ack(Ack { error: error.to_owned() });
        self.send(&WorkloadResponse { payload: Some(payload) }.encode_to_vec())
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        let mut ancillary = SendAncillaryBuffer::default();
        sendmsg(self.0.get_ref(), &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

#[expect(deprecated, reason = "the replacement is unsafe; an `OwnedFd` keeps the contract that it asks for")]
fn asynchronous(descriptor: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(descriptor)
}
