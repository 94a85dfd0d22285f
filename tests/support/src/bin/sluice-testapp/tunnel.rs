//! Opens a tunnel through a waypoint.

use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow};
use sluice_testkit::hbone::{self, HboneStream, TunnelCredentials};
use sluice_testkit::pods::app::HboneTunnel;
use tokio::net::TcpStream;

/// Opens a tunnel to an address.
pub(crate) async fn open(tunnel: &HboneTunnel, address: SocketAddr) -> Result<HboneStream> {
    let stream = TcpStream::connect(tunnel.waypoint).await.context("connect to the waypoint")?;
    let credentials = TunnelCredentials { certificate: tunnel.certificate.clone(), roots: tunnel.roots.clone() };
    let mut connection =
        hbone::connect(stream, tunnel.waypoint.ip(), &credentials, std::slice::from_ref(&tunnel.identity)).await?;
    let opened = hbone::open(&mut connection, &address.to_string(), &[]).await?;
    opened.map_err(|status| anyhow!("the waypoint answers CONNECT with {status}"))
}
