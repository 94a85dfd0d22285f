//! The collections that outputs and scopes are derived from.

use sluice_engine::{Collection, Index};
use sluice_envoy::endpoint::Tier;
use sluice_model::{
    DestinationRule, Endpoint, Host, Jwks, JwksKey, Labels, MeshConfig, NetworkGateway, ObjectKey, PeerAuthentication,
    Proxy, ProxyKey, Service, ServiceKey, Text, VirtualService,
};

use crate::inputs::Objects;
use crate::options::GraphOptions;
use crate::proxies::attached::AttachedTo;
use crate::proxies::envoy_filters::Patches;
use crate::proxies::policies::{PolicyIndex, PolicyInputs};
use crate::proxies::pull_secrets::PullAccess;
use crate::proxies::tiers::RareTiers;
use crate::proxies::workloads::{Workload, WorkloadName};
use crate::traffic::ambient::Ambient;
use crate::traffic::destination_rules::RulePolicy;
use crate::traffic::destinations::DestinationInputs;
use crate::traffic::gateways::reach::Reach;
use crate::traffic::gateways::routers::Routers;
use crate::traffic::secrets::Secrets;
use crate::traffic::sidecars::Sidecars;

/// The collections that outputs are made of. Cloning is cheap; each output says in its doc which of them it reads.
#[derive(Clone)]
pub(crate) struct GraphContext<'s> {
    /// What the process was told.
    pub(crate) options: GraphOptions,
    /// Parsed objects, as far as `discoverySelectors` lets them exist.
    pub(crate) objects: Objects<'s>,
    /// The mesh config: one record.
    pub(crate) mesh: Collection<'s, (), MeshConfig>,
    /// Services, merged over clusters.
    pub(crate) services: Collection<'s, ServiceKey, Service>,
    /// Services of each host.
    pub(crate) services_by_host: Index<'s, Host, ServiceKey, ()>,
    /// Every host that some service has.
    pub(crate) hosts: Collection<'s, Host, ()>,
    /// Endpoints of every service, sorted; empty if it has none.
    pub(crate) endpoints: Collection<'s, ServiceKey, Vec<Endpoint>>,
    /// Identities (SPIFFE) behind every service that has any, sorted, without the mesh's aliases.
    pub(crate) identities: Collection<'s, ServiceKey, Vec<Text>>,
    /// Connected proxies, with the locality of their node where they send none.
    pub(crate) proxies: Collection<'s, ProxyKey, Proxy>,
    /// Tiers of clients that are written only where a service needs them.
    pub(crate) rare_tiers: RareTiers<'s>,
    /// Which workload each proxy is.
    pub(crate) workload_names: Collection<'s, ProxyKey, WorkloadName>,
    /// Distinct workloads of connected proxies: what their inbound sides depend on.
    pub(crate) workloads: Collection<'s, WorkloadName, Workload>,
    /// What Telemetries and extensions attach to proxies, and what listeners of each are written from.
    pub(crate) attached: AttachedTo<'s>,
    /// Combinations of selected labels in use, with their namespace: each is a `View::Selected`.
    pub(crate) selections: Collection<'s, (Text, Labels), ()>,
    /// VirtualServices with their delegates and with `export_to` resolved.
    pub(crate) virtual_services: Collection<'s, ObjectKey, VirtualService>,
    /// VirtualServices of sidecars by host as written, wildcards included.
    pub(crate) virtual_services_by_host: Index<'s, Host, ObjectKey, ()>,
    /// Sidecars in use, and what each host is to them.
    pub(crate) sidecars: Sidecars<'s>,
    /// DestinationRules by host as declared, wildcards included.
    pub(crate) destination_rules_by_host: Index<'s, Host, ObjectKey, DestinationRule>,
    /// Ways from one network to another, by address: one record.
    pub(crate) network_gateways: Collection<'s, (), Vec<NetworkGateway>>,
    /// The same with IP addresses instead of names.
    pub(crate) resolved_network_gateways: Collection<'s, (), Vec<NetworkGateway>>,
    /// What of the mesh config decides which DestinationRules apply: one record.
    pub(crate) rule_policy: Collection<'s, (), RulePolicy>,
    /// Connected routers, and what they listen for.
    pub(crate) routers: Routers<'s>,
    /// What they send to, if they get the clusters of that only.
    pub(crate) reach: Option<Reach<'s>>,
    /// PeerAuthentications by namespace.
    pub(crate) peer_authentications_by_namespace: Index<'s, Text, ObjectKey, PeerAuthentication>,
    /// Patches of EnvoyFilters, by where they apply.
    pub(crate) patches: Patches<'s>,
    /// Namespace whose policies are for the whole mesh: one record.
    pub(crate) root_namespace: Collection<'s, (), Text>,
    /// Keys of token issuers that were fetched.
    pub(crate) jwks: Collection<'s, JwksKey, Jwks>,
    /// Roots that workloads are to trust: one record, or none.
    pub(crate) trust_bundle: Collection<'s, (), Vec<Text>>,
    /// What node proxies are told, in ambient mode.
    pub(crate) ambient: Option<Ambient<'s>>,
    /// Who may have which secrets.
    pub(crate) secrets: Secrets<'s>,
    /// Who may have which credentials for images of extensions.
    pub(crate) pulls: Collection<'s, ProxyKey, PullAccess>,
}

impl<'s> GraphContext<'s> {
    /// The proxies that services may tell apart as clients of a tier.
    pub(crate) fn clients(&self, tier: Tier) -> &Collection<'s, ProxyKey, Proxy> {
        self.rare_tiers.clients(&self.proxies, tier)
    }

    /// What [`Destinations`](crate::traffic::destinations::Destinations) reads.
    pub(crate) fn destination_inputs(&self) -> DestinationInputs<'_, 's> {
        DestinationInputs {
            services: &self.services,
            services_by_host: &self.services_by_host,
            rules_by_host: &self.destination_rules_by_host,
            rule_policy: &self.rule_policy,
            selections: &self.selections,
            sidecars: &self.sidecars,
        }
    }

    /// What the look-ups of policies read.
    pub(crate) fn policy_inputs<'a>(&'a self, index: &'a PolicyIndex<'s>) -> PolicyInputs<'a, 's> {
        PolicyInputs {
            objects: &self.objects,
            index,
            root_namespace: &self.root_namespace,
            jwks: &self.jwks,
            services_by_host: &self.services_by_host,
            gateways_by_target_only: self.options.security.gateways_by_target_only,
            jwks_fetch: self.options.jwks_fetch,
        }
    }
}
