//! Builds everything in order, runs it, and takes it down again. The one place that knows all.

mod error;
mod security;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use prometheus_client::registry::Registry;
use sluice_auth::{Authenticators, ForwardedCertificates, TrustDomain};
use sluice_authority::AuthorityMetrics;
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{AddressPools, AmbientOptions, GraphOptions, ListenerSwitches, SecurityOptions};
use sluice_jwks::{JwksFetcher, JwksMetrics, JwksOptions, Schedule};
use sluice_kube::{ADDRESSES_LEASE, Clients, Election, KubeOptions};
use sluice_model::{Decimal, ObjectKey, Text};
use sluice_sources::files::FileSource;
use sluice_sources::kube::{
    AddressWriter, ClusterMetrics, KubeSource, RemoteClusters, RemoteOptions, RemoteStates, SecretReviewer,
};
use sluice_sources::{
    Cluster, InputSink, MeshFiles, MeshOverride, Reporter, Sink, SourceMetrics, gateway_names as names,
};
use sluice_telemetry::LogControl;
use sluice_watch::FollowGuard;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admin::{self, AdminMetrics, AdminState, PagesOverXds, Readiness, Refusals};
use crate::config::{ClusterSource, Config, Features, Identity, ListenAddress};
use sluice_xds::{Admission, DiscoveryServer, EngineProxies, Outputs, ServerOptions, StatusReader};
use sluice_xds_protocol::Store;

pub use error::AppError;
use security::Security;

/// Steps that readiness waits for.
const STEPS: &[&str] = &[
    "configuration has not been read yet",
    "remote clusters have not been read yet",
    "keys of token issuers have not been fetched yet",
    "the certificate authority is not there yet",
    "the first epoch is not through yet",
];
/// Longest wait for keys of token issuers before proxies are served.
const KEYS_WAIT: Duration = Duration::from_secs(10);

/// Runs until `stop` is cancelled or something fails that cannot be mended.
///
/// # Errors
/// What keeps it from starting or from going on; see [`AppError::exit_code`].
pub async fn run(config: Config, log: LogControl, stop: CancellationToken) -> Result<(), AppError> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    for notice in &config.notices {
        info!("{notice}");
    }
    // Ports first: that one is taken is known at once, not after everything has been read.
    let http = bind("http", "--httpAddr", config.ports.http.as_ref()).await?;
    let grpc = bind("grpc", "--grpcAddr", config.ports.grpc.as_ref()).await?;
    let secure_grpc = bind("secure grpc", "--secureGRPCAddr", config.ports.secure_grpc.as_ref()).await?;
    let monitoring = bind("monitoring", "--monitoringAddr", config.ports.monitoring.as_ref()).await?;
    let mesh_files = MeshFiles::open(&config.sources.mesh_config, &config.sources.networks)?;

    sluice_crypto::collect_entropy();
    let options = graph_options(&config);
    let (engine, handles) =
        Engine::start(EngineOptions::default(), move |builder| sluice_graph::build(builder, &options));
    let mut registry = Registry::default();
    AdminMetrics::register(engine.clone(), &mut registry);
    let source_metrics = SourceMetrics::default();
    source_metrics.register(&mut registry);
    let cluster_metrics = ClusterMetrics::default();
    cluster_metrics.register(&mut registry);
    let xds_metrics = sluice_xds::Metrics::default();
    xds_metrics.register(&mut registry);
    let jwks_metrics = JwksMetrics::default();
    jwks_metrics.register(&mut registry);
    let authority_metrics = AuthorityMetrics::default();
    authority_metrics.register(&mut registry);
    let refusals = Refusals::default();
    refusals.register(&mut registry);

    let store = Arc::new(Store::default());
    let aliases = config.identity.cluster_aliases.clone();
    let proxies = Arc::new(EngineProxies::new(
        handles.inputs.proxies.clone(),
        handles.inputs.secret_clients.clone(),
        aliases,
        config.features.ambient,
    ));
    let features = &config.features;
    let admission = Admission::new(features.push_throttle, features.max_streams_a_second);
    let discovery = DiscoveryServer::with_admission(
        store.clone(),
        proxies,
        xds_metrics,
        config.features.xds_identity_check,
        admission,
    );
    let readiness = Arc::new(Readiness::waiting_for(STEPS));
    let reporter = Reporter::default();
    let state = Arc::new(AdminState {
        engine: engine.clone(),
        handles: handles.clone(),
        status: StatusReader::new(discovery.clone()),
        readiness: readiness.clone(),
        metrics: Mutex::new(registry),
        reporter: reporter.clone(),
        log,
        identity: config.identity.clone(),
        features: config.features.clone(),
        remotes: RemoteStates::new(elsewhere(&config)),
        callers: OnceLock::new(),
        refusals,
    });
    discovery.set_debug_pages(Arc::new(PagesOverXds::new(state.clone())));

    // Operators can look from here on, proxies not yet.
    let mut tasks = JoinSet::new();
    let admin_stop = CancellationToken::new();
    if let Some(listener) = http {
        tasks.spawn(admin::serve(listener, admin::http_router(state.clone()), admin_stop.clone()));
    }
    if let Some(listener) = monitoring {
        tasks.spawn(admin::serve(listener, admin::monitoring_router(state.clone()), admin_stop.clone()));
    }

    let fetcher = JwksFetcher::new(
        engine.clone(),
        handles.wanted_jwks.clone(),
        handles.inputs.jwks.clone(),
        &jwks_options(&config.features),
        jwks_metrics,
    );
    let mut keys_tried = fetcher.tried();
    let fetching = tokio::spawn(fetcher.run());
    let clusters = clusters(&config);
    let kinds = clusters.iter().map(|(cluster, _)| (cluster.id.clone(), cluster.kinds())).collect();
    let inputs = handles.inputs.clone();
    let shared = config.sources.shared_mesh_config.as_ref().map(|name| system_object(&config.identity, name));
    let mesh = MeshOverride::new(mesh_config_map(&config.identity), shared);
    let sink = InputSink::start(engine.clone(), inputs, kinds, mesh, source_metrics);
    let sink: Arc<dyn Sink> = Arc::new(sink.map_err(|error| AppError::Runtime(error.into()))?);
    mesh_files.load(&*sink);
    let mut guards = Vec::new();
    let mut own_client = None;
    let clients = Clients::default();
    for (cluster, source) in clusters {
        match source {
            ClusterSource::Directory(root) => {
                let (reporter, sink, strict) = (reporter.clone(), sink.clone(), config.sources.strict);
                let reading =
                    tokio::task::spawn_blocking(move || follow_directory(cluster, &root, reporter, sink, strict));
                guards.push(reading.await.map_err(|error| AppError::Runtime(error.into()))??);
            }
            ClusterSource::Kubernetes(kubeconfig) => {
                let client = sluice_kube::connect(kubeconfig.as_deref()).await.map_err(AppError::Kubernetes)?;
                if !cluster.is_remote {
                    own_client = Some(client.clone());
                }
                if !cluster.is_remote && writes_addresses(&config) {
                    let (client, engine) = (client.clone(), engine.clone());
                    let (updates, stop) = (handles.address_updates.clone(), stop.clone());
                    let election = election(&config, Some(client.clone()));
                    tasks.spawn(async move {
                        let write = |term| AddressWriter::new(client.clone(), engine.feed(), updates.clone()).run(term);
                        election.lead(ADDRESSES_LEASE, stop, write).await;
                        Ok(())
                    });
                }
                clients.set(cluster.id.clone(), client.clone());
                let source = KubeSource {
                    client,
                    cluster,
                    system_namespace: config.identity.namespace.clone(),
                    namespace: config.sources.watch_namespace.clone(),
                    options: KubeOptions::default(),
                };
                let (sink, stop) = (sink.clone(), stop.clone());
                tasks.spawn(async move {
                    source.run(sink, stop).await;
                    Ok(())
                });
            }
        }
    }

    if own_client.is_some() {
        let (wanted, answers) = (handles.wanted_secret_reviews.clone(), handles.inputs.secret_reviews.clone());
        let reviewer = SecretReviewer::new(clients.clone(), engine.feed(), wanted, answers);
        let stop = stop.clone();
        tasks.spawn(async move {
            reviewer.run(stop).await;
            Ok(())
        });
    }

    let remotes_settled = match own_client.clone() {
        Some(client) => {
            let options = remote_options(&config);
            let rejects = handles.inputs.cluster_rejects.clone();
            let states = state.remotes.clone();
            let remotes = RemoteClusters::new(options, sink.clone(), rejects, clients.clone(), states, cluster_metrics);
            let settled = remotes.settled();
            let client = match config.features.local_cluster_secrets {
                true => sluice_kube::connect(None).await.map_err(AppError::Kubernetes)?,
                false => client,
            };
            let stop = stop.clone();
            tasks.spawn(async move {
                remotes.run(client, stop).await;
                Ok(())
            });
            Some(settled)
        }
        None => None,
    };

    // Not before: with --strictConfig, what is wrong with a directory is the first problem there is.
    guards.push(mesh_files.follow(sink.clone(), reporter.clone())?);

    let synced = tokio::select! {
        synced = wait_synced(engine.clone()) => synced,
        () = stop.cancelled() => false,
    };
    let synced = synced && {
        readiness.done(STEPS[0]);
        // Clusters that cannot be reached are waited for no longer than they may.
        let settled = async {
            if let Some(settled) = remotes_settled {
                settled.await;
            }
        };
        tokio::select! {
            () = settled => true,
            () = stop.cancelled() => false,
        }
    };
    if synced {
        readiness.done(STEPS[1]);
        // Proxies that have good keys from before a restart are not to get worse ones.
        tokio::select! {
            tried = tokio::time::timeout(KEYS_WAIT, keys_tried.wait_for(|tried| *tried)) => if tried.is_err() {
                warn!("some keys of token issuers are not there yet: their tokens are refused until they are");
            },
            () = stop.cancelled() => {}
        }
        readiness.done(STEPS[2]);
        let serving = engine.clone();
        let outputs = Outputs {
            resources: handles.resources.clone(),
            segments: handles.segments.clone(),
            scopes: handles.scopes.clone(),
        };
        let (served, first, stopped) = (store.clone(), store, stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = sluice_xds::follow(&serving, &outputs, served) => anyhow::bail!("the engine has stopped"),
                () = stopped.cancelled() => Ok(()),
            }
        });
        if config.features.resolve_gateway_names {
            let (resolving, names) = (engine.clone(), handles.gateway_names.clone());
            let (resolved, stopped) = (handles.inputs.resolved_names.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = names::follow(&resolving, &names, resolved, names::look_up) => {
                        anyhow::bail!("the engine has stopped")
                    }
                    () = stopped.cancelled() => Ok(()),
                }
            });
        }
        let mesh = security::mesh_config(&engine, &handles);
        let trust_domain = TrustDomain::new(mesh.trust_domain.clone());
        let opening =
            Security::open(&config, &clients, &mesh, trust_domain.clone(), authority_metrics, &mut tasks, &stop);
        let security = tokio::select! {
            opened = opening => Some(opened?),
            () = stop.cancelled() => None,
        };
        readiness.done(STEPS[3]);
        let following = security::follow_mesh(engine.clone(), handles.clone(), move |mesh| {
            trust_domain.set(mesh.trust_domain.clone());
        });
        let stopped = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = following => anyhow::bail!("the engine has stopped"),
                () = stopped.cancelled() => Ok(()),
            }
        });
        while !first.is_ready() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        readiness.done(STEPS[4]);
        info!(epoch = engine.snapshot().epoch().0, "ready");
        tokio::spawn(discovery.clone().keep_removing_expired_proxies());
        if let Some(mut security) = security {
            // Nobody has set them before.
            let _ = state.callers.set(security.authenticators());
            let election = election(&config, own_client.clone());
            security.follow(&engine, &handles, (own_client, election), &config, &mut tasks, &stop);
            security.serve(secure_grpc, discovery.clone(), &config, &mut tasks, &stop)?;
        }
        if let Some(listener) = grpc {
            let options = server_options(&config);
            let stop = stop.clone();
            tasks.spawn(sluice_xds::serve(
                listener,
                discovery,
                options,
                plaintext_authenticators(&config.features),
                async move { stop.cancelled().await },
            ));
        }
        // The first task that ends before a stop was asked for is what failed.
        tokio::select! {
            () = stop.cancelled() => {}
            Some(ended) = tasks.join_next() => {
                let failure = ended.map_err(anyhow::Error::from).and_then(|served| served);
                failure.map_err(AppError::Runtime)?;
            }
        }
    }
    readiness.wait_for("shutting down");
    info!(seconds = config.serving.shutdown.as_secs_f64(), "stopping");
    drop(guards);
    fetching.abort();
    admin_stop.cancel();
    let limit = config.serving.shutdown + Duration::from_millis(500);
    let drained = tokio::time::timeout(limit, async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended.map_err(anyhow::Error::from).and_then(|served| served) {
                error!(error = format!("{error:#}"), "failed to stop serving");
            }
        }
    });
    if drained.await.is_err() {
        warn!("connections did not end in time and were cut");
    }
    info!("stopped");
    Ok(())
}

/// Reads a directory and follows it until the guard is dropped.
fn follow_directory(
    cluster: Cluster,
    root: &Path,
    reporter: Reporter,
    sink: Arc<dyn Sink>,
    strict: bool,
) -> Result<FollowGuard, AppError> {
    let mut source = FileSource::open(cluster, root, reporter)?;
    source.load(&*sink, strict)?;
    Ok(source.follow(sink)?)
}

/// Every input being synced; false if the engine has stopped.
async fn wait_synced(engine: Engine) -> bool {
    loop {
        let engine = engine.clone();
        // In slices, so that a stop does not leave a thread behind for long.
        let waited = tokio::task::spawn_blocking(move || engine.wait_synced(Duration::from_millis(250))).await;
        if waited.unwrap_or_default() {
            return true;
        }
    }
}

async fn bind(
    name: &'static str,
    flag: &'static str,
    address: Option<&ListenAddress>,
) -> Result<Option<TcpListener>, AppError> {
    let Some(address) = address else { return Ok(None) };
    let fail = |error| AppError::Listen { flag, address: address.to_string(), error };
    let listener = address.bind().await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    // Tests and scripts read this line to learn the port.
    info!(name, address = %bound, "listening");
    Ok(Some(listener))
}

fn graph_options(config: &Config) -> GraphOptions {
    GraphOptions {
        cluster: config.identity.cluster.clone(),
        system_namespace: config.identity.namespace.clone(),
        domain: config.identity.domain.clone(),
        revision: config.identity.revision.clone(),
        dual_stack: config.features.dual_stack,
        ingress_namespace: config.features.ingress_namespace.clone(),
        http3: config.features.http3,
        scope_gateways: config.features.scope_gateways,
        filter_gateway_clusters: config.features.filter_gateway_clusters,
        listeners: ListenerSwitches {
            trace_sampling: Decimal::from_f64(f64::from(config.features.trace_sampling_millipercent) / 1000.0),
            mongo: config.features.mongo_filter,
            redis: config.features.redis_filter,
            mysql: config.features.mysql_filter,
            http10: config.features.http10,
            persistent_sessions: config.features.sessions.enabled,
            sidecar_ingress_tls: config.features.sidecar_ingress_tls,
        },
        sessions: config.features.sessions.clone(),
        entries_select_pods: config.features.service_entry_selects_pods,
        services_select_entries: config.features.service_selects_workload_entries,
        sends_hbone: config.features.ambient && config.features.sends_hbone,
        prefers_hbone: config.features.prefers_hbone,
        allocates_addresses: config.features.allocate_addresses,
        address_pools: writes_addresses(config)
            .then_some(AddressPools { v4: config.features.allocation_v4, v6: config.features.allocation_v6 }),
        jwks_fetch: config.features.jwks_fetch,
        security: SecurityOptions {
            multiple_custom_providers: config.features.multiple_custom_providers,
            gateways_by_target_only: !config.features.gateway_policies_by_selector,
            any_trust_domain: config.features.any_trust_domain,
            compliance: config.security.compliance,
        },
        ambient: config.features.ambient.then_some(AmbientOptions {
            allows_waypoints: config.features.allows_waypoints,
            dry_run_policies: config.features.dry_run_policies,
        }),
        gateway_api: config.features.gateway_api_options(),
        reviews_secrets: matches!(config.sources.local, ClusterSource::Kubernetes(_)),
        virtual_hosts: config.features.virtual_hosts,
    }
}

fn jwks_options(features: &Features) -> JwksOptions {
    let default = JwksOptions::default();
    JwksOptions {
        schedule: Schedule { refresh: features.jwks_refresh, ..default.schedule },
        skip_verify: features.jwks_skip_verify,
        blocked: features.jwks_blocked.clone(),
        ..default
    }
}

/// Whether ServiceEntries get addresses, and their status says so.
fn writes_addresses(config: &Config) -> bool {
    config.features.allocate_addresses && matches!(config.sources.local, ClusterSource::Kubernetes(_))
}

/// Which replica writes into the own cluster.
fn election(config: &Config, client: Option<::kube::Client>) -> Election {
    let client = client.filter(|_| config.features.leader_election);
    Election::new(client, config.identity.namespace.clone(), &config.identity.pod_name)
}

fn server_options(config: &Config) -> ServerOptions {
    let default = ServerOptions::default();
    ServerOptions {
        max_request_bytes: config.features.max_request_bytes.map_or(default.max_request_bytes, NonZeroUsize::get),
        keepalive_interval: config.serving.keepalive_interval,
        keepalive_timeout: config.serving.keepalive_timeout,
        max_connection_age: config.serving.max_connection_age,
        drain_timeout: config.serving.shutdown,
        small_frames: config.features.small_http2_frames,
        ..default
    }
}

/// Who is known on the plaintext port: nobody has to be, but a trusted peer may say who.
fn plaintext_authenticators(features: &Features) -> Authenticators {
    let forwarded = Arc::new(ForwardedCertificates::new(features.trusted_gateways.clone()));
    match features.xds_auth {
        true => Authenticators::new(vec![forwarded], features.xds_auth_plaintext),
        false => Authenticators::default(),
    }
}

/// ConfigMap `istio`, or `istio-REVISION`.
fn mesh_config_map(identity: &Identity) -> ObjectKey {
    let name = match identity.revision.as_str() {
        "default" | "" => "istio".to_owned(),
        revision => format!("istio-{revision}"),
    };
    system_object(identity, &name)
}

fn system_object(identity: &Identity, name: &str) -> ObjectKey {
    ObjectKey::new(identity.cluster.clone(), identity.namespace.clone(), name)
}

/// Remote clusters that no Secret leads to.
fn elsewhere(config: &Config) -> BTreeSet<Text> {
    config.sources.remotes.keys().cloned().collect()
}

fn remote_options(config: &Config) -> RemoteOptions {
    RemoteOptions {
        cluster: cluster(config, &config.identity.cluster, false),
        elsewhere: elsewhere(config),
        system_namespace: config.identity.namespace.clone(),
        namespace: config.sources.watch_namespace.clone(),
        timeout: config.features.remote_cluster_timeout,
        allowed: config.features.insecure_kubeconfig.clone(),
        kube: KubeOptions::default(),
    }
}

fn clusters(config: &Config) -> Vec<(Cluster, ClusterSource)> {
    let local = (cluster(config, &config.identity.cluster, false), config.sources.local.clone());
    let remotes = config.sources.remotes.iter().map(|(id, source)| (cluster(config, id, true), source.clone()));
    [local].into_iter().chain(remotes).collect()
}

fn cluster(config: &Config, id: &Text, is_remote: bool) -> Cluster {
    Cluster {
        id: id.clone(),
        domain: config.identity.domain.clone(),
        is_remote,
        ignored: config.features.ignored_kinds(),
        revision: config.identity.read_revision.clone(),
    }
}
