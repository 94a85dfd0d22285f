//! The dataflow graph: which collections derive from which.
//!
//! [`build`] is the table of contents: it lists the collections in order. Every collection is a pure function of the
//! inputs: no file, environment variable, clock or task is read. This is the only crate that joins collections.
//!
//! The modules follow the data. A module uses only the modules above it:
//!
//! - `options`, `content_names`, `host_patterns`, `views`: settings and types that all other modules share.
//! - `statuses`: statuses of objects to write, and their conditions.
//! - `inputs`: the collections that sources write, and the mesh config; which namespaces are read.
//! - `registry`: networks, clusters, services, workloads, endpoints, and the addresses that are allocated to ServiceEntries.
//! - `proxies`: connected proxies and what selects them: Sidecars, policies, Telemetries, extensions, EnvoyFilters.
//! - `policy_explanation`: the rules about the security policies of one workload, for explanations.
//! - `traffic`: VirtualServices, DestinationRules, Sidecar scopes, Gateways, the Gateway API, Ingresses, ambient mode,
//!   and access to Secrets.
//! - `outputs`: encoded resources, one file for each resource type.
//! - `scopes`: the layers of each type that a proxy gets.
//! - `handles`: the inputs and the published collections, for the process.

mod content_names;
mod graph_context;
mod handles;
mod host_patterns;
mod inputs;
mod options;
mod outputs;
mod policy_explanation;
mod proxies;
mod registry;
mod scopes;
mod statuses;
mod traffic;
mod views;
mod visibility;

use sluice_engine::{Collection, CopyError, Engine, EngineOptions, GraphBuilder, HistoryLimits};
use sluice_model::ProxyType;

pub use handles::Handles;
pub use inputs::{Inputs, JsonRecord, JsonRecordError, RejectKey, ServedKind};
pub use options::{
    AddressPools, AmbientOptions, ClusterSwitches, GatewayApiOptions, GraphOptions, JwksFetch, ListenerSwitches,
    MultiClusterOptions, PatchLimits, SecurityOptions, UntaintOptions,
};
pub use policy_explanation::{AttachedPolicy, ExplainedPeerPolicy, ExplainedWorkload};
pub use proxies::collectors::COLLECTORS;
pub use proxies::envoy_filters::PatchCondition;
pub use proxies::targets::ServiceTarget;
pub use registry::allocation::AddressUpdate;
pub use registry::endpoints::{EndpointChunkKey, EndpointGroup};
pub use registry::multi_cluster::{MissingServiceExport, MultiClusterService};
pub use registry::nodes::TaintRemoval;
pub use sluice_envoy::listener::{MtlsMode, PeerPolicy};
pub use sluice_envoy::listener_settings::Collector;
pub use sluice_envoy::security::{
    MatchedRule, PolicyDecision, PolicyEffect, PolicyHttpRequest, PolicyRequest, PolicyStep,
};
pub use statuses::{ConditionUpdate, StatusKey, StatusUpdate};
pub use traffic::gateway_api::classes::MissingGatewayClass;
pub use traffic::gateway_api::inference_pools::{ShadowPort, ShadowService};
pub use traffic::ingresses::IngressStatusUpdate;
pub use visibility::{
    CandidateRule, RulesByHost, SidecarImports, destination_hosts, followed_rule, host_candidates, reached_service,
    sort_by_precedence, with_visibility,
};

use graph_context::GraphContext;
use inputs::{discovery, mesh_config};
use outputs::endpoints::ingress_waypoints::IngressWaypoints;
use outputs::endpoints::self_discovery::derive_replica_groups;
use proxies::patched_parts::PartInputs;
use proxies::policies::PolicyIndex;
use proxies::router_labels::RouterLabels;
use proxies::sidecar_choice::SidecarHeads;
use proxies::targets::TargetInputs;
use proxies::tiers::RareTiers;
use proxies::{
    attached, connected, envoy_filter_limits, envoy_filters, peer_authentications, selected_labels, targets,
    wanted_jwks, workloads,
};
use registry::endpoints::ServiceEndpoints;
use registry::{allocation, endpoints, multi_cluster, network_gateways, services};
use traffic::ambient::AmbientInputs;
use traffic::credentials::{CredentialInputs, derive_credential_clients, derive_credential_namespaces};
use traffic::destination_rules::RuleIndexes;
use traffic::destinations::DestinationInputs;
use traffic::gateway_api::revisions::Revisions;
use traffic::gateway_api::{GatewayApiInputs, classes};
use traffic::gateways::reach::{ReachInputs, derive_reach};
use traffic::gateways::routers::{RouterInputs, derive_replicas, derive_routers};
use traffic::policy_statuses::{PoliciesWithStatus, derive_policy_statuses};
use traffic::reconciled::{derive_condition_requests, derive_condition_updates};
use traffic::secret_accounts::derive_pod_accounts;
use traffic::secrets::Secrets;
use traffic::sidecars::HostInputs;
use traffic::unenforced_policies::derive_unenforced_policies;
use traffic::waypoint_reach::{WaypointReachInputs, derive_waypoint_reach};
use traffic::waypoints::{WaypointProxyInputs, derive_waypoint_proxies};
use traffic::{ambient, destination_rules, gateway_api, ingresses, pull_secrets, sidecars, virtual_services};

/// Starts an engine of the graph that keeps no history, for computations beside the live one. Its thread calls `on_start` first.
#[must_use]
pub fn start_without_history(options: &GraphOptions, on_start: impl FnOnce() + Send + 'static) -> (Engine, Handles) {
    Engine::start(without_history(), build_after(options, on_start))
}

/// As [`start_without_history`], in the state of a running engine with the same options.
///
/// # Errors
/// The engine has stopped, or has other options.
pub fn start_copy(
    engine: &Engine,
    options: &GraphOptions,
    on_start: impl FnOnce() + Send + 'static,
) -> Result<(Engine, Handles), CopyError> {
    engine.start_copy(without_history(), build_after(options, on_start))
}

fn without_history() -> EngineOptions {
    let history = HistoryLimits { bytes: 0, ..HistoryLimits::default() };
    EngineOptions { history, ..EngineOptions::default() }
}

fn build_after(
    options: &GraphOptions,
    on_start: impl FnOnce() + Send + 'static,
) -> impl FnOnce(&mut GraphBuilder) -> Handles + Send + 'static {
    let options = options.clone();
    move |builder| {
        on_start();
        build(builder, &options)
    }
}

/// Builds the graph: every collection in order.
pub fn build(builder: &mut GraphBuilder, options: &GraphOptions) -> Handles {
    let options = &options.with_tunnels();
    builder.dataflow("mesh", |graph| {
        let (inputs, mut raw) = inputs::declare(graph);
        let policies_with_status = PoliciesWithStatus::take(&mut raw, options);
        let one = graph.fixed("one", [((), ())]);
        let settings = mesh_config::derive_mesh_settings(&one, &raw.mesh_settings, options);
        let mesh = mesh_config::derive_mesh_config(&settings);
        let mesh_networks = mesh_config::derive_mesh_networks(&settings);
        let discovery = discovery::derive_discovery(&mesh, &raw.namespaces);
        let objects = raw.discovered(&discovery, options);
        let remote_gateways = raw.remote_gateways(&discovery, options);
        let networks = registry::networks::derive_networks(&mesh_networks, &raw.namespaces, options);

        let allocations = allocation::derive_allocations(&objects, &one, options);
        let address_updates = allocation::derive_address_updates(&objects, &allocations, options);
        let taint_removals = registry::nodes::derive_taint_removals(&raw.nodes, &raw.pods, options);
        let kubelet_versions = registry::nodes::derive_kubelet_versions(&raw.nodes);
        let declared = services::derive_declared_services(&objects, &mesh, &allocations, options);
        let missing_service_exports =
            multi_cluster::derive_missing_exports(&objects, (&raw.served_kinds, &raw.namespaces), &mesh, options);
        let multi_cluster_services = multi_cluster::derive_multi_cluster_services(&objects, &declared, options);
        let of_ambient = AmbientInputs {
            objects: &objects,
            remote_gateways: &remote_gateways,
            mesh: &mesh,
            networks: &networks,
            discovery: &discovery,
            declared: &declared,
        };
        let ambient = options.ambient.map(|switches| ambient::derive_ambient(&of_ambient, switches, options));
        // Agentgateways need addresses also without ambient mode.
        let serves_agentgateways = options.gateway_api.agentgateway;
        let addressed = ambient.clone().or_else(|| {
            serves_agentgateways.then(|| ambient::derive_ambient(&of_ambient, AmbientOptions::default(), options))
        });
        let scopes = ambient.as_ref().and_then(|ambient| ambient.scopes.as_ref());
        let services = services::derive_services(&declared, scopes, options);
        let services_by_host = services::index_by_host(&services);
        let hosts = services_by_host.distinct("hosts");

        let instances = registry::workloads::derive_workload_instances(&objects, &mesh, &networks, options);
        let entries = endpoints::derive_declared_endpoints(&objects, &declared, &mesh, &networks);
        let selected = endpoints::derive_selected_workloads(&objects, &declared, &instances, options);
        let facts = endpoints::derive_facts(&services);
        let beside_slices = (&entries, &selected);
        let large = endpoints::derive_large_services(&objects, &facts, &services_by_host, beside_slices, options);
        let slices = endpoints::derive_slice_endpoints(&objects, &mesh, &networks, &large, options);
        let listed = endpoints::derive_endpoints(&facts, &large, &slices, beside_slices);
        let chunks = endpoints::derive_chunks(&slices.large, &selected, &large);
        let endpoints = ServiceEndpoints::new(listed, large, chunks);
        let identities = endpoints::derive_identities(&services, &endpoints);

        let locations = registry::locations::derive_locations(&services, &endpoints, options);
        let sidecar_heads = SidecarHeads::new(&objects.sidecars, &mesh);
        let proxies =
            connected::derive_proxies(&raw.proxies, &objects, &discovery, &sidecar_heads, &locations, options);
        // Nothing that is derived for Envoys depends on agentgateways.
        let all_proxies = proxies.clone();
        let agentgateways = serves_agentgateways
            .then(|| all_proxies.filter("agentgateways", |_, proxy| proxy.proxy_type == ProxyType::Agentgateway));
        let proxies = match &agentgateways {
            Some(_) => all_proxies
                .filter("proxies/without-agentgateways", |_, proxy| proxy.proxy_type != ProxyType::Agentgateway),
            None => proxies,
        };
        let registry = TargetInputs {
            objects: &objects,
            declared: &declared,
            instances: &instances,
            slices: &slices,
            endpoints: &entries,
            selected: &selected,
        };
        let service_targets = targets::derive_service_targets(&proxies, &registry, options);
        let root_namespace = mesh_config::derive_root_namespace(&mesh);
        let labels = selected_labels::derive_selected_labels(&objects, &root_namespace);
        let proxy_workloads =
            workloads::derive_proxy_workloads(&proxies, &service_targets, &labels, options.sidecars_receive_hbone());
        let workload_names = workloads::derive_workload_names(&proxy_workloads);
        let workloads = workloads::derive_workloads(&proxy_workloads);
        let selections = selected_labels::derive_selections(&proxies, &labels);
        let ingresses = ingresses::derive_ingresses(&objects, &mesh, options);
        let discovered_namespaces = discovery::discovered_namespaces(&raw.namespaces, &discovery);
        let bundles = discovery::discovered("root_bundles", &raw.root_bundles, &discovery);
        let revisions = Revisions::derive(graph, &objects, &raw.kubernetes_services, options);
        let of_gateway_api = GatewayApiInputs {
            objects: &objects,
            revisions: &revisions,
            services: &services,
            services_by_host: &services_by_host,
            endpoints: &endpoints,
            bundles: &bundles,
            parameters: &raw.gateway_parameters,
        };
        let gateway_api = gateway_api::derive_gateway_api(&of_gateway_api, options);
        let missing_gateway_classes = classes::derive_missing_classes(&raw.served_kinds, &objects, options);
        let gateways = objects.gateways.union("gateways/all", &[ingresses.gateways, gateway_api.gateways]);
        let generated_routes = [ingresses.virtual_services, gateway_api.virtual_services];
        let declared_routes = objects.virtual_services.union("virtual_services/all", &generated_routes);
        let all_rules = objects.destination_rules.union("destination_rules/all", &[gateway_api.destination_rules]);
        let virtual_services = virtual_services::derive_merged_virtual_services(&declared_routes, &mesh);
        let virtual_services_by_host = virtual_services::index_by_host(&virtual_services);
        let host_inputs = HostInputs {
            services: &services,
            services_by_host: &services_by_host,
            hosts: &hosts,
            virtual_services: &virtual_services,
            routed: &virtual_services_by_host,
            reaches_best: options.reaches_best_service,
        };
        let sidecars = sidecars::derive_sidecars(&one, &proxies, &labels, &objects.sidecars, &host_inputs);

        let attached = attached::derive_attached(&objects, &mesh, &proxies);
        let router_labels = RouterLabels::new(&gateways, &objects.kubernetes_gateways, &attached, options);
        let routers = derive_routers(
            &RouterInputs {
                proxies: &proxies,
                replicas: derive_replicas(&proxies, &workload_names, &labels, &router_labels),
                workloads: &workloads,
                services: &services,
                gateways: &gateways,
            },
            options,
        );

        let network_gateways =
            network_gateways::derive_network_gateways(&objects, &remote_gateways, &mesh_networks, options);
        let gateway_names = network_gateways::derive_gateway_names(&network_gateways);
        let resolved_network_gateways =
            network_gateways::derive_resolved_gateways(&network_gateways, &raw.resolved_names);
        let rare_tiers = RareTiers::new(&services, &all_rules, &mesh, &proxies);
        let rule_indexes = RuleIndexes::new(&all_rules);
        let rule_policy = destination_rules::derive_rule_policy(&mesh);
        let peer_authentications_by_namespace = peer_authentications::index_by_namespace(&objects.peer_authentications);
        let client_policies = peer_authentications::index_client_policies(&objects.peer_authentications);
        let policy_index = PolicyIndex::new(&objects);
        let jwks_fetches = wanted_jwks::derive_wanted_jwks(&objects, &services_by_host, &raw.jwks, options);

        let condition_updates = ambient.as_ref().and_then(|ambient| ambient.condition_updates.clone());
        let condition_updates = condition_updates
            .unwrap_or_else(|| objects.service_entries.flat_map("ambient_condition_updates", |_, _| None));

        let waypoints = ambient.as_ref().map(|ambient| {
            derive_waypoint_proxies(&WaypointProxyInputs {
                proxies: &proxies,
                replicas: &routers.replicas,
                workloads: &workloads,
                services: &services,
                ambient,
            })
        });

        let cluster_settings = outputs::clusters::derive_settings(&mesh, options);
        let routed_ambient =
            ambient.as_ref().filter(|_| options.ambient.is_some_and(|ambient| !ambient.direct_gateways));
        let ingress_waypoints = routed_ambient.map(|ambient| {
            let destinations = DestinationInputs {
                services: &services,
                services_by_host: &services_by_host,
                rules_by_host: Some(&rule_indexes.endpoints),
                rule_policy: &rule_policy,
                selections: &selections,
                sidecars: &sidecars,
            };
            IngressWaypoints::new(ambient, &cluster_settings, &destinations)
        });

        let with_status = policies_with_status.discovered(&discovery);
        let policy_conditions =
            derive_policy_statuses(&with_status, &objects, &root_namespace, ambient.as_ref(), options);
        let condition_requests = derive_condition_requests(&raw.condition_requests, &discovery, options);
        let condition_updates = derive_condition_updates(
            &condition_requests,
            &raw.reconciliations,
            [&condition_updates, &policy_conditions],
        );
        let of_agentgateways = gateway_api.agentgateway.as_ref().map(|of| &of.accounts);
        let unenforced = derive_unenforced_policies(&objects, &root_namespace, ambient.as_ref(), of_agentgateways);
        let credential_namespaces = derive_credential_namespaces(&all_rules);
        let accounts = derive_pod_accounts(&raw.pods);
        let secrets = Secrets::new(
            &raw,
            &objects,
            bundles,
            &mesh,
            &proxies,
            &routers,
            &credential_namespaces,
            &accounts,
            options,
        );
        let pulls = pull_secrets::derive_pull_access(
            &proxies,
            &attached.extensions,
            &attached.root,
            waypoints.as_ref(),
            &accounts,
            options,
        );
        let replica_groups = derive_replica_groups(&proxies, &service_targets, &services);
        let part_inputs = PartInputs {
            services: &services,
            destination_rules: &all_rules,
            virtual_services: &virtual_services,
            gateways: &gateways,
        };
        let limited = envoy_filter_limits::derive_limited_filters(&objects.envoy_filters, &part_inputs, options);
        let patches = envoy_filters::derive_patches(&limited.filters, &mesh, &proxies);
        let reach_inputs = ReachInputs {
            objects: &objects,
            mesh: &mesh,
            root_namespace: &root_namespace,
            proxies: &proxies,
            routers: &routers,
            selected: &labels,
            patches: &patches,
            virtual_services: &virtual_services,
        };
        let reach = options.filter_gateway_clusters.then(|| derive_reach(&reach_inputs, options));
        let waypoint_reach = waypoints.as_ref().map(|waypoints| {
            let inputs = WaypointReachInputs {
                objects: &objects,
                mesh: &mesh,
                root_namespace: &root_namespace,
                waypoints,
                routers: &routers,
                services: &services,
                services_by_host: &services_by_host,
                virtual_services: &virtual_services,
                virtual_services_by_host: &virtual_services_by_host,
            };
            derive_waypoint_reach(&inputs, options)
        });
        let credential_clients = derive_credential_clients(&CredentialInputs {
            proxies: &proxies,
            namespaces: &credential_namespaces,
            readers: &secrets.readers,
            reviews: secrets.reviews.as_ref(),
            selected_labels: &labels,
            reach_views: [&reach, &waypoint_reach].map(|reach| reach.as_ref().map(|reach| &reach.views)),
        });
        let context = GraphContext {
            options: options.clone(),
            objects,
            mesh,
            services,
            services_by_host,
            hosts,
            endpoints,
            identities,
            proxies,
            selected_labels: labels,
            rare_tiers,
            workload_names,
            workloads,
            attached,
            selections,
            virtual_services,
            virtual_services_by_host,
            sidecars,
            rule_indexes,
            network_gateways,
            resolved_network_gateways,
            rule_policy,
            routers,
            reach,
            waypoint_reach,
            policy_index,
            peer_authentications_by_namespace,
            client_policies,
            patches,
            root_namespace,
            jwks: raw.jwks,
            trust_bundle: raw.trust_bundle,
            waypoints,
            cluster_settings,
            ingress_waypoints,
            secrets,
            credential_clients,
            pulls,
            replica_groups,
            gateways_with_pools: gateway_api.gateways_with_pools,
            udp_backends: gateway_api.udp_backends,
            addressed,
            agentgateway: gateway_api.agentgateway,
        };
        let outputs = context.derive_outputs();
        let scopes = context.derive_scopes(agentgateways.as_ref());
        let mut found = gateway_api.rejects;
        found.push(raw.component_rejects);
        found.extend([jwks_fetches.rejects, limited.rejects]);
        found.extend(unenforced);
        found.extend(context.derive_udp_policy_rejects());
        let rejects = inputs::rejects::derive_rejects(&raw.rejects, &found);
        Handles {
            inputs,
            resources: outputs.resources.iter().map(Collection::publish).collect(),
            segments: outputs.segments.iter().map(Collection::publish).collect(),
            scopes: scopes.publish(),
            gateway_names: gateway_names.publish(),
            rejects: rejects.publish(),
            address_updates: address_updates.publish(),
            condition_updates: condition_updates.publish(),
            condition_requests: condition_requests.publish(),
            ingress_status_updates: ingresses.status_updates.publish(),
            status_updates: gateway_api.status_updates.publish(),
            missing_gateway_classes: missing_gateway_classes.publish(),
            gateway_deployments: gateway_api.deployments.publish(),
            shadow_services: gateway_api.shadow_services.publish(),
            taint_removals: taint_removals.publish(),
            missing_service_exports: missing_service_exports.publish(),
            multi_cluster_services: multi_cluster_services.publish(),
            wanted_jwks: jwks_fetches.wanted.publish(),
            jwks: context.jwks.publish(),
            wanted_secret_reviews: context.secrets.wanted_reviews.publish(),
            patch_conditions: context.patches.conditions.publish(),
            mesh: context.mesh.publish(),
            networks: mesh_networks.publish(),
            services: context.services.publish(),
            endpoints: context.endpoints.listed.publish(),
            endpoint_chunks: context.endpoints.chunks.publish(),
            proxies: all_proxies.publish(),
            service_targets: service_targets.publish(),
            virtual_services: context.objects.virtual_services.publish(),
            destination_rules: context.objects.destination_rules.publish(),
            gateways: context.objects.gateways.publish(),
            proxy_configs: context.objects.proxy_configs.publish(),
            kubelet_versions: kubelet_versions.publish(),
            workload_entries: context.objects.workload_entries.publish(),
            pods: context.objects.pods.publish(),
            nodes: context.objects.nodes.publish(),
            namespaces: context.objects.namespaces.publish(),
            discovered_namespaces: discovered_namespaces.publish(),
        }
    })
}

#[cfg(test)]
mod tests;
