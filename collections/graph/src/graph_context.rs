//! The collections that outputs and scopes are derived from, and which of them each output reads.

use std::collections::BTreeSet;

use sluice_engine::{Collection, Index};
use sluice_envoy::cluster::ClusterSettings;
use sluice_model::{
    Host, Jwks, JwksKey, Labels, MeshConfig, NetworkGateway, ObjectKey, PeerAuthentication, Proxy, ProxyKey, Reject,
    Scope, Service, ServiceKey, Text, VirtualService,
};

use crate::inputs::{ObjectCollections, RejectKey};
use crate::options::GraphOptions;
use crate::outputs::clusters::{self, ClusterInputs};
use crate::outputs::endpoints::ingress_waypoints::IngressWaypoints;
use crate::outputs::endpoints::self_discovery::ReplicaGroup;
use crate::outputs::endpoints::waypoints::{
    WaypointClients, WaypointOutputInputs, derive_clients, derive_settings, derive_waypoint_assignments,
};
use crate::outputs::endpoints::{self, EndpointInputs, EndpointLookupInputs};
use crate::outputs::extension_configs::{self, ExtensionConfigInputs};
use crate::outputs::layers::LayerInputs;
use crate::outputs::listeners::{
    self, GatewayListenerInputs, InboundListenerInputs, ListenerInputs, OutboundListenerInputs, PassthroughInputs,
    SettingInputs, WaypointListenerInputs,
};
use crate::outputs::name_tables::{self, NameTableInputs};
use crate::outputs::patched::{self, PatchedInputs};
use crate::outputs::routes::{self, RouteInputs};
use crate::outputs::secrets::{self, SecretInputs, ServableSecrets};
use crate::outputs::{Outputs, addresses, on_demand_clusters, trust_bundle, vhds};
use crate::proxies::attached::Attachments;
use crate::proxies::envoy_filters::Patches;
use crate::proxies::policies::{PolicyIndex, PolicyInputs};
use crate::proxies::selected_labels::SelectedLabels;
use crate::proxies::tiers::RareTiers;
use crate::proxies::workloads::{Workload, WorkloadName};
use crate::registry::endpoints::ServiceEndpoints;
use crate::scopes::{ScopeInputs, derive_scopes};
use crate::traffic::ambient::Ambient;
use crate::traffic::credentials::CredentialClient;
use crate::traffic::destination_rules::{RuleIndex, RuleIndexes, RulePolicy};
use crate::traffic::destinations::DestinationInputs;
use crate::traffic::gateway_api::agentgateway::Agentgateway;
use crate::traffic::gateway_api::inference_pools::GatewayName;
use crate::traffic::gateways::reach::Reach;
use crate::traffic::gateways::routers::Routers;
use crate::traffic::gateways::udp_policies::derive_udp_policy_rejects;
use crate::traffic::pull_secrets::PullAccess;
use crate::traffic::secrets::Secrets;
use crate::traffic::sidecars::Sidecars;
use crate::traffic::waypoints::WaypointProxies;

/// The collections that outputs and scopes are derived from.
///
/// No output reads this struct. [`GraphContext::derive_outputs`] gives each output a struct of the collections it
/// reads.
pub(crate) struct GraphContext<'s> {
    /// Settings fixed at start-up.
    pub(crate) options: GraphOptions,
    /// Objects of the namespaces that `discoverySelectors` select.
    pub(crate) objects: ObjectCollections<'s>,
    /// The mesh config: one record.
    pub(crate) mesh: Collection<'s, (), MeshConfig>,
    /// Services, merged over clusters.
    pub(crate) services: Collection<'s, ServiceKey, Service>,
    /// Services of each host.
    pub(crate) services_by_host: Index<'s, Host, ServiceKey, ()>,
    /// Every host that some service has.
    pub(crate) hosts: Collection<'s, Host, ()>,
    /// Endpoints of every service.
    pub(crate) endpoints: ServiceEndpoints<'s>,
    /// Identities (SPIFFE) of every service that has any, sorted, without the mesh's trust domain aliases.
    pub(crate) identities: Collection<'s, ServiceKey, Vec<Text>>,
    /// Connected proxies. A proxy without a locality has the locality of its node.
    pub(crate) proxies: Collection<'s, ProxyKey, Proxy>,
    /// Labels of proxies that selectors mention: one record.
    pub(crate) selected_labels: Collection<'s, (), SelectedLabels>,
    /// Tiers of clients that have layers only while a service needs them.
    pub(crate) rare_tiers: RareTiers<'s>,
    /// The workload of each proxy.
    pub(crate) workload_names: Collection<'s, ProxyKey, WorkloadName>,
    /// Distinct workloads of connected proxies: the inputs of their inbound resources.
    pub(crate) workloads: Collection<'s, WorkloadName, Workload>,
    /// Telemetry and extensions of proxies, and the profiles that listeners are built from.
    pub(crate) attached: Attachments<'s>,
    /// Combinations of selected labels in use, with their namespace: each is a `View::Selected`.
    pub(crate) selections: Collection<'s, (Text, Labels), ()>,
    /// VirtualServices with their delegates and with `export_to` resolved.
    pub(crate) virtual_services: Collection<'s, ObjectKey, VirtualService>,
    /// VirtualServices of sidecars by host as declared, wildcards included.
    pub(crate) virtual_services_by_host: Index<'s, Host, ObjectKey, ()>,
    /// Sidecars in use, and the hosts that they list or reach through a route.
    pub(crate) sidecars: Sidecars<'s>,
    /// DestinationRules by host, as a whole and by parts.
    pub(crate) rule_indexes: RuleIndexes<'s>,
    /// Gateways from one network to another, by address or host name: one record.
    pub(crate) network_gateways: Collection<'s, (), Vec<NetworkGateway>>,
    /// The same with IP addresses instead of host names: one record.
    pub(crate) resolved_network_gateways: Collection<'s, (), Vec<NetworkGateway>>,
    /// The fields of the mesh config that decide which DestinationRules apply: one record.
    pub(crate) rule_policy: Collection<'s, (), RulePolicy>,
    /// Connected routers, and their merged Gateways.
    pub(crate) routers: Routers<'s>,
    /// The hosts that routers send to, if they get only the clusters of those.
    pub(crate) reach: Option<Reach<'s>>,
    /// The hosts that waypoints send to besides their services, in ambient mode.
    pub(crate) waypoint_reach: Option<Reach<'s>>,
    /// AuthorizationPolicies and RequestAuthentications by namespace.
    pub(crate) policy_index: PolicyIndex<'s>,
    /// PeerAuthentications by namespace.
    pub(crate) peer_authentications_by_namespace: Index<'s, Text, ObjectKey, PeerAuthentication>,
    /// PeerAuthentications as clients read them, by namespace.
    pub(crate) client_policies: Index<'s, Text, ObjectKey, PeerAuthentication>,
    /// Patches of EnvoyFilters, by the proxies they apply to.
    pub(crate) patches: Patches<'s>,
    /// Namespace whose policies are for the whole mesh: one record.
    pub(crate) root_namespace: Collection<'s, (), Text>,
    /// JWKS that were fetched.
    pub(crate) jwks: Collection<'s, JwksKey, Jwks>,
    /// Root certificates that workloads trust: one record, or none.
    pub(crate) trust_bundle: Collection<'s, (), Vec<Text>>,
    /// Connected waypoints, and what they serve, in ambient mode.
    pub(crate) waypoints: Option<WaypointProxies<'s>>,
    /// Settings of clusters and endpoint assignments: one record.
    pub(crate) cluster_settings: Collection<'s, (), ClusterSettings>,
    /// Services that gateways reach through waypoints, in ambient mode.
    pub(crate) ingress_waypoints: Option<IngressWaypoints<'s>>,
    /// The Secrets that each proxy may read.
    pub(crate) secrets: Secrets<'s>,
    /// Proxies whose clusters may need Secrets.
    pub(crate) credential_clients: Collection<'s, ProxyKey, CredentialClient>,
    /// The pull secrets of extension images that each proxy may use.
    pub(crate) pulls: Collection<'s, ProxyKey, PullAccess>,
    /// The group of replicas of each proxy that discovers itself.
    pub(crate) replica_groups: Collection<'s, ProxyKey, ReplicaGroup>,
    /// Gateways whose proxies call the endpoint pickers of InferencePools.
    pub(crate) gateways_with_pools: Collection<'s, GatewayName, ()>,
    /// The ports of hosts that UDPRoutes lead to; `None` if UDPRoutes have no effect.
    pub(crate) udp_backends: Option<Collection<'s, Host, BTreeSet<u16>>>,
    /// The workloads and services whose addresses are sent: those of ambient mode, also without it if agentgateways are served.
    pub(crate) addressed: Option<Ambient<'s>>,
    /// What agentgateways are sent, if they are served.
    pub(crate) agentgateway: Option<Agentgateway<'s>>,
}

impl<'s> GraphContext<'s> {
    /// All outputs, in push order.
    pub(crate) fn derive_outputs(&self) -> Outputs<'s> {
        let mut outputs = Outputs { resources: Vec::new(), segments: Vec::new() };
        let waypoints = self.waypoint_output_inputs().map(|inputs| {
            let clients = derive_clients(inputs.proxies, inputs.waypoints);
            (inputs, clients)
        });
        clusters::derive_clusters(&self.cluster_inputs(waypoints.clone()), &mut outputs);
        let mut patchable = outputs.resources.clone();
        let assignments =
            endpoints::derive_endpoint_assignments(&self.endpoint_inputs(waypoints.clone()), &mut outputs);
        if let Some((inputs, clients)) = &waypoints {
            outputs.resources.push(derive_waypoint_assignments(inputs, clients));
        }
        let before_listeners = outputs.resources.len();
        listeners::derive_listeners(&self.listener_inputs(), &mut outputs);
        patchable.extend(outputs.resources.iter().skip(before_listeners).cloned());
        routes::derive_routes(&self.route_inputs(), &mut outputs);
        name_tables::derive_name_tables(&self.name_table_inputs(), &mut outputs);
        let Patches { of_proxies, programs, .. } = &self.patches;
        let layers = patched::derive_patched_layers(&self.proxies, of_proxies, &self.layer_inputs());
        let inputs = PatchedInputs { programs, merged_gateways: &self.routers.merged };
        patched::derive_patched(&inputs, &layers, &patchable, &mut outputs);
        extension_configs::derive_extension_configs(&self.extension_config_inputs(), &mut outputs);
        if self.options.on_demand_clusters {
            on_demand_clusters::split_clusters(&mut outputs);
        }
        if self.options.virtual_hosts {
            vhds::split_route_tables(&mut outputs);
        }
        if let Some(addressed) = &self.addressed {
            addresses::derive_addresses(addressed, &mut outputs);
        }
        if let (Some(addressed), Some(agentgateway)) = (&self.addressed, &self.agentgateway) {
            addresses::derive_agentgateway_addresses(addressed, &mut outputs);
            outputs.resources.push(agentgateway.resources.clone());
        }
        secrets::derive_secrets(&self.secret_inputs(), &mut outputs);
        trust_bundle::derive_trust_bundle(&self.trust_bundle, &mut outputs);
        // No patch applies to these.
        outputs.segments.extend(assignments);
        outputs
    }

    /// The scope of each connected proxy. `agentgateways` are the connected agentgateways.
    pub(crate) fn derive_scopes(
        &self,
        agentgateways: Option<&Collection<'s, ProxyKey, Proxy>>,
    ) -> Collection<'s, ProxyKey, Scope> {
        let scopes = derive_scopes(&ScopeInputs {
            proxies: &self.proxies,
            layers: self.layer_inputs(),
            proxy_patches: &self.patches.of_proxies,
            secret_access: &self.secrets.access,
            pull_access: &self.pulls,
            replica_groups: &self.replica_groups,
        });
        let Some((proxies, agentgateway)) = agentgateways.zip(self.agentgateway.as_ref()) else { return scopes };
        let others = agentgateway.derive_scopes(proxies, &addresses::agentgateway_layers(), &self.options);
        scopes.union("scopes/all", &[others])
    }

    /// The look-up of services and of these parts of rules.
    fn destination_inputs<'a>(&'a self, rules_by_host: Option<&'a RuleIndex<'s>>) -> DestinationInputs<'a, 's> {
        DestinationInputs {
            services: &self.services,
            services_by_host: &self.services_by_host,
            rules_by_host,
            rule_policy: &self.rule_policy,
            selections: &self.selections,
            sidecars: &self.sidecars,
        }
    }

    /// Findings about policies of gateways with listeners for datagrams, if UDPRoutes have effect.
    pub(crate) fn derive_udp_policy_rejects(&self) -> Option<Collection<'s, RejectKey, Vec<Reject>>> {
        self.udp_backends.as_ref().map(|_| derive_udp_policy_rejects(&self.routers.merged, &self.policy_inputs()))
    }

    fn policy_inputs(&self) -> PolicyInputs<'_, 's> {
        PolicyInputs {
            objects: &self.objects,
            index: &self.policy_index,
            root_namespace: &self.root_namespace,
            jwks: &self.jwks,
            services_by_host: &self.services_by_host,
            gateways_by_target_only: self.options.security.gateways_by_target_only,
            jwks_fetch: self.options.jwks_fetch,
        }
    }

    fn layer_inputs(&self) -> LayerInputs<'_, 's> {
        LayerInputs {
            workload_names: &self.workload_names,
            replicas: &self.routers.replicas,
            selected_labels: &self.selected_labels,
            auto_passthrough: &self.routers.auto_passthrough,
            listener_facts: &self.attached.facts,
            rare_tiers: &self.rare_tiers.needed,
            ingress_tiers: self.ingress_waypoints.as_ref().map(|ingress| &ingress.tiers),
            reach_views: [&self.reach, &self.waypoint_reach].map(|reach| reach.as_ref().map(|reach| &reach.views)),
            credential_clients: &self.credential_clients,
        }
    }

    fn endpoint_lookup_inputs(&self) -> EndpointLookupInputs<'_, 's> {
        EndpointLookupInputs {
            endpoints: &self.endpoints,
            network_gateways: &self.network_gateways,
            resolved_network_gateways: &self.resolved_network_gateways,
            client_policies: &self.client_policies,
        }
    }

    fn cluster_inputs<'a>(
        &'a self,
        waypoints: Option<(WaypointOutputInputs<'a, 's>, WaypointClients<'s>)>,
    ) -> ClusterInputs<'a, 's> {
        ClusterInputs {
            options: &self.options,
            settings: &self.cluster_settings,
            mesh: &self.mesh,
            proxies: &self.proxies,
            rare_tiers: &self.rare_tiers,
            auto_passthrough: &self.routers.auto_passthrough,
            reach: [self.reach.as_ref(), self.waypoint_reach.as_ref()],
            hosts: &self.hosts,
            destinations: self.destination_inputs(Some(&self.rule_indexes.whole)),
            endpoints: self.endpoint_lookup_inputs(),
            identities: &self.identities,
            workloads: &self.workloads,
            credential_clients: &self.credential_clients,
            secrets: ServableSecrets::new(&self.secret_inputs()),
            waypoints,
            udp_backends: self.udp_backends.as_ref(),
        }
    }

    fn waypoint_output_inputs(&self) -> Option<WaypointOutputInputs<'_, 's>> {
        let waypoints = self.waypoints.as_ref()?;
        Some(WaypointOutputInputs {
            switches: self.options.clusters,
            settings: derive_settings(&self.mesh, &self.options),
            mesh: &self.mesh,
            root_namespace: &self.root_namespace,
            proxies: &self.proxies,
            waypoints,
            destinations: self.destination_inputs(Some(&self.rule_indexes.whole)),
            endpoints: self.endpoint_lookup_inputs(),
        })
    }

    fn waypoint_listener_inputs(&self) -> Option<WaypointListenerInputs<'_, 's>> {
        let waypoints = self.waypoints.as_ref()?;
        Some(WaypointListenerInputs {
            options: &self.options,
            waypoints,
            attached: &self.attached,
            destinations: self.destination_inputs(Some(&self.rule_indexes.whole)),
            virtual_services: &self.virtual_services,
            virtual_services_by_host: &self.virtual_services_by_host,
            policies: self.policy_inputs(),
        })
    }

    fn endpoint_inputs<'a>(
        &'a self,
        waypoints: Option<(WaypointOutputInputs<'a, 's>, WaypointClients<'s>)>,
    ) -> EndpointInputs<'a, 's> {
        EndpointInputs {
            waypoints,
            settings: &self.cluster_settings,
            proxies: &self.proxies,
            rare_tiers: &self.rare_tiers,
            auto_passthrough: &self.routers.auto_passthrough,
            hosts: &self.hosts,
            destinations: self.destination_inputs(Some(&self.rule_indexes.endpoints)),
            endpoints: self.endpoint_lookup_inputs(),
            ingress_waypoints: self.ingress_waypoints.as_ref(),
            replica_groups: &self.replica_groups,
            root_namespace: &self.root_namespace,
            udp_backends: self.udp_backends.as_ref(),
            by_locality: self.options.endpoints_by_locality,
        }
    }

    fn listener_inputs(&self) -> ListenerInputs<'_, 's> {
        ListenerInputs {
            settings: SettingInputs {
                options: &self.options,
                mesh: &self.mesh,
                proxies: &self.proxies,
                attached: &self.attached,
                services_by_host: &self.services_by_host,
            },
            outbound: OutboundListenerInputs {
                hosts: &self.hosts,
                destinations: self.destination_inputs(Some(&self.rule_indexes.connections)),
                clients: self.destination_inputs(None),
                virtual_services: &self.virtual_services,
                endpoints: &self.endpoints.listed,
            },
            inbound: InboundListenerInputs {
                workload_names: &self.workload_names,
                workloads: &self.workloads,
                listener_facts: &self.attached.facts,
                services: &self.services,
                sidecars_inbound: &self.sidecars.inbound,
                peer_authentications_by_namespace: &self.peer_authentications_by_namespace,
                policies: self.policy_inputs(),
            },
            gateways: GatewayListenerInputs {
                passthrough: PassthroughInputs {
                    routers: &self.routers,
                    listener_facts: &self.attached.facts,
                    hosts: &self.hosts,
                    destinations: self.destination_inputs(Some(&self.rule_indexes.connections)),
                },
                virtual_services: &self.virtual_services,
                policies: self.policy_inputs(),
                gateways_with_pools: &self.gateways_with_pools,
            },
            waypoints: self.waypoint_listener_inputs(),
        }
    }

    fn route_inputs(&self) -> RouteInputs<'_, 's> {
        RouteInputs {
            options: &self.options,
            mesh: &self.mesh,
            proxies: &self.proxies,
            routers: &self.routers,
            hosts: &self.hosts,
            destinations: self.destination_inputs(None),
            hashing_rules: &self.rule_indexes.hashing,
            virtual_services: &self.virtual_services,
            virtual_services_by_host: &self.virtual_services_by_host,
        }
    }

    fn name_table_inputs(&self) -> NameTableInputs<'_, 's> {
        NameTableInputs {
            dual_stack: self.options.dual_stack,
            proxies: &self.proxies,
            hosts: &self.hosts,
            destinations: self.destination_inputs(None),
            endpoints: &self.endpoints.listed,
        }
    }

    fn extension_config_inputs(&self) -> ExtensionConfigInputs<'_, 's> {
        ExtensionConfigInputs {
            cluster: &self.options.cluster,
            extensions: &self.attached.extensions,
            root_namespace: &self.attached.root,
            pull_access: &self.pulls,
            secrets: &self.objects.secrets,
            programs: &self.patches.programs,
            waypoints: self.waypoints.as_ref(),
        }
    }

    fn secret_inputs(&self) -> SecretInputs<'_, 's> {
        SecretInputs {
            cluster: &self.options.cluster,
            access: &self.secrets.access,
            bundles: &self.secrets.bundles,
            secrets: &self.objects.secrets,
        }
    }
}
