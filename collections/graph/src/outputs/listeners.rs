//! Listeners (N02, N03, N05, N06).

mod auto_passthrough;
mod connection_routes;
mod gateways;
mod grpc;
mod inbound;
mod outbound;
mod profiled_routers;
mod rules;
mod slots;
mod waypoints;

use std::collections::BTreeMap;

use sluice_engine::{Collection, Index};
use sluice_envoy::listener::{build_connect_originate, build_double_tunnel, build_http_proxy, build_virtual_outbound};
use sluice_envoy::listener_settings::{Collector, ListenerProfile, ListenerSettings, collector_services};
use sluice_envoy::{template, wire};
use sluice_model::{
    Host, Layer, MeshConfig, ProviderService, Proxy, ProxyKey, ProxyType, Resource, ResourceKey, ResourceType,
    ServiceKey, Text, View,
};
use sluice_proto::envoy::config::listener::v3::Listener;

pub(crate) use auto_passthrough::PassthroughInputs;
pub(crate) use gateways::GatewayListenerInputs;
pub(crate) use inbound::InboundListenerInputs;
pub(crate) use outbound::OutboundListenerInputs;
pub(crate) use waypoints::WaypointListenerInputs;

use super::Outputs;
use crate::content_names::profile_text;
use crate::options::GraphOptions;
use crate::outputs::layers::LayerFacts;
use crate::proxies::attached::Attachments;
use crate::proxies::collectors::{COLLECTORS, find_collector};

/// The layer of listeners that depend only on the profile.
const FIXED: &str = "fixed";

/// The layer that hides listeners for the pod itself, the inbound listeners, those that every proxy has, then the
/// outbound listeners.
pub(crate) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    let profile = profile_text(client.listener_profile);
    match client.proxy.proxy_type {
        ProxyType::Sidecar if client.proxy.grpc => return grpc::layers(client, &profile),
        ProxyType::Sidecar => {}
        ProxyType::Router => {
            let views = client.router_view().into_iter().chain([hbone()]);
            return views.map(|view| Layer { view, profile: profile.clone() }).collect();
        }
        ProxyType::Waypoint => {
            let views = client.router_view().into_iter().chain([waypoints::fixed_view()]);
            return views.map(|view| Layer { view, profile: profile.clone() }).collect();
        }
        ProxyType::Ztunnel | ProxyType::Agentgateway => return Vec::new(),
    }
    let own = client.proxy.ips.first();
    let mut layers: Vec<Layer> =
        own.map(|address| Layer { view: own_address(address), profile: profile.clone() }).into_iter().collect();
    layers.push(client.inbound(&profile));
    layers.push(Layer { view: hbone(), profile: profile.clone() });
    layers.push(Layer { view: View::Workload(FIXED.into()), profile: profile.clone() });
    layers.extend(client.outbound(&profile));
    layers
}

/// The view of proxies that send HBONE.
fn hbone() -> View {
    View::Workload("hbone".into())
}

/// The view of the proxy at that address: it hides the listeners for the pod itself.
fn own_address(address: &Text) -> View {
    View::Workload(format!("address:{address}").into())
}

/// Inputs of the derivation of listeners.
pub(crate) struct ListenerInputs<'a, 's> {
    pub(crate) settings: SettingInputs<'a, 's>,
    pub(crate) outbound: OutboundListenerInputs<'a, 's>,
    pub(crate) inbound: InboundListenerInputs<'a, 's>,
    pub(crate) gateways: GatewayListenerInputs<'a, 's>,
    /// In ambient mode.
    pub(crate) waypoints: Option<WaypointListenerInputs<'a, 's>>,
}

/// Inputs of the derivation of the settings of listeners.
pub(crate) struct SettingInputs<'a, 's> {
    /// Settings fixed at start-up.
    pub(crate) options: &'a GraphOptions,
    /// The mesh config: one record.
    pub(crate) mesh: &'a Collection<'s, (), MeshConfig>,
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// Telemetry and extensions of proxies.
    pub(crate) attached: &'a Attachments<'s>,
    /// Services of each host.
    pub(crate) services_by_host: &'a Index<'s, Host, ServiceKey, ()>,
}

/// Listeners.
/// Key: layer and name. From: `hosts`, `services`, `virtual_services`, `destination_rules`, `peer_authentications`,
/// `authorization_policies`, `request_authentications`, `jwks`, `workloads`, `mesh_config`, `proxies` (their profiles);
/// `endpoints` of headless services.
/// Changes when: the first or last service of an HTTP port is added or removed; a service that is not HTTP or a rule
/// for it changes; the services or policies of a workload change, or a setting.
/// Size: (HTTP ports + ports of other services) × profiles + workloads. Rejects: none.
pub(crate) fn derive_listeners<'s>(inputs: &ListenerInputs<'_, 's>, outputs: &mut Outputs<'s>) {
    let settings = derive_settings(&inputs.settings);
    outputs.resources.push(derive_fixed(&settings, inputs.settings.options.sends_hbone));
    outbound::derive_outbound(&inputs.outbound, &settings, outputs);
    outputs.resources.push(inbound::derive_inbound(&inputs.inbound, &settings));
    outputs.resources.push(grpc::derive_clients(&inputs.outbound, inputs.settings.options, &settings));
    outputs.resources.push(grpc::derive_servers(&inputs.inbound, inputs.settings.proxies, &settings));
    outputs.resources.push(gateways::derive_gateways(&inputs.gateways, &settings));
    if let Some(inputs) = &inputs.waypoints {
        outputs.resources.push(settings.flat_map("listeners/waypoint-fixed", waypoints::fixed_rows));
        outputs.resources.push(waypoints::derive_waypoints(inputs, &settings));
    }
}

/// ListenerSettings of the profiles in use.
/// Key: the profile's text. From: `listener_profiles`, `attached`, `mesh_config`, `services_by_host` (of providers).
/// Changes when: the mesh config does, or a service of a provider is added or removed. Size: a handful. Rejects: none.
fn derive_settings<'s>(inputs: &SettingInputs<'_, 's>) -> Collection<'s, Text, ListenerSettings> {
    let profiles = inputs.attached.facts.index("listener_profiles/by-content", |_, facts| [(facts.clone(), ())]);
    let profiles = profiles.distinct("listener_profiles");
    let collectors = inputs.mesh.derive(COLLECTORS, |deps| {
        let by_host = deps.by(inputs.services_by_host);
        move |cx, (), mesh| {
            let services = mesh.extension_providers.iter().flat_map(|provider| collector_services(&provider.kind));
            let found = services.filter_map(|service| Some((service.clone(), find_collector(cx, by_host, service)?)));
            Some(found.collect::<BTreeMap<ProviderService, Collector>>())
        }
    });
    let (dual_stack, switches, security) =
        (inputs.options.dual_stack, inputs.options.listeners, inputs.options.security);
    let mesh = inputs.mesh.map("listeners/mesh", |(), mesh| std::sync::Arc::new(mesh.clone()));
    profiles.derive_many("listener_settings", |deps| {
        let (mesh, collectors) = (deps.on(&mesh), deps.on(&collectors));
        let (default, attached) = (deps.on(&inputs.attached.default), deps.on(&inputs.attached.by_name));
        move |cx, profile: &ListenerProfile, ()| {
            let (Some(mesh), Some(collectors)) = (cx.get(&mesh, &()), cx.get(&collectors, &())) else {
                return Vec::new();
            };
            let attached = match profile.attached.as_str() {
                "" => cx.get(&default, &()),
                _ => cx.get(&attached, &profile.attached),
            };
            let Some(attached) = attached else { return Vec::new() };
            let settings = ListenerSettings {
                mesh: (*mesh).clone(),
                attached: (*attached).clone(),
                profile: profile.clone(),
                collectors: (*collectors).clone(),
                switches,
                security,
                dual_stack,
                in_tunnel: false,
            };
            vec![(profile_text(profile), settings)]
        }
    })
}

/// Listeners that every sidecar has, and the HBONE listeners, which gateways have too.
/// Key: layer and name. From: `listener_settings`. Changes when: they do. Size: profiles × 5. Rejects: none.
fn derive_fixed<'s>(
    settings: &Collection<'s, Text, ListenerSettings>,
    sends_hbone: bool,
) -> Collection<'s, ResourceKey, Resource> {
    settings.flat_map("listeners/fixed", move |profile, settings| {
        if settings.profile.grpc {
            return Vec::new();
        }
        let kind = settings.profile.proxy_type;
        let mut built: Vec<(View, Listener)> = Vec::new();
        if kind == ProxyType::Sidecar {
            let own = [build_virtual_outbound(settings), build_http_proxy(settings)];
            built.extend(own.into_iter().flatten().map(|listener| (View::Workload(FIXED.into()), listener)));
        }
        if sends_hbone && matches!(kind, ProxyType::Sidecar | ProxyType::Router) {
            built.push((hbone(), build_connect_originate(settings)));
        }
        if settings.profile.double_tunnel {
            built.extend(build_double_tunnel(settings).map(|listener| (hbone(), listener)));
        }
        let row = |(view, listener): (View, Listener)| (key(view, profile, &listener.name), resource(&listener));
        built.into_iter().map(row).collect::<Vec<_>>()
    })
}

fn resource(listener: &Listener) -> Resource {
    template(wire::encode(listener))
}

fn key(view: View, profile: &Text, name: &str) -> ResourceKey {
    let layer = Layer { view, profile: profile.clone() };
    ResourceKey { resource_type: ResourceType::Listener, layer, name: name.into() }
}
