//! Listeners of routers (N22): ports with plain HTTP servers.

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::listener::{Facts, GatewayHttp, Settings, build_gateway_http};
use sluice_model::{ProxyKey, Resource, ResourceKey, Text};

use super::{key, resource};
use crate::Spine;
use crate::gateways::MergedGateway;
use crate::gateways::routers::Router;

/// A router as proxies of one profile are.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Side {
    router: Router,
    profile: Text,
}

/// Listeners of routers.
/// Key: layer and name. From: `routers`, `merged_gateways`, `listener_settings`.
/// Changes when: a Gateway or a port of the router's services does. Size: routers × ports. Rejects: none; of
/// servers that terminate TLS or carry plain TCP, which have no listener yet, parsing tells.
pub(super) fn derive_gateways<'s>(
    spine: &Spine<'s>,
    settings: &Collection<'s, Text, Settings>,
    routers: &Collection<'s, ProxyKey, Router>,
    merged_gateways: &Collection<'s, Router, MergedGateway>,
) -> Collection<'s, ResourceKey, Resource> {
    let sides = routers.join("listeners/router-sides", &spine.proxies, |_, router, proxy| {
        Some(Side { router: router.clone(), profile: Facts::of(proxy).profile() })
    });
    let sides = sides.index("listeners/routers-by-content", |_, side| [(side.clone(), ())]);
    sides.distinct("listeners/routers").derive_many("listeners/gateways", |deps| {
        let (settings, merged) = (deps.on(settings), deps.on(merged_gateways));
        move |cx, side: &Side, ()| {
            let (Some(settings), Some(merged)) = (cx.get(&settings, &side.profile), cx.get(&merged, &side.router))
            else {
                return Vec::new();
            };
            let http =
                merged.ports.iter().filter(|port| port.servers.iter().any(|bound| bound.server.protocol.is_http()));
            let listeners = http.filter_map(|port| {
                let first = port.servers.first()?;
                build_gateway_http(
                    &settings,
                    &GatewayHttp {
                        port: port.port,
                        bind: port.bind.clone(),
                        protocol: first.server.protocol,
                        route_name: port.route_name.clone(),
                    },
                )
            });
            listeners.map(|built| (key(side.router.view(), &side.profile, &built.name), resource(&built))).collect()
        }
    })
}
