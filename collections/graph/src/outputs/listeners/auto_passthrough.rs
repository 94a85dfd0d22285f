//! Filter chains of TLS mode AUTO_PASSTHROUGH: one for each cluster that a client may select by server name.

use bytes::Bytes;
use sluice_engine::{Collection, Context, Deps, Index, IndexDep};
use sluice_envoy::listener::build_auto_passthrough;
use sluice_envoy::listener_settings::{ListenerProfile, ListenerSettings};
use sluice_envoy::wire;
use sluice_model::{Host, ProxyKey, Resource, Text, View};
use sluice_proto::envoy::config::listener::v3::Listener;

use serde::Serialize;

use super::profiled_routers::{ProfiledRouter, derive_profiled_routers};
use crate::traffic::destinations::{DestinationInputs, Destinations};
use crate::traffic::gateways::routers::Routers;

/// The chains of one host.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct PassthroughKey {
    router: ProfiledRouter,
    host: Host,
}

/// Inputs of the derivation of these chains.
#[derive(Clone, Copy)]
pub(crate) struct PassthroughInputs<'a, 's> {
    /// Connected routers, and their merged Gateways.
    pub(crate) routers: &'a Routers<'s>,
    /// The facts of each proxy that its listeners are built from.
    pub(crate) listener_facts: &'a Collection<'s, ProxyKey, ListenerProfile>,
    /// Every host that some service has.
    pub(crate) hosts: &'a Collection<'s, Host, ()>,
    /// The service and the DestinationRule of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
}

/// Chains for the services of a host, encoded as the chains of a listener.
/// Key: router, profile and host. From: `hosts`, `services`, `destination_rules`, `listener_settings`, routers with a
/// server of TLS mode AUTO_PASSTHROUGH; not from policies, which are for the proxy behind.
/// Changes when: a service or rule of the host does. Size: hosts × such routers. Rejects: none.
pub(super) fn derive_passthrough_chains<'s>(
    inputs: &PassthroughInputs<'_, 's>,
    settings: &Collection<'s, Text, ListenerSettings>,
) -> Index<'s, ProfiledRouter, PassthroughKey, Resource> {
    let routers = inputs.routers.proxies.join(
        "listeners/passing-routers/of-proxies",
        &inputs.routers.auto_passthrough,
        |_, router, ()| Some(router.clone()),
    );
    let routers_by_profile = derive_profiled_routers("listeners/passing-routers", inputs.listener_facts, &routers);
    let chains = inputs.hosts.derive_many("listeners/passed-chains", |deps| {
        let (settings, routers_by_profile) = (deps.on(settings), deps.on(&routers_by_profile));
        let (destinations, merged) = (Destinations::on(deps, &inputs.destinations), deps.on(&inputs.routers.merged));
        move |cx, host, ()| {
            let routers_by_profile = cx.all(&routers_by_profile);
            if routers_by_profile.is_empty() {
                return Vec::new();
            }
            let destinations = destinations.get(cx, host);
            let chains = |router: &ProfiledRouter| -> Option<Resource> {
                let (settings, merged) = (cx.get(&settings, &router.profile)?, cx.get(&merged, &router.router)?);
                let view = View::Selected { namespace: merged.namespace.clone(), labels: router.router.labels.clone() };
                let (service, rule) = destinations.seen_from(&view)?;
                let filter_chains = build_auto_passthrough(&settings, &service, rule.as_ref());
                let listener = Listener { filter_chains, ..Listener::default() };
                (!listener.filter_chains.is_empty()).then(|| Resource::Encoded(wire::encode(&listener)))
            };
            let rows = routers_by_profile.iter().filter_map(|(router, _)| {
                Some((PassthroughKey { router: router.clone(), host: host.clone() }, chains(router)?))
            });
            rows.collect()
        }
    });
    chains.index("listeners/passed-chains-by-router", |key, chains| [(key.router.clone(), chains.clone())])
}

/// Looks up the chains of a router, inside a `derive`.
pub(super) struct PassthroughChains(IndexDep<ProfiledRouter, PassthroughKey, Resource>);

impl PassthroughChains {
    pub(super) fn on<'s>(deps: &mut Deps<'s>, chains: &Index<'s, ProfiledRouter, PassthroughKey, Resource>) -> Self {
        Self(deps.by(chains))
    }

    /// The chains of the services that match one of a server's hosts.
    pub(super) fn chains(&self, cx: &Context, router: &ProfiledRouter, hosts: &[Text]) -> Vec<Bytes> {
        let hosts: Vec<Host> = hosts.iter().map(|host| Host::new(host)).collect();
        let all = cx.by(&self.0, router).into_iter();
        all.filter(|(key, _)| hosts.iter().any(|host| host.contains(&key.host)))
            .filter_map(|(_, chains)| match &*chains {
                Resource::Encoded(bytes) => Some(bytes.clone()),
                _ => None,
            })
            .collect()
    }
}
