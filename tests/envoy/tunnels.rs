//! Meshes in ambient mode, and tunnels (HBONE) into their pods.

use anyhow::Result;
use sluice_testkit::pods::app::HboneTunnel;
use sluice_testkit::pods::identity::Authority;
use sluice_testkit::pods::mesh::{Mesh, MeshOptions, vip};

/// Port of tunnels.
pub(crate) const HBONE: u16 = 15008;

/// A mesh in ambient mode, with more of these variables set, and its authority, which gives identities to clients without a
/// proxy.
pub(crate) async fn ambient_mesh(more: &[&'static str]) -> Result<(Mesh, Authority)> {
    let variables = ["PILOT_ENABLE_AMBIENT"].iter().chain(more);
    let control_plane = variables.map(|name| (*name, "true".to_owned())).collect();
    let mesh = Mesh::start_with(&[], MeshOptions { control_plane, agents: Vec::new() }).await?;
    let organization = Authority::new()?;
    mesh.server.kill().await?;
    organization.plug_in(&mesh.authority_directory(), "mesh", organization.root())?;
    mesh.server.start_again().await?;
    mesh.distribute_roots()?;
    Ok((mesh, organization))
}

/// A tunnel to a pod that has the name of its service account, as another service account.
pub(crate) fn tunnel(mesh: &Mesh, organization: &Authority, pod: &str, account: &str) -> Result<HboneTunnel> {
    Ok(HboneTunnel {
        waypoint: vip(&mesh.pods.pod(pod).net.ip.to_string(), HBONE),
        identity: format!("spiffe://cluster.local/ns/shop/sa/{pod}"),
        roots: organization.root().to_owned(),
        certificate: organization.issue(&format!("spiffe://cluster.local/ns/shop/sa/{account}"))?,
    })
}
