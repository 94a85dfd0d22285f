//! Clusters of waypoints: those between their listeners, and those of the services that each serves (N23).

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_envoy::cluster::{
    ClusterProfile, HboneSettings, WaypointInputs, build_east_west, build_east_west_fixed, build_sds_external,
    build_waypoint, build_waypoint_connect_originate, build_waypoint_fixed, uses_dns,
};
use sluice_envoy::endpoint::{AssignmentInputs, EndpointClient, Tier, build_assignment};
use sluice_model::{Layer, Proxy, ProxyKey, Resource, ResourceKey, Text};

use super::row;
use crate::content_names::profile_text;
use crate::outputs::endpoints::waypoints::{ServedServices, WaypointClients, WaypointOutputInputs};
use crate::outputs::endpoints::{EndpointList, EndpointLookup};
use crate::outputs::layers::LayerFacts;
use crate::outputs::secrets::{ServableSecrets, ServedSecretLookup};
use crate::traffic::credentials::{CredentialAccess, CredentialClient};
use crate::traffic::gateways::routers::Router;
use crate::traffic::waypoints::ServedKey;

/// The facts of a waypoint that its clusters depend on; for clusters with their endpoints, also those of the client.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct WaypointProfile {
    cluster: ClusterProfile,
    client: Option<EndpointClient>,
    /// Its access to Secrets, if its clusters may need some.
    credentials: Option<CredentialAccess>,
}

impl WaypointProfile {
    fn of(proxy: &Proxy, tier: Option<Tier>, credentials: Option<&CredentialClient>) -> Self {
        let client = tier.map(|tier| EndpointClient::of_waypoint(proxy, tier));
        Self {
            cluster: ClusterProfile {
                dns_proxy: None,
                no_hbone: false,
                receives_hbone: false,
                ..ClusterProfile::of(proxy)
            },
            client,
            credentials: credentials.map(|client| client.access.clone()),
        }
    }
}

/// The layers of a waypoint's own clusters: one for each tier, and one for all.
pub(super) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    let Some(view) = client.router_view() else { return Vec::new() };
    let tiers = client.tiers.iter().copied().map(Some).chain([None]);
    let profile = |tier| profile_text(&WaypointProfile::of(client.proxy, tier, client.credentials));
    tiers.map(|tier| Layer { view: view.clone(), profile: profile(tier) }).collect()
}

/// A waypoint, with what its clusters depend on besides a client.
type WaypointKey = (Router, ClusterProfile, Option<CredentialAccess>);

/// Clusters of waypoints.
/// Key: layer and name. From: `waypoints/namespaces`, `waypoints/served`, `services`, `destination_rules`,
/// `mesh_config`, the profiles of waypoints; `endpoints` of DNS services only; `credential_clients` and `secrets` for rules with
/// credentials.
/// Changes when: the service does, or the rule for it, or a Secret of the rule is created or deleted.
/// Size: (4 + ports of services × (1 + subsets)) × profiles, for each connected waypoint. Rejects: none.
pub(super) fn derive_waypoints<'s>(
    inputs: &WaypointOutputInputs<'_, 's>,
    clients: &WaypointClients<'s>,
    (credential_clients, secrets): (&Collection<'s, ProxyKey, CredentialClient>, &ServableSecrets<'s>),
) -> [Collection<'s, ResourceKey, Resource>; 2] {
    let switches = inputs.switches;
    let hbone = inputs.mesh.map("waypoints/hbone-settings", move |(), mesh| HboneSettings::new(mesh, switches));
    let profiles = inputs.waypoints.proxies.derive("waypoints/cluster-profiles-of-proxies", |deps| {
        let (proxies, credentials) = (deps.on(inputs.proxies), deps.on(credential_clients));
        move |cx, key, waypoint: &Router| {
            let profile = WaypointProfile::of(&*cx.get(&proxies, key)?, None, cx.get(&credentials, key).as_deref());
            Some((waypoint.clone(), profile.cluster, profile.credentials))
        }
    });
    let profiles = profiles.index("waypoints/cluster-profiles-by-content", |_, profile| [(profile.clone(), ())]);
    let distinct: Collection<'s, WaypointKey, ()> = profiles.distinct("waypoints/cluster-profiles");
    let by_waypoint: Index<'s, Router, WaypointKey, ()> =
        distinct.index("waypoints/cluster-profiles-by-waypoint", |(waypoint, ..), ()| [(waypoint.clone(), ())]);
    let fixed = distinct.derive_many("waypoints/fixed-clusters", |deps| {
        let (settings, hbone, namespaces) =
            (deps.on(&inputs.settings), deps.on(&hbone), deps.on(&inputs.waypoints.namespaces));
        move |cx, (waypoint, profile, credentials): &WaypointKey, ()| {
            let (Some(settings), Some(hbone)) = (cx.get(&settings, &()), cx.get(&hbone, &())) else {
                return Vec::new();
            };
            let Some(namespace) = cx.get(&namespaces, waypoint) else { return Vec::new() };
            let east_west = settings.switches.tunnels.multi_network && profile.east_west;
            let mut clusters = match east_west {
                true => build_east_west_fixed(&settings, profile, &hbone),
                false => build_waypoint_fixed(&settings, profile, &hbone),
            };
            if !east_west {
                clusters.push(build_waypoint_connect_originate(&settings, &hbone, &namespace));
            }
            if profile.credential_socket {
                clusters.push(build_sds_external(&settings));
            }
            let layer = layer(waypoint, profile, credentials.clone(), None);
            clusters.iter().map(|cluster| row(&layer, cluster)).collect()
        }
    });
    let of_services = inputs.waypoints.served.derive_many("waypoints/clusters", |deps| {
        let served = ServedServices::on(deps, inputs.waypoints, &inputs.destinations);
        let (settings, root) = (deps.on(&inputs.settings), deps.on(inputs.root_namespace));
        let (profiles, clients) = (deps.by(&by_waypoint), deps.by(clients));
        let endpoints = EndpointLookup::on(deps, &inputs.endpoints);
        let secrets = ServedSecretLookup::on(deps, secrets);
        move |cx, key: &ServedKey, ()| {
            let (Some(settings), Some(root)) = (cx.get(&settings, &()), cx.get(&root, &())) else { return Vec::new() };
            let Some(found) = served.get(cx, key) else { return Vec::new() };
            let service = &*found.service;
            let (waypoint, _) = key;
            // Only the clusters of services that Envoy resolves by DNS contain endpoints, and depend on the client.
            let clients: Vec<Option<EndpointClient>> = if uses_dns(service) {
                let rows = cx.by(&clients, &(waypoint.clone(), found.tier(&settings))).into_iter();
                let distinct: BTreeSet<EndpointClient> = rows.map(|((_, client), _)| client).collect();
                distinct.into_iter().map(Some).collect()
            } else {
                vec![None]
            };
            let listed = match clients.iter().any(Option::is_some) {
                true => endpoints.of_service(cx, &service.key(), &root).unwrap_or_default(),
                false => EndpointList::default(),
            };
            let (backends, gateways) = (listed.backends(), endpoints.gateways(cx, true));
            let mut rows = Vec::new();
            for ((_, profile, access), _) in cx.by(&profiles, waypoint) {
                let is_served = |name: &str| access.as_ref().is_none_or(|access| secrets.is_served(cx, access, name));
                for client in &clients {
                    let layer = layer(waypoint, &profile, access.clone(), client.clone());
                    let assigned = client.clone().unwrap_or_default();
                    for port in &service.ports {
                        let load = |subset: &str| {
                            let inputs = AssignmentInputs {
                                settings: &settings,
                                client: &assigned,
                                service,
                                port,
                                subset,
                                rule: found.rule.as_ref(),
                                backends: &backends,
                                gateways: &gateways,
                                by_name: true,
                            };
                            Some(build_assignment(&inputs, ""))
                        };
                        let inputs = WaypointInputs {
                            settings: &settings,
                            profile: &profile,
                            service,
                            port,
                            rule: found.rule.as_ref(),
                            dns_load: &load,
                            is_served: &is_served,
                        };
                        let clusters = match profile.east_west {
                            true => build_east_west(&inputs).into_iter().collect(),
                            false => build_waypoint(&inputs),
                        };
                        rows.extend(clusters.iter().map(|cluster| row(&layer, cluster)));
                    }
                }
            }
            rows
        }
    });
    [fixed, of_services]
}

fn layer(
    waypoint: &Router,
    cluster: &ClusterProfile,
    credentials: Option<CredentialAccess>,
    client: Option<EndpointClient>,
) -> Layer {
    let profile: Text = profile_text(&WaypointProfile { cluster: cluster.clone(), client, credentials });
    Layer { view: waypoint.view(), profile }
}
