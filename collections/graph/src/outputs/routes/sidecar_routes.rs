//! Route tables of sidecars: virtual hosts by layer, the rest of each table, and the virtual host of unknown hosts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::listener_settings::egress_cluster;
use sluice_envoy::name::{HTTP_PROXY_ROUTES, PASSTHROUGH};
use sluice_envoy::route::{CatchAll, TableKind, build_catch_all, build_header};
use sluice_model::{
    DestinationRule, Host, HttpRetry, Labels, Layer, MeshConfig, ObjectKey, OutboundPolicy, ProxyType, Resolution,
    Resource, ResourceType, Segment, SegmentKey, Service, ServiceKey, SessionLabels, Text, UNIX_PREFIX, View,
    VirtualService,
};

use super::RouteInputs;
use super::virtual_hosts::{
    RouteContext, RouteHeaders, RouteProfile, RouteScope, VirtualHosts, asks_for_hashing, special_namespaces,
    uses_labels, virtual_hosts,
};
use crate::content_names::profile_text;
use crate::registry::services::{HostServiceLookup, HostServices};
use crate::traffic::destination_rules::{self, RuleClient, RuleIndex, RuleLookup, RulePolicy, select_rule};
use crate::traffic::sidecars::{EgressListener, SidecarLookup, Sidecars};
use crate::views::difference;

/// The collections that route tables are derived from, with indexes of services.
pub(crate) struct RouteCollections<'s> {
    /// Services.
    pub(crate) services: Collection<'s, ServiceKey, Service>,
    /// Services of each host.
    pub(crate) services_by_host: Index<'s, Host, ServiceKey, ()>,
    /// Hosts that some Service has.
    pub(crate) hosts: Collection<'s, Host, ()>,
    /// VirtualServices with their delegates merged in.
    pub(crate) virtual_services: Collection<'s, ObjectKey, VirtualService>,
    /// DestinationRules by host as declared, with their consistent hashing.
    pub(crate) destination_rules: RuleIndex<'s>,
    /// Profiles of sidecars by their text.
    pub(crate) profiles: Collection<'s, Text, RouteProfile>,
    /// Profiles of gRPC clients without an Envoy by their text.
    pub(super) grpc_profiles: Collection<'s, Text, RouteProfile>,
    /// Namespaces and labels of clients that rules select.
    pub(crate) selections: Collection<'s, (Text, Labels), ()>,
    /// VirtualServices of sidecars by host.
    routed: Index<'s, Host, ObjectKey, ()>,
    /// Aliases by the host that they refer to.
    by_alias: Index<'s, Host, ServiceKey, ()>,
    /// Services by address and port.
    by_address: Index<'s, (Text, u16), ServiceKey, ()>,
    /// The fields of the mesh config that change routes.
    defaults: Collection<'s, (), RouteDefaults>,
    /// Sidecars in use.
    pub(super) sidecars: Sidecars<'s>,
    /// Domain of the mesh.
    pub(crate) domain: Text,
    /// Addresses of both families are used.
    pub(crate) dual_stack: bool,
    /// The host of mirrored requests has a suffix.
    shadow_suffix: bool,
    /// Labels by which services enable persistent sessions.
    pub(crate) sessions: SessionLabels,
}

impl<'s> RouteCollections<'s> {
    /// Derives the indexes.
    pub(crate) fn new(inputs: &RouteInputs<'_, 's>) -> Self {
        let profiles_of = |name: &str, grpc: bool| {
            let profiles = inputs.proxies.index(&format!("{name}/by-content"), move |_, proxy| {
                let profile = RouteProfile::of(proxy);
                (proxy.proxy_type == ProxyType::Sidecar && proxy.grpc == grpc).then_some((profile, ()))
            });
            // By content, and not by text: a group would read all proxies of a profile each time one connects.
            let profiles = profiles.distinct(&format!("{name}/distinct"));
            profiles.flat_map(name, |profile, ()| [(profile_text(profile), profile.clone())])
        };
        let by_alias = inputs.destinations.services.index("services/by-alias", |_, service| {
            let alias = service.external_name.as_ref().filter(|_| service.resolution == Resolution::Alias);
            alias.map(|target| (target.clone(), ()))
        });
        let by_address = inputs.destinations.services.index("services/by-address", |_, service| {
            let addresses: BTreeSet<&Text> =
                service.addresses.values().flatten().chain(&service.auto_allocated_addresses).collect();
            let pairs = addresses
                .into_iter()
                .flat_map(|address| service.ports.iter().map(move |port| ((address.clone(), port.port), ())));
            pairs.collect::<Vec<_>>()
        });
        Self {
            services: inputs.destinations.services.clone(),
            services_by_host: inputs.destinations.services_by_host.clone(),
            hosts: inputs.hosts.clone(),
            virtual_services: inputs.virtual_services.clone(),
            destination_rules: inputs.hashing_rules.clone(),
            profiles: profiles_of("route_profiles", false),
            grpc_profiles: profiles_of("grpc_route_profiles", true),
            selections: inputs.destinations.selections.clone(),
            routed: inputs.virtual_services_by_host.clone(),
            by_alias,
            by_address,
            defaults: derive_route_defaults(inputs.mesh),
            sidecars: inputs.destinations.sidecars.clone(),
            domain: inputs.options.domain.clone(),
            dual_stack: inputs.options.dual_stack,
            shadow_suffix: inputs.options.shadow_suffix,
            sessions: inputs.options.sessions.clone(),
        }
    }
}

/// The fields of the mesh config that change routes.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct RouteDefaults {
    outbound: OutboundPolicy,
    retry: Option<HttpRetry>,
    rules: RulePolicy,
    headers: RouteHeaders,
    http_proxy: bool,
}

/// The fields of the mesh config that change routes, so that no other change of it recomputes them.
pub(crate) fn derive_route_defaults<'s>(mesh: &Collection<'s, (), MeshConfig>) -> Collection<'s, (), RouteDefaults> {
    mesh.map("route_defaults", |(), mesh| RouteDefaults {
        outbound: mesh.outbound_policy,
        retry: mesh.default_http_retry_policy.clone(),
        rules: RulePolicy::new(mesh),
        headers: RouteHeaders::of(&mesh.default_config),
        http_proxy: mesh.proxy_http_port > 0,
    })
}

/// Segments of the route tables of sidecars: virtual hosts, and the rest of each table that has any.
/// Key: `SegmentKey`. From: `services`, `virtual_services`, `destination_rules`, `mesh_config`, the profiles of sidecars.
/// Changes when: a Service gains or loses an HTTP port, name or address; a VirtualService or rule for it changes.
/// Size: HTTP ports of Services × (1 + special namespaces) × profiles. Rejects: none.
pub(crate) fn derive_sidecar_segments<'s>(inputs: &RouteCollections<'s>) -> [Collection<'s, SegmentKey, Segment>; 2] {
    let routed = inputs.routed.distinct("routes/routed-hosts");
    let hosts = inputs.hosts.union("routes/hosts", &[routed]);
    let hosts_with_segments = hosts.derive_many("routes/virtual-hosts", |d| {
        let reads = RouteReads::on(d, inputs);
        let profiles = d.on(&inputs.profiles);
        let selections = d.on(&inputs.selections);
        move |cx, host, ()| {
            let mesh = reads.at(cx);
            let namespaces = special_namespaces(&mesh, host);
            let labelled = uses_labels(&mesh, host);
            let selections = if labelled { cx.all(&selections) } else { Vec::new() };
            let scopes = mesh.reads.sidecars.scopes(cx, host, |interest| interest.listed || interest.routed);
            let mut segments = Vec::new();
            for (name, profile) in cx.all(&profiles) {
                let write = |client: &RouteScope| virtual_hosts(&mesh, host, client, &profile);
                let base = write(&RouteScope::default());
                let mut own_of = BTreeMap::new();
                for namespace in &namespaces {
                    let client = RouteScope { namespace: namespace.clone(), ..RouteScope::default() };
                    let own = write(&client);
                    let view = View::Namespace(namespace.clone());
                    put_difference(&mut segments, &Layer { view, profile: name.clone() }, &own, &base);
                    own_of.insert(namespace.clone(), own);
                }
                for ((namespace, labels), _) in &selections {
                    let client = RouteScope { namespace: namespace.clone(), labels: labels.clone(), scope: None };
                    let own = write(&client);
                    let view = View::Selected { namespace: namespace.clone(), labels: labels.clone() };
                    let below = own_of.get(namespace).unwrap_or(&base);
                    put_difference(&mut segments, &Layer { view, profile: name.clone() }, &own, below);
                }
                for scope in scopes.iter().filter(|scope| scope.outbound == profile.outbound) {
                    let of = |labels: &Labels| {
                        let (namespace, labels) = (scope.namespace().clone(), labels.clone());
                        write(&RouteScope { namespace, labels, scope: Some(scope.clone()) })
                    };
                    let all = of(&Labels::new());
                    let nothing = VirtualHosts::new();
                    put_difference(&mut segments, &Layer { view: scope.view(), profile: name.clone() }, &all, &nothing);
                    let views = if labelled { mesh.reads.sidecars.labelled(cx, &scope.scope) } else { Vec::new() };
                    for view in views {
                        let own = of(view.labels().unwrap_or(&Labels::new()));
                        put_difference(&mut segments, &Layer { view, profile: name.clone() }, &own, &all);
                    }
                }
                let layer = Layer { view: View::Base, profile: name };
                put_difference(&mut segments, &layer, &base, &VirtualHosts::new());
            }
            segments
        }
    });
    let rest = derive_tables(&hosts_with_segments, inputs);
    [hosts_with_segments, rest]
}

/// Writes what a layer has otherwise than the layers below, and what it hides of them.
pub(crate) fn put_difference(
    out: &mut Vec<(SegmentKey, Segment)>,
    layer: &Layer,
    own: &VirtualHosts,
    below: &VirtualHosts,
) {
    let key = |(table, name): &(Text, Text)| segment_key(layer, table, name);
    out.extend(
        difference(below, own)
            .map(|(at, bytes)| (key(at), bytes.map_or(Resource::Hidden, |bytes| Resource::Encoded(bytes.clone())))),
    );
}

pub(crate) fn segment_key(layer: &Layer, table: &Text, segment: &Text) -> SegmentKey {
    SegmentKey {
        resource_type: ResourceType::Route,
        layer: layer.clone(),
        name: table.clone(),
        segment: segment.clone(),
    }
}

/// The rest of every table that has a virtual host in a layer, and the virtual host of unknown hosts.
fn derive_tables<'s>(
    virtual_hosts: &Collection<'s, SegmentKey, Segment>,
    inputs: &RouteCollections<'s>,
) -> Collection<'s, SegmentKey, Segment> {
    let tables = virtual_hosts.index("routes/tables/rows", |key, segment| {
        let shown = *segment != Resource::Hidden;
        shown.then(|| ((key.layer.clone(), key.name.clone()), ()))
    });
    let declared = derive_declared_tables(inputs);
    let tables = tables.distinct("routes/tables").union("routes/all-tables", &[declared]);
    tables.derive_many("routes/headers", |d| {
        let profiles = d.on(&inputs.profiles);
        let defaults = d.on(&inputs.defaults);
        move |cx, (layer, table), ()| {
            let header = build_header(table, TableKind::Full);
            let mut segments = vec![(segment_key(layer, table, &Text::default()), encoded(&header))];
            let Some(profile) = cx.get(&profiles, &layer.profile) else { return segments };
            // A table of one Service has no unknown hosts.
            if !table.contains(':') || table.starts_with(UNIX_PREFIX) {
                let Some(defaults) = cx.get(&defaults, &()) else { return segments };
                let headers = profile.headers.unwrap_or(defaults.headers);
                let outbound = profile.outbound.as_ref();
                let egress_proxy = outbound.and_then(egress_cluster);
                let catch_all = match outbound.map_or(defaults.outbound, |outbound| outbound.policy) {
                    OutboundPolicy::AllowAny => CatchAll::Allow(egress_proxy.unwrap_or_else(|| PASSTHROUGH.into())),
                    OutboundPolicy::AllowAnyDynamicDns => CatchAll::AllowDynamicDns,
                    OutboundPolicy::RegistryOnly => CatchAll::Block,
                };
                let count_attempts = !headers.attempt_count_disabled;
                let built = build_catch_all(&catch_all, count_attempts, headers.append_x_forwarded_host);
                segments.push((segment_key(layer, table, &built.name.as_str().into()), encoded(&built)));
            }
            segments
        }
    })
}

/// Tables of the listeners that Sidecars declare: they exist even without virtual hosts.
fn derive_declared_tables<'s>(inputs: &RouteCollections<'s>) -> Collection<'s, (Layer, Text), ()> {
    inputs.sidecars.scopes.derive_many("routes/declared-tables", |d| {
        let (profiles, defaults) = (d.on(&inputs.profiles), d.on(&inputs.defaults));
        move |cx, _, scope| {
            let mut tables: BTreeSet<(Layer, Text)> = BTreeSet::new();
            let proxied = cx.get(&defaults, &()).is_some_and(|defaults| defaults.http_proxy);
            let profiles = cx.all(&profiles).into_iter().filter(|(_, profile)| profile.outbound == scope.outbound);
            for (name, profile) in profiles {
                let of_proxy = (proxied || profile.http_proxy).then(|| HTTP_PROXY_ROUTES.into());
                let layer = Layer { view: scope.view(), profile: name };
                let declared = scope.listeners.iter().filter_map(EgressListener::table).chain(of_proxy);
                tables.extend(declared.map(|table| (layer.clone(), table)));
            }
            tables.into_iter().map(|table| (table, ())).collect()
        }
    })
}

pub(crate) fn encoded<M: prost::Message + prost::Name>(message: &M) -> Segment {
    Resource::Encoded(sluice_proto::wire::encode(message).into())
}

/// The collections that virtual hosts read, as dependencies of a `derive`.
pub(crate) struct RouteReads {
    services: Dep<ServiceKey, Service>,
    host_services: HostServiceLookup,
    hosts: Dep<Host, ()>,
    by_alias: IndexDep<Host, ServiceKey, ()>,
    by_address: IndexDep<(Text, u16), ServiceKey, ()>,
    virtual_services: Dep<ObjectKey, VirtualService>,
    rules: RuleLookup,
    routed: IndexDep<Host, ObjectKey, ()>,
    defaults: Dep<(), RouteDefaults>,
    sidecars: SidecarLookup,
    domain: Text,
    dual_stack: bool,
    shadow_suffix: bool,
    sessions: SessionLabels,
}

impl RouteReads {
    pub(crate) fn on<'s>(d: &mut Deps<'s>, inputs: &RouteCollections<'s>) -> Self {
        Self {
            services: d.on(&inputs.services),
            host_services: HostServiceLookup::on(d, &inputs.services_by_host, &inputs.services),
            hosts: d.on(&inputs.hosts),
            by_alias: d.by(&inputs.by_alias),
            by_address: d.by(&inputs.by_address),
            virtual_services: d.on(&inputs.virtual_services),
            rules: RuleLookup::on(d, Some(&inputs.destination_rules)),
            routed: d.by(&inputs.routed),
            defaults: d.on(&inputs.defaults),
            sidecars: SidecarLookup::on(d, &inputs.sidecars),
            domain: inputs.domain.clone(),
            dual_stack: inputs.dual_stack,
            shadow_suffix: inputs.shadow_suffix,
            sessions: inputs.sessions.clone(),
        }
    }

    pub(crate) fn at<'a>(&'a self, cx: &'a Context) -> RouteReader<'a> {
        let defaults = cx.get(&self.defaults, &());
        RouteReader {
            reads: self,
            cx,
            defaults,
            services: RefCell::default(),
            routed: HostMemo::default(),
            rules: HostMemo::default(),
        }
    }
}

/// Results of look-ups by host: the same hosts are looked up for each client and port.
type HostMemo<V> = RefCell<BTreeMap<Host, Vec<Arc<V>>>>;

fn memoised<V: Clone>(memo: &RefCell<BTreeMap<Host, V>>, host: &Host, find: impl FnOnce() -> V) -> V {
    if let Some(found) = memo.borrow().get(host) {
        return found.clone();
    }
    let found = find();
    memo.borrow_mut().insert(host.clone(), found.clone());
    found
}

/// [`RouteReads`] within one run of a closure.
pub(crate) struct RouteReader<'a> {
    reads: &'a RouteReads,
    cx: &'a Context,
    defaults: Option<Arc<RouteDefaults>>,
    services: RefCell<BTreeMap<Host, HostServices>>,
    routed: HostMemo<VirtualService>,
    rules: HostMemo<DestinationRule>,
}

impl RouteReader<'_> {
    /// All rules that cover a host, or none if no rule sets consistent hashing: routes depend on no other field of a
    /// rule.
    fn hashing_rules(&self, host: &Host) -> Vec<Arc<DestinationRule>> {
        memoised(&self.rules, host, || {
            let rules = self.reads.rules.covering(self.cx, host);
            if rules.iter().any(|rule| asks_for_hashing(rule)) { rules } else { Vec::new() }
        })
    }

    fn services_of(&self, keys: Vec<(ServiceKey, Arc<()>)>) -> Vec<Arc<Service>> {
        keys.into_iter().filter_map(|(key, _)| self.cx.get(&self.reads.services, &key)).collect()
    }
}

impl RouteContext for RouteReader<'_> {
    fn services(&self, host: &Host) -> HostServices {
        memoised(&self.services, host, || self.reads.host_services.get(self.cx, host))
    }

    fn aliases(&self, host: &Host) -> Vec<Arc<Service>> {
        // An alias may refer to another alias; aliases in a circle refer to nothing.
        let (mut found, mut open, mut seen) = (Vec::new(), vec![host.clone()], BTreeSet::from([host.clone()]));
        while let Some(target) = open.pop() {
            for alias in self.services_of(self.cx.by(&self.reads.by_alias, &target)) {
                if seen.insert(alias.host.clone()) {
                    open.push(alias.host.clone());
                    found.push(alias);
                }
            }
        }
        found
    }

    fn hosts_at(&self, address: &Text, port: u16) -> Vec<Host> {
        let keys = self.cx.by(&self.reads.by_address, &(address.clone(), port));
        keys.into_iter().map(|(key, _)| key.host).collect()
    }

    fn hosts_matching(&self, wildcard: &Host) -> Vec<Host> {
        let hosts = self.cx.all(&self.reads.hosts).into_iter().map(|(host, _)| host);
        hosts.filter(|host| host.overlaps(wildcard)).collect()
    }

    fn virtual_services(&self, host: &Host) -> Vec<Arc<VirtualService>> {
        memoised(&self.routed, host, || {
            let keys = self.cx.by(&self.reads.routed, host);
            keys.into_iter().filter_map(|(key, _)| self.cx.get(&self.reads.virtual_services, &key)).collect()
        })
    }

    fn destination_rule(&self, client: &RouteScope, host: &Host) -> Option<DestinationRule> {
        let rules = self.hashing_rules(host);
        if rules.is_empty() {
            return None;
        }
        let services = self.services(host);
        let service = match &client.scope {
            Some(scope) => self.reads.sidecars.host(self.cx, host).service(&scope.scope, services.iter())?,
            None => services.visible_to(&client.namespace)?.clone(),
        };
        let labels = Some(&client.labels).filter(|labels| !labels.is_empty());
        let follower = RuleClient { namespace: &client.namespace, labels };
        let policy = &self.defaults.as_ref()?.rules;
        select_rule(&rules, policy, host, &service.namespace, follower)
    }

    fn destination_rule_namespaces(&self, host: &Host) -> BTreeSet<Text> {
        destination_rules::special_namespaces(&self.hashing_rules(host))
    }

    fn rules_use_labels(&self, host: &Host) -> bool {
        self.hashing_rules(host).iter().any(|rule| rule.workload_selector.is_some())
    }

    fn domain(&self) -> &str {
        &self.reads.domain
    }

    fn default_retry(&self) -> Option<&HttpRetry> {
        self.defaults.as_ref()?.retry.as_ref()
    }

    fn default_headers(&self) -> RouteHeaders {
        self.defaults.as_ref().map(|defaults| defaults.headers).unwrap_or_default()
    }

    fn shadow_suffix(&self) -> bool {
        self.reads.shadow_suffix
    }

    fn dual_stack(&self) -> bool {
        self.reads.dual_stack
    }

    fn has_http_proxy(&self) -> bool {
        self.defaults.as_ref().is_some_and(|defaults| defaults.http_proxy)
    }

    fn sessions(&self) -> &SessionLabels {
        &self.reads.sessions
    }
}
