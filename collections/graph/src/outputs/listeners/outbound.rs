//! Outbound listeners of sidecars (N05).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep};
use sluice_envoy::listener::{Destinations, ListenerClient, ListenerKey, OutboundPort, PortProtocol, build_outbound};
use sluice_envoy::listener_settings::ListenerSettings;
use sluice_model::{
    DestinationRule, Endpoint, Host, ObjectKey, ProxyType, Resource, ResourceKey, Service, ServiceKey, SidecarScope,
    Text, View, VirtualService,
};

use super::rules::{ConnectionRuleInputs, ConnectionRules, index_connection_routes};
use super::slots::{
    EgressBinding, Share, Slot, SlotContent, SlotKey, derive_first_http, index_others, overlay, shares_of,
};
use super::{key, own_address, resource};
use crate::outputs::Outputs;
use crate::registry::services::HostServiceLookup;
use crate::traffic::destinations::DestinationInputs;
use crate::traffic::sidecars::SidecarLookup;

/// Inputs of the derivation of outbound listeners.
pub(crate) struct OutboundListenerInputs<'a, 's> {
    /// Every host that some service has.
    pub(crate) hosts: &'a Collection<'s, Host, ()>,
    /// The service and the DestinationRule of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
    /// The same, without rules.
    pub(crate) clients: DestinationInputs<'a, 's>,
    /// VirtualServices with their delegates and with `export_to` resolved.
    pub(crate) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
    /// Endpoints of every service, sorted.
    pub(crate) endpoints: &'a Collection<'s, ServiceKey, Vec<Endpoint>>,
}

/// Adds the outbound listeners, and hides from a pod the listeners for itself.
pub(super) fn derive_outbound<'s>(
    inputs: &OutboundListenerInputs<'_, 's>,
    settings: &Collection<'s, Text, ListenerSettings>,
    outputs: &mut Outputs<'s>,
) {
    let by_host = index_connection_routes(inputs.virtual_services);
    let OutboundListenerInputs { destinations, virtual_services, .. } = *inputs;
    let rules = ConnectionRuleInputs { destinations, virtual_services, connection_routes: &by_host };
    let shares = derive_shares(inputs, settings, &rules);
    let first_http = derive_first_http(&shares);
    let others = index_others(&shares);
    let slots = shares.index("listeners/by-slot", |key, _| [(key.slot.clone(), ())]).distinct("listeners/slots");
    let built = slots.derive("listeners/outbound", |deps| {
        let builder = ListenerBuilder {
            settings: deps.on(settings),
            services: deps.on(destinations.services),
            hosts: HostServiceLookup::on(deps, destinations.services_by_host, destinations.services),
            rules: ConnectionRules::on(deps, &rules),
            sidecars: SidecarLookup::on(deps, destinations.sidecars),
        };
        let (first_http, others) = (deps.on(&first_http), deps.by(&others));
        move |cx, slot: &Slot, ()| {
            let contents = |slot: &Slot| -> Vec<(Host, SlotContent)> {
                let http = cx.get(&first_http, slot).map(|first| (*first).clone()).unwrap_or_default();
                let others = cx.by(&others, slot).into_iter().map(|(key, content)| (key.host, (*content).clone()));
                http.into_iter().chain(others).collect()
            };
            let Some(base) = slot.below() else {
                return builder.build(cx, slot, &overlay(contents(slot), Vec::new()));
            };
            let below = contents(&base);
            let for_all = builder.build(cx, &base, &overlay(below.clone(), Vec::new()));
            let own = builder.build(cx, slot, &overlay(contents(slot), below));
            match (own, for_all) {
                (own, for_all) if own == for_all => None,
                (Some(own), _) => Some(own),
                (None, _) => Some(Resource::Hidden),
            }
        }
    });
    outputs.resources.push(built.flat_map("listeners/outbound-resources", |slot, listener| {
        [(key(slot.view.clone(), &slot.profile, &name(slot)), listener.clone())]
    }));
    outputs.resources.push(hidden_from_itself(&shares));
}

fn name(slot: &Slot) -> String {
    sluice_envoy::name::listener(&slot.address, u32::from(slot.port))
}

/// The listeners of headless services for a pod itself: traffic from the pod to itself is not intercepted.
/// Key: layer and name. From: `listeners/shares`. Size: addresses of headless services that are not HTTP. Rejects: none.
fn hidden_from_itself<'s>(shares: &Collection<'s, SlotKey, SlotContent>) -> Collection<'s, ResourceKey, Resource> {
    let by_slot = shares.index("listeners/pods-by-slot", |key, content| {
        let pod = matches!(content, SlotContent::Share(share) if share.pod);
        pod.then(|| (key.slot.base(), ()))
    });
    by_slot.distinct("listeners/pod-slots").flat_map("listeners/own-pods", |slot, ()| {
        [(key(own_address(&slot.address), &slot.profile, &name(slot)), Resource::Hidden)]
    })
}

/// The ports of services in the slots of outbound listeners.
/// Key: `SlotKey`. From: `hosts`, `services`, `listener_settings`; `endpoints` of headless services; `virtual_services`
/// and `destination_rules` for hosts with ports that are not HTTP, for the views that they make special.
/// Changes when: a service does; pods of a headless service are added or removed.
/// Size: ports of services × profiles, plus the differences of special views. Rejects: none.
fn derive_shares<'s>(
    inputs: &OutboundListenerInputs<'_, 's>,
    settings: &Collection<'s, Text, ListenerSettings>,
    rules: &ConnectionRuleInputs<'_, 's>,
) -> Collection<'s, SlotKey, SlotContent> {
    let destinations = inputs.destinations;
    inputs.hosts.derive_many("listeners/shares", |deps| {
        let (hosts, rules) = (
            HostServiceLookup::on(deps, destinations.services_by_host, destinations.services),
            ConnectionRules::on(deps, rules),
        );
        let (settings, endpoints) = (deps.on(settings), deps.on(inputs.endpoints));
        let selections = deps.on(destinations.selections);
        let sidecars = SidecarLookup::on(deps, destinations.sidecars);
        move |cx, host, ()| {
            let services = hosts.get(cx, host);
            let scopes = sidecars.scopes(cx, host, |interest| interest.listed);
            let mut labelled_scopes: BTreeMap<SidecarScope, Vec<View>> = BTreeMap::new();
            let mut views: BTreeSet<View> = services.special_namespaces().cloned().map(View::Namespace).collect();
            // Rules do not change HTTP listeners.
            let other = |service: &Arc<Service>| {
                service.ports.iter().any(|port| {
                    sluice_envoy::listener::port_protocol(port.protocol).is_some_and(|k| k != PortProtocol::Http)
                })
            };
            if services.iter().any(other) {
                let (namespaces, labelled) = rules.special(cx, host);
                views.extend(namespaces.into_iter().map(View::Namespace));
                if labelled {
                    let all = cx.all(&selections).into_iter();
                    views.extend(all.map(|((namespace, labels), _)| View::Selected { namespace, labels }));
                    labelled_scopes
                        .extend(scopes.iter().map(|scope| (scope.scope.clone(), sidecars.labelled(cx, &scope.scope))));
                }
            }
            let mut rows = Vec::new();
            for (profile, settings) in cx.all(&settings) {
                if settings.profile.proxy_type != ProxyType::Sidecar || settings.profile.grpc {
                    continue;
                }
                let shares_of_service = |service: &Arc<Service>,
                                         egress: EgressBinding<'_>|
                 -> BTreeMap<(Text, u16), Share> {
                    let pods = || -> Vec<Vec<Text>> {
                        let endpoints = cx.get(&endpoints, &service.key());
                        let addresses = endpoints.iter().flat_map(|found| found.iter().map(|e| e.addresses.clone()));
                        addresses.collect()
                    };
                    shares_of(&settings, service, egress, &pods)
                };
                let shares = |service: Option<&Arc<Service>>| {
                    service.map(|service| shares_of_service(service, EgressBinding::default())).unwrap_or_default()
                };
                let place = |view: &View, (address, port): &(Text, u16)| SlotKey {
                    slot: Slot { profile: profile.clone(), view: view.clone(), address: address.clone(), port: *port },
                    host: host.clone(),
                };
                let for_all = services.visible_to("");
                let base = shares(for_all);
                for view in &views {
                    let seen = services.visible_to(view.namespace());
                    let same = seen.map(|service| service.key()) == for_all.map(|service| service.key());
                    let own = if same { base.clone() } else { shares(seen) };
                    for (slot, share) in &own {
                        // If the view has the same service as the base, only ports whose listener depends on rules are
                        // written again.
                        if !same || share.kind != PortProtocol::Http {
                            rows.push((place(view, slot), SlotContent::Share(share.clone())));
                        }
                    }
                    let hidden = base.keys().filter(|slot| !own.contains_key(*slot));
                    rows.extend(hidden.map(|slot| (place(view, slot), SlotContent::Nothing)));
                }
                rows.extend(
                    base.into_iter().map(|(slot, share)| (place(&View::Base, &slot), SlotContent::Share(share))),
                );
                for scope in scopes.iter().filter(|scope| scope.outbound == settings.profile.outbound) {
                    let mut own: BTreeMap<(Text, u16), Share> = BTreeMap::new();
                    for (at, listener) in scope.listeners.iter().enumerate() {
                        let Some(service) = listener.service(&services, scope.namespace()) else { continue };
                        for (slot, share) in shares_of_service(&service, EgressBinding { at, listener: Some(listener) })
                        {
                            own.entry(slot).or_insert(share);
                        }
                    }
                    for view in labelled_scopes.get(&scope.scope).into_iter().flatten() {
                        let others = own.iter().filter(|(_, share)| share.kind != PortProtocol::Http);
                        rows.extend(others.map(|(slot, share)| (place(view, slot), SlotContent::Share(share.clone()))));
                    }
                    let view = scope.view();
                    rows.extend(own.into_iter().map(|(slot, share)| (place(&view, &slot), SlotContent::Share(share))));
                }
            }
            rows
        }
    })
}

/// Builds listeners from look-ups, inside a `derive`.
struct ListenerBuilder {
    settings: Dep<Text, ListenerSettings>,
    services: Dep<ServiceKey, Service>,
    hosts: HostServiceLookup,
    rules: ConnectionRules,
    sidecars: SidecarLookup,
}

/// A share, and everything that its filter chains are built from.
struct ResolvedShare {
    share: Share,
    service: Arc<Service>,
    rule: Option<Arc<DestinationRule>>,
    virtual_services: Vec<Arc<VirtualService>>,
    destinations: Destinations,
}

impl ListenerBuilder {
    fn build(&self, cx: &Context, slot: &Slot, shares: &[Share]) -> Option<Resource> {
        let settings = cx.get(&self.settings, &slot.profile)?;
        let found: Vec<ResolvedShare> = shares.iter().filter_map(|share| self.find(cx, slot, share)).collect();
        let labels = slot.view.labels().cloned().unwrap_or_default();
        let client = ListenerClient { namespace: slot.view.namespace().into(), labels };
        let ports: Vec<OutboundPort<'_>> = found
            .iter()
            .map(|found| OutboundPort {
                service: &found.service,
                listen: &found.share.port,
                rule: found.rule.as_ref(),
                virtual_services: &found.virtual_services,
                destinations: &found.destinations,
                client: &client,
            })
            .collect();
        let bind = shares.first()?.bind.clone();
        build_outbound(&settings, &ListenerKey { bind, port: slot.port }, &ports).map(|listener| resource(&listener))
    }

    fn find(&self, cx: &Context, slot: &Slot, share: &Share) -> Option<ResolvedShare> {
        let service = cx.get(&self.services, &share.service)?;
        let mut found = ResolvedShare {
            share: share.clone(),
            service,
            rule: None,
            virtual_services: Vec::new(),
            destinations: Destinations::new(),
        };
        if share.kind != PortProtocol::Http {
            let service = &found.service;
            let namespace = slot.view.namespace();
            found.virtual_services = self.rules.virtual_services(cx, &service.host, namespace);
            if let Some(scope) = slot.view.sidecar() {
                let scope = self.sidecars.scope(cx, scope)?;
                let listener = scope.listeners.get(share.listener)?;
                found.virtual_services.retain(|route| listener.imports_route(route, namespace));
            }
            let services = |host: &Host| {
                let services = self.hosts.get(cx, host);
                match slot.view.sidecar() {
                    Some(scope) => self.sidecars.host(cx, host).service(scope, services.iter()),
                    None => services.visible_to(namespace).cloned(),
                }
            };
            found.destinations = self.rules.destinations(cx, &services, &found.virtual_services, &slot.view);
            found.rule = self.rules.rule(cx, service, &slot.view);
        }
        Some(found)
    }
}
