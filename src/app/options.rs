//! Options of the components, derived from the configuration.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;

use kube::Client;
use sluice_admin::{AdminOptions, PreviewOptions};
use sluice_auth::{Authenticators, ForwardedCertificates};
use sluice_authority::WebhookKind;
use sluice_config::{ClusterSource, Config, ControlPlaneIdentity, Features, NamespaceLimitArgs};
use sluice_deployments::DeployerSettings;
use sluice_graph::{
    AddressPools, AmbientOptions, GraphOptions, ListenerSwitches, PatchLimits, SecurityOptions, UntaintOptions,
};
use sluice_inject::InjectorSettings;
use sluice_jwks::{JwksLimits, JwksOptions, Schedule};
use sluice_kube::{Election, KubeOptions};
use sluice_mcp::SourceNode;
use sluice_model::{Decimal, Identity, Kind, ObjectKey, Text, TunnelSwitches};
use sluice_parse::KINDS;
use sluice_sources::Cluster;
use sluice_sources::configuration::configuration_kinds;
use sluice_sources::kube::{RemoteOptions, WatchStates};
use sluice_webhook::NativeSidecars;
use sluice_xds::{ProxyLimits, ServerOptions, StreamLimits};

pub(super) fn graph_options(config: &Config) -> GraphOptions {
    GraphOptions {
        cluster: config.identity.cluster.clone(),
        system_namespace: config.identity.namespace.clone(),
        domain: config.identity.domain.clone(),
        revision: config.identity.revision.clone(),
        dual_stack: config.features.dual_stack,
        ingress_namespace: config.features.ingress_namespace.clone(),
        http3: config.features.http3,
        scope_gateways: config.features.scope_gateways,
        strict_gateway_merging: config.features.strict_gateway_merging,
        reaches_best_service: config.features.reaches_best_service,
        filter_gateway_clusters: config.features.filter_gateway_clusters,
        listeners: ListenerSwitches {
            trace_sampling: Decimal::from_f64(f64::from(config.features.trace_sampling_millipercent) / 1000.0),
            mongo: config.features.mongo_filter,
            redis: config.features.redis_filter,
            mysql: config.features.mysql_filter,
            http10: config.features.http10,
            persistent_sessions: config.features.sessions.enabled,
            sidecar_ingress_tls: config.features.sidecar_ingress_tls,
            continue_responses: config.features.continue_responses,
            sidecar_remote_address: config.features.sidecar_remote_address,
            peer_exchange: config.features.clusters.peer_exchange,
            dns_cache_hosts: config.features.clusters.dns_cache_hosts,
            connections_per_event: config.features.connections_per_event,
            gateway_handshake_timeout: config.features.gateway_handshake_timeout,
            // The graph takes them from the options of ambient mode.
            tunnels: TunnelSwitches::default(),
        },
        clusters: config.features.clusters,
        shadow_suffix: config.features.shadow_suffix,
        sessions: config.features.sessions.clone(),
        entries_select_pods: config.features.service_entry_selects_pods,
        services_select_entries: config.features.service_selects_workload_entries,
        sends_hbone: config.features.ambient && config.features.sends_hbone,
        prefers_hbone: config.features.prefers_hbone,
        allocates_addresses: config.features.allocate_addresses,
        address_pools: writes_addresses(config)
            .then_some(AddressPools { v4: config.features.allocation_v4, v6: config.features.allocation_v6 }),
        untaint: untaints_nodes(config).then(|| UntaintOptions {
            taint: config.features.node_taint.clone(),
            cni_namespace: config.sources.cni_namespace.clone().unwrap_or_else(|| config.identity.namespace.clone()),
        }),
        jwks_fetch: config.features.jwks_fetch,
        patch_limits: patch_limits(&config.namespace_limits),
        max_key_sets: or_none(config.namespace_limits.max_key_sets),
        security: SecurityOptions {
            multiple_custom_providers: config.features.multiple_custom_providers,
            gateways_by_target_only: !config.features.gateway_policies_by_selector,
            any_trust_domain: config.features.any_trust_domain,
            compliance: config.security.compliance,
        },
        multi_cluster: config.features.multi_cluster,
        multi_cluster_api: config.features.multi_cluster_api.clone(),
        exports_services: exports_services(config),
        ambient: config.features.ambient.then_some(AmbientOptions {
            allows_waypoints: config.features.allows_waypoints,
            dry_run_policies: config.features.dry_run_policies,
            direct_gateways: !config.features.ingress_waypoints,
            deaf_sidecars: !config.features.sidecars_receive_hbone,
            tunnels: TunnelSwitches {
                multi_network: config.features.ambient_multi_network,
                local_waypoints: !config.features.waypoint_networks,
                ingress: config.features.ingress_networks,
                baggage: config.features.baggage,
            },
        }),
        writes_conditions: writes_conditions(config),
        gateway_api: config.features.gateway_api_options(),
        reviews_secrets: reads_cluster(config),
        virtual_hosts: config.features.virtual_hosts,
        on_demand_clusters: config.features.on_demand_clusters,
        endpoints_by_locality: config.features.endpoints_by_locality,
    }
}

/// In settings, 0 is no limit.
fn or_none(limit: usize) -> usize {
    if limit == 0 { usize::MAX } else { limit }
}

pub(super) fn proxy_limits(config: &Config) -> ProxyLimits {
    let limits = &config.proxy_limits;
    ProxyLimits {
        identity_profiles: or_none(limits.max_profiles_per_identity),
        anonymous_profiles: or_none(limits.max_anonymous_profiles),
        identity_locations: or_none(limits.max_locations_per_identity),
        anonymous_locations: or_none(limits.max_anonymous_locations),
        identity_proxies: or_none(limits.max_proxies_per_identity),
        anonymous_proxies: or_none(limits.max_anonymous_proxies),
    }
}

fn patch_limits(limits: &NamespaceLimitArgs) -> PatchLimits {
    PatchLimits {
        max_patches: or_none(limits.max_patches),
        max_bytes: or_none(limits.max_patch_bytes),
        max_repeated_bytes: or_none(limits.max_repeated_patch_bytes),
        max_copied_bytes: or_none(limits.max_copied_patch_bytes),
        max_patched_parts: or_none(limits.max_patched_parts),
    }
}

pub(super) fn admin_options(config: &Config) -> AdminOptions {
    AdminOptions {
        cluster: config.identity.cluster.clone(),
        namespace: config.identity.namespace.clone(),
        pod_name: config.identity.pod_name.clone(),
        debug_namespaces: config.features.debug_namespaces.clone(),
        debug_auth: config.features.debug_auth,
        debug_on_http: config.features.debug_on_http,
        changing_pages: config.features.changing_pages,
        profiles: config.profiles,
        preview: PreviewOptions {
            cluster: cluster(config, &config.identity.cluster, false),
            from_files: !reads_cluster(config),
        },
    }
}

pub(super) fn jwks_options(config: &Config) -> JwksOptions {
    let (default, features) = (JwksOptions::default(), &config.features);
    JwksOptions {
        schedule: Schedule { refresh: features.jwks_refresh, ..default.schedule },
        skip_verify: features.jwks_skip_verify,
        blocked: features.jwks_blocked.clone(),
        limits: JwksLimits {
            max_namespace_bytes: or_none(config.namespace_limits.max_key_set_bytes),
            ..default.limits
        },
        ..default
    }
}

/// Options for what decides whom the control plane and all workloads trust: keys of callers' tokens, and trust bundles. Servers are
/// always verified.
pub(super) fn trusted_fetch_options(config: &Config) -> JwksOptions {
    JwksOptions { skip_verify: false, https_only: true, ..jwks_options(config) }
}

/// Whether addresses are allocated to ServiceEntries and written into their statuses.
pub(super) fn writes_addresses(config: &Config) -> bool {
    config.features.allocate_addresses && reads_cluster(config)
}

/// Whether conditions about waypoints and ztunnel are written into the statuses of objects.
pub(super) fn writes_conditions(config: &Config) -> bool {
    config.features.writes_conditions && reads_cluster(config)
}

/// Whether the Services of InferencePools are written.
pub(super) fn writes_pool_services(config: &Config) -> bool {
    config.features.gateway_api && config.features.inference_extension && reads_cluster(config)
}

/// Whether statuses of the Gateway API are written, or its classes created.
pub(super) fn writes_gateway_api(config: &Config) -> bool {
    let features = &config.features;
    features.gateway_api && (features.gateway_statuses || features.gateway_classes) && reads_cluster(config)
}

/// Whether proxies are deployed for Gateways.
pub(super) fn deploys_gateways(config: &Config) -> bool {
    config.features.gateway_api && config.features.deploys_gateways && reads_cluster(config)
}

pub(super) fn deployer_settings(config: &Config, states: WatchStates) -> DeployerSettings {
    DeployerSettings {
        cluster: config.identity.cluster.clone(),
        field_manager: config.features.gateway_controller.to_string(),
        native_sidecars: config.features.native_sidecars != Some(false),
        options: KubeOptions::default(),
        states,
    }
}

/// Whether taints are removed from nodes.
pub(super) fn untaints_nodes(config: &Config) -> bool {
    config.features.untaints_nodes && reads_cluster(config)
}

/// Whether ServiceExports are created for Services.
pub(super) fn exports_services(config: &Config) -> bool {
    config.features.exports_services && reads_cluster(config)
}

/// Whether the local cluster is read through the Kubernetes API, so that its objects can be written.
fn reads_cluster(config: &Config) -> bool {
    matches!(config.sources.local, ClusterSource::Kubernetes(_))
}

/// Whether a recording takes the place of all sources.
pub(super) fn replays(config: &Config) -> bool {
    matches!(config.sources.local, ClusterSource::Recording(_))
}

/// The election of the replica that writes to the local cluster.
pub(super) fn election(config: &Config, client: Option<Client>) -> Election {
    let identity = &config.identity;
    let client = client.filter(|_| config.features.leader_election);
    Election::new(client, identity.namespace.clone(), &identity.pod_name, &identity.revision)
}

/// The elections of the replicas that write to a cluster, by its id and client.
pub(super) fn elections(config: &Config) -> impl Fn(&Text, &Client) -> Election + Send + Sync + use<> {
    let (own, local) = (config.identity.cluster.clone(), election(config, None));
    let is_elected = config.features.leader_election;
    move |id, client| {
        let election = local.clone().with_client(is_elected.then(|| client.clone()));
        if *id == own { election } else { election.of_remote_cluster() }
    }
}

pub(super) fn server_options(config: &Config) -> ServerOptions {
    let default = ServerOptions::default();
    ServerOptions {
        max_streams: config.features.max_streams_per_connection.map_or(default.max_streams, NonZeroU32::get),
        max_anonymous_request_bytes: config.limits.anonymous_request_bytes,
        streams: StreamLimits {
            of_caller: config.limits.streams_of_caller,
            name_bytes_of_caller: config.limits.name_bytes_of_caller,
            ..default.streams
        },
        max_request_bytes: config.features.max_request_bytes.map_or(default.max_request_bytes, NonZeroUsize::get),
        keepalive_interval: config.serving.keepalive_interval,
        keepalive_timeout: config.serving.keepalive_timeout,
        max_connection_age: config.serving.max_connection_age,
        drain_timeout: config.serving.shutdown,
        small_frames: config.features.small_http2_frames,
        ..default
    }
}

/// Authentication on the plaintext port, by the client certificates that trusted peers forward. It is optional unless
/// `XDS_AUTH_PLAINTEXT` is set.
pub(super) fn plaintext_authenticators(features: &Features) -> Authenticators {
    let forwarded = Arc::new(ForwardedCertificates::new(features.trusted_gateways.clone()));
    match features.xds_auth {
        true => Authenticators::new(vec![forwarded], features.xds_auth_plaintext),
        false => Authenticators::default(),
    }
}

/// ConfigMap `istio-sidecar-injector`, or `istio-sidecar-injector-REVISION`.
pub(super) fn injector_config_map(identity: &ControlPlaneIdentity) -> ObjectKey {
    let name = match identity.revision.as_str() {
        "default" | "" => "istio-sidecar-injector".to_owned(),
        revision => format!("istio-sidecar-injector-{revision}"),
    };
    system_object(identity, &name)
}

pub(super) fn injector_settings(config: &Config) -> InjectorSettings {
    let environment = std::env::vars_os();
    let environment =
        environment.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    InjectorSettings {
        revision: config.identity.revision.to_string(),
        compliance_policy: (config.sources.variable)("COMPLIANCE_POLICY").unwrap_or_default(),
        environment: environment.collect(),
        openshift: config.features.openshift,
    }
}

pub(super) fn native_sidecars(features: &Features) -> NativeSidecars {
    match features.native_sidecars {
        None => NativeSidecars::Auto,
        Some(true) => NativeSidecars::Enabled,
        Some(false) => NativeSidecars::Disabled,
    }
}

/// Variables that every container has, and that no program reads as a secret.
const COMMON_VARIABLES: [&str; 4] = ["HOME", "HOSTNAME", "PATH", "PWD"];

/// Whether ControlZ shows the value of an environment variable: others may have secrets of other programs.
pub(super) fn is_public_variable(name: &str) -> bool {
    COMMON_VARIABLES.contains(&name)
        || name.starts_with("KUBERNETES_")
        || sluice_variables::find(sluice_variables::CONTROL_PLANE, name).is_some()
}

/// Kinds of webhook configurations that roots are written into.
pub(super) fn patched_webhooks(features: &Features) -> Vec<WebhookKind> {
    let kinds = [
        (features.patches_injection && features.inject, WebhookKind::Mutating),
        (features.patches_validation, WebhookKind::Validating),
    ];
    kinds.into_iter().filter_map(|(is_patched, kind)| is_patched.then_some(kind)).collect()
}

/// ConfigMap `istio`, or `istio-REVISION`.
pub(super) fn mesh_config_map(identity: &ControlPlaneIdentity) -> ObjectKey {
    let name = match identity.revision.as_str() {
        "default" | "" => "istio".to_owned(),
        revision => format!("istio-{revision}"),
    };
    system_object(identity, &name)
}

pub(super) fn system_object(identity: &ControlPlaneIdentity, name: &str) -> ObjectKey {
    ObjectKey::new(identity.cluster.clone(), identity.namespace.clone(), name)
}

/// Remote clusters that flags declare, without a Secret.
pub(super) fn configured_remote_clusters(config: &Config) -> BTreeSet<Text> {
    config.sources.remotes.keys().cloned().collect()
}

pub(super) fn remote_options(config: &Config, watch_states: WatchStates) -> RemoteOptions {
    RemoteOptions {
        cluster: cluster(config, &config.identity.cluster, false),
        configured: configured_remote_clusters(config),
        system_namespace: config.identity.namespace.clone(),
        namespace: config.sources.watch_namespace.clone(),
        timeout: config.features.remote_cluster_timeout,
        allowed: config.features.insecure_kubeconfig.clone(),
        kube: KubeOptions::default(),
        watch_states,
    }
}

pub(super) fn cluster_sources(config: &Config) -> Vec<(Cluster, ClusterSource)> {
    let local = (cluster(config, &config.identity.cluster, false), config.sources.local.clone());
    let remotes = config.sources.remotes.iter().map(|(id, source)| (cluster(config, id, true), source.clone()));
    [local].into_iter().chain(remotes).collect()
}

/// The kinds that are waited for before proxies are served. Configuration may come from other sources than the local cluster, which
/// have all of its kinds.
pub(super) fn awaited_kinds(cluster: &Cluster) -> Vec<Kind> {
    let others = configuration_kinds().map(|info| info.kind).filter(|kind| !cluster.is_remote && !cluster.reads(*kind));
    cluster.kinds().into_iter().chain(others).collect()
}

/// The local cluster as a source of configuration only.
pub(super) fn configuration_of(config: &Config) -> Cluster {
    let configuration: BTreeSet<Kind> = configuration_kinds().map(|info| info.kind).collect();
    let ignored = KINDS.iter().map(|info| info.kind).filter(|kind| !configuration.contains(kind)).collect();
    Cluster { ignored, ..cluster(config, &config.identity.cluster, false) }
}

pub(super) fn source_node(config: &Config) -> SourceNode {
    let identity = &config.identity;
    SourceNode {
        namespace: identity.namespace.clone(),
        pod: identity.pod_name.clone(),
        revision: identity.read_revision.clone(),
        domain: identity.domain.clone(),
    }
}

/// The identity of this control plane in a trust domain.
pub(super) fn own_identity(config: &Config, trust_domain: &str) -> Identity {
    Identity::new(trust_domain, config.identity.namespace.clone(), config.identity.service_account.clone())
}

pub(super) fn cluster(config: &Config, id: &Text, is_remote: bool) -> Cluster {
    Cluster {
        id: id.clone(),
        domain: config.identity.domain.clone(),
        is_remote,
        reads_remote_gateways: config.features.reads_remote_gateways(),
        ignored: config.features.ignored_kinds(),
        revision: config.identity.read_revision.clone(),
        multi_cluster_api: config.features.multi_cluster_api.clone(),
    }
}

#[cfg(test)]
mod tests;
