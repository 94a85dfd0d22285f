//! The side of ztunnel in ZDS.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use prost::Message as _;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use sluice_proto::istio::workload::zds::workload_request::Payload;
use sluice_proto::istio::workload::zds::{
    Ack, Version, WorkloadRequest, WorkloadResponse, ZdsHello, workload_response,
};
use sluice_redirection::namespace::NetworkNamespace;
use sluice_testkit::wait::until_async;

/// A message of the agent.
#[derive(Debug)]
pub(crate) enum Received {
    Add { uid: String, name: String, namespace: Option<NetworkNamespace> },
    Keep(String),
    Del(String),
    SnapshotSent,
}

impl PartialEq for Received {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Del(one), Self::Del(other)) | (Self::Keep(one), Self::Keep(other)) => one == other,
            (Self::SnapshotSent, Self::SnapshotSent) => true,
            _ => false,
        }
    }
}

pub(crate) struct Ztunnel(OwnedFd);

impl Ztunnel {
    /// Connects once the agent listens, and says hello.
    pub(crate) async fn connect(path: &Path) -> Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let socket = until_async("the agent listens", async || {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
            connect(&socket, &address).ok()?;
            Some(socket)
        })
        .await;
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(20)))?;
        let ztunnel = Self(socket);
        ztunnel.send(&ZdsHello { version: Version::V1 as i32 }.encode_to_vec())?;
        Ok(ztunnel)
    }

    /// The next message.
    pub(crate) fn next(&self) -> Result<Received> {
        let mut buffer = vec![0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            recvmsg(&self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).context("receive")?
        };
        let message = WorkloadRequest::decode(&buffer[..received.bytes])?;
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok(match message.payload {
            Some(Payload::Add(add)) => {
                let info = add.workload_info.unwrap_or_default();
                let open = |descriptor: OwnedFd| {
                    NetworkNamespace::open(&PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd())))
                };
                Received::Add {
                    uid: add.uid,
                    name: format!("{}/{}/{}", info.namespace, info.name, info.service_account),
                    namespace: descriptor.map(open).transpose()?,
                }
            }
            Some(Payload::Keep(keep)) => Received::Keep(keep.uid),
            Some(Payload::Del(del)) => Received::Del(del.uid),
            Some(Payload::SnapshotSent(_)) => Received::SnapshotSent,
            None => bail!("an empty request, of {} bytes", received.bytes),
        })
    }

    /// Acknowledges the last message.
    pub(crate) fn acknowledge(&self, error: &str) -> Result<()> {
        let payload = workload_response::Payload::Ack(Ack { error: error.to_owned() });
        self.send(&WorkloadResponse { payload: Some(payload) }.encode_to_vec())
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        let mut ancillary = SendAncillaryBuffer::default();
        sendmsg(&self.0, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub(crate) fn close(self) {}
}
