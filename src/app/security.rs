//! Builds the certificate authority and the secure port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use kube::Client;
use sluice_auth::{
    Authenticator, Authenticators, ClientCertificates, ClusterKeys, FileKeys, ForwardedCertificates, RemoteKeys,
    ReviewLimits, ReviewMetrics, ReviewedTokens, SignedTokens, TrustDomain,
};
use sluice_authority::{
    AuthorityError, AuthorityKeeper, AuthorityMetrics, BundleWriter, CERTIFICATE_SERVICE_PROTO, CertificateIssuer,
    CertificateService, DnsNames, IssuingOptions, KubernetesSigner, NodePods, RemoteRoots, RequestRate, RootObjects,
    RootsOptions, ServerCertificateKeeper, ServerSigner, Signer, SignerConfig, TrustAnchors, TrustBundleWriter,
    WebhookConfigurationWriter, WebhookKind,
};
use sluice_config::{CertProvider, ClusterSource, Config};
use sluice_jwks::{JwksClient, JwksOptions};
use sluice_kube::{Clients, Election, Lock, ROOTS_LOCK};
use sluice_listen::Listener;
use sluice_model::{MeshConfig, Text};
use sluice_tasks::Tasks;
use sluice_telemetry::Count;
use sluice_tls::{ClientVerifier, HttpsServer, SecureIncoming};
use sluice_xds::{AdditionalServices, DiscoveryServer};
use tokio::runtime::Handle;
use tonic::service::Routes;
use tracing::{error, info, warn};

use super::engine::GraphEngine;
use super::{AppError, options, webhooks};

/// Lifetime of the server certificate without a built-in authority.
const SERVER_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The certificate authority and the parts of the secure port.
pub(super) struct Security {
    /// The signer of the authority, if there is one.
    signer: Option<Arc<Signer>>,
    /// The signer of workload certificates that replaces the authority.
    workload_signer: Option<Arc<KubernetesSigner>>,
    server: ServerCertificateKeeper,
    /// Pods on whose behalf node proxies request certificates.
    nodes: Option<Arc<NodePods>>,
    /// Whether there is a server certificate, or files that can contain one later.
    can_serve: bool,
    authenticators: Authenticators,
    clients: Clients,
    metrics: AuthorityMetrics,
}

impl Security {
    /// Loads or generates the server certificate, and starts the tasks that renew it. `signer` is that of [`open_signer`].
    pub(super) async fn open(
        config: &Config,
        clients: &Clients,
        mesh: &MeshConfig,
        trust_domain: TrustDomain,
        (metrics, reviews): (AuthorityMetrics, &ReviewMetrics),
        signer: Option<Arc<Signer>>,
    ) -> Result<Self, AppError> {
        let security = &config.security;
        let client = clients.get(&config.identity.cluster);
        let workload_signer = match (&security.workload_signer, &client, &security.authority) {
            (Some(config), Some(client), Some(authority)) => {
                let signer = KubernetesSigner::new(client.clone(), config.clone(), authority.lifetimes);
                signer.follow(mesh);
                let (signer_name, domain) = (config.signer.as_str(), config.domain.as_str());
                info!(target: "pkira", signer_name, domain, "workload certificates come from a signer of the Kubernetes API");
                Some(Arc::new(signer))
            }
            (Some(_), None, Some(_)) => {
                warn!(
                    "EXTERNAL_CA has no effect without the Kubernetes API: the certificate authority issues workload certificates"
                );
                None
            }
            _ => None,
        };
        let verifier = Arc::new(ClientVerifier::new(trust_domain.clone()));
        let lifetime =
            security.authority.as_ref().map_or(SERVER_CERTIFICATE_LIFETIME, |authority| authority.root_lifetime);
        let mut server = ServerCertificateKeeper::new(verifier, signer.clone(), lifetime);
        server.workload_signer.clone_from(&workload_signer);
        server.files.clone_from(&security.files);
        // Mounted files take precedence over all signers.
        if let (CertProvider::Signer(name), None) = (&security.provider, &security.files) {
            server.server_signer = Some(server_signer(name, client, mesh)?);
        }
        server.names = (security.provider != CertProvider::None).then(|| dns_names(config, mesh));
        let has_certificate = match (server.begin().await, &security.provider) {
            (Ok(has_certificate), _) => has_certificate,
            (Err(error), CertProvider::Signer(signer)) => {
                return Err(AuthorityError::Server { signer: signer.clone(), reason: error.to_string() }.into());
            }
            (Err(error), _) => {
                error!(target: "tls", %error, "failed to issue the server certificate");
                false
            }
        };
        Ok(Self {
            nodes: None,
            can_serve: has_certificate || server.files.is_some(),
            authenticators: authenticators(config, clients, server.clients.clone(), trust_domain, reviews)?,
            clients: clients.clone(),
            signer,
            workload_signer,
            server,
            metrics,
        })
    }

    /// Authentication of callers.
    pub(super) fn authenticators(&self) -> Authenticators {
        self.authenticators.clone()
    }

    /// Deletes CertificateSigningRequests that are left over. All signers have the same ones.
    fn delete_left_over_requests(&self, tasks: &mut Tasks) {
        const TASK: &str = "left over signing requests";
        if let Some(signer) = self.workload_signer.clone() {
            tasks.spawn_restarted_until_stop(TASK, move || {
                let signer = signer.clone();
                async move { signer.delete_left_over_requests().await }
            });
        } else if let Some(signer) = self.server.server_signer.clone() {
            tasks.spawn_restarted_until_stop(TASK, move || {
                let signer = signer.clone();
                async move { signer.delete_left_over_requests().await }
            });
        }
    }

    /// Follows pods of nodes and mesh config, and writes roots into the namespaces of the clusters.
    ///
    /// # Errors
    /// The HTTP client for trust bundles cannot be set up.
    pub(super) fn follow(
        &mut self,
        graph: &GraphEngine,
        (client, election): (Option<Client>, Election),
        config: &Config,
        tasks: &mut Tasks,
    ) -> Result<(), AppError> {
        let (engine, handles) = (&graph.engine, &graph.handles);
        if !config.security.node_accounts.is_empty() {
            let nodes = Arc::new(NodePods::new(config.security.node_accounts.clone()));
            self.nodes = Some(nodes.clone());
            let (engine, handles) = (engine.clone(), handles.clone());
            tasks.spawn_until_stop("pods of nodes", async move { nodes.follow(engine, &handles).await });
        }
        if let Some(signer) = self.workload_signer.clone() {
            tasks.spawn_until_stop("workload signer", graph.follow_mesh_config(move |mesh| signer.follow(mesh)));
        }
        if let Some(signer) = self.server.server_signer.clone() {
            tasks.spawn_until_stop("server signer", graph.follow_mesh_config(move |mesh| signer.follow(mesh)));
        }
        self.delete_left_over_requests(tasks);
        if config.security.authority.as_ref().is_some_and(|authority| authority.multi_root) {
            let fetcher = jwks_client(&options::trusted_fetch_options(config))?;
            let (bundle, input) = (self.server.bundle.subscribe(), handles.inputs.trust_bundle.clone());
            let anchors = TrustAnchors::new(fetcher, bundle, self.workload_signer.clone(), input);
            tasks.spawn("trust anchors", anchors.run(engine.clone(), handles.clone(), tasks.stop()));
        }
        let kinds = options::patched_webhooks(&config.features);
        let authority = config.security.authority.clone().filter(|_| config.security.provider != CertProvider::None);
        if config.features.external_istiod {
            let roots = authority.as_ref().map(|authority| RootObjects {
                roots: authority.roots_config_map.clone(),
                revoked: authority.revocations.then(|| authority.revoked_config_map.clone()),
                cluster_trust_bundle: authority.cluster_trust_bundle,
            });
            let options = RootsOptions {
                own: config.identity.cluster.clone(),
                system_namespace: config.identity.namespace.clone(),
                roots,
                webhooks: kinds.contains(&WebhookKind::Mutating),
                pod: config.features.leader_election.then(|| config.identity.pod_name.clone()),
                revision: config.identity.revision.clone(),
            };
            let (clients, bundle) = (self.clients.clone(), self.server.bundle.subscribe());
            let namespaces = (handles.namespaces.clone(), handles.discovered_namespaces.clone());
            let metrics = self.metrics.clone();
            let roots = RemoteRoots::new(options, clients, engine.clone(), namespaces, bundle, metrics);
            tasks.spawn("roots of remote clusters", roots.run(tasks.stop()));
        }
        if let Some(client) = client.clone()
            && !kinds.is_empty()
        {
            let (identity, bundle, stop) = (config.identity.clone(), self.server.bundle.subscribe(), tasks.stop());
            let (metrics, states, election) = (self.metrics.clone(), graph.metrics.watches.clone(), election.clone());
            tasks.spawn_restarted("webhook configuration writer", move || {
                let lock = Lock::webhooks(&identity.revision);
                let control_plane = (identity.cluster.clone(), identity.namespace.clone(), identity.revision.clone());
                let (client, kinds, bundle) = (client.clone(), kinds.clone(), bundle.clone());
                let writer = WebhookConfigurationWriter::new(client, control_plane, kinds, bundle, &metrics);
                let writer = writer.with_states(states.clone());
                election.clone().lead(lock, stop.clone(), move |term| writer.clone().run(term))
            });
        }
        if let (Some(client), Some(authority)) = (client, authority) {
            let stop = tasks.stop();
            let bundle = self.server.bundle.subscribe();
            if authority.cluster_trust_bundle {
                tasks.spawn_restarted("ClusterTrustBundle writer", move || {
                    let (client, bundle) = (client.clone(), bundle.clone());
                    let write = move |term| TrustBundleWriter::new(client.clone(), bundle.clone()).run(term);
                    election.clone().lead(ROOTS_LOCK, stop.clone(), write)
                });
                return Ok(());
            }
            let (cluster, only) = (config.identity.cluster.clone(), config.sources.watch_namespace.clone());
            let (engine, namespaces) = (engine.clone(), handles.discovered_namespaces.clone());
            let states = graph.metrics.watches.clone();
            let writer = move || {
                let revoked = authority.revocations.then_some(authority.revoked_config_map.as_str());
                let writer = BundleWriter::new(
                    client.clone(),
                    cluster.clone(),
                    only.clone(),
                    engine.feed(),
                    namespaces.clone(),
                    bundle.clone(),
                    (&authority.roots_config_map, revoked),
                );
                writer.with_states(states.clone())
            };
            tasks.spawn_restarted("root ConfigMap writer", move || {
                let writer = writer.clone();
                election.clone().lead(ROOTS_LOCK, stop.clone(), move |term| writer().run(term))
            });
        }
        Ok(())
    }

    /// Serves the webhooks over TLS, if there is a server certificate.
    pub(super) fn serve_webhooks(
        &self,
        listener: Listener,
        router: Router,
        failed_handshakes: Count,
        config: &Config,
        (tasks, runtime): (&mut Tasks, &Handle),
    ) -> Result<(), AppError> {
        if !self.can_serve {
            warn!(
                "the webhooks are not served: no certificate files are configured, and no server certificate is issued"
            );
            return Ok(());
        }
        let tls = sluice_tls::https_config(&config.security.versions, self.server.identity.clone())
            .map_err(AppError::runtime("set up the port of the webhooks"))?;
        let server = HttpsServer { router, bodies: webhooks::body_limits(), tls, failed_handshakes };
        let serving = server.serve(listener, tasks.stop());
        tasks.spawn_on(runtime, "https port", serving);
        Ok(())
    }

    /// Serves the secure port, if there is a server certificate.
    pub(super) fn serve(
        self,
        listener: Option<Listener>,
        discovery: Arc<DiscoveryServer>,
        config: &Config,
        tasks: &mut Tasks,
    ) -> Result<(), AppError> {
        let (identity, clients) = (self.server.identity.clone(), self.server.clients.clone());
        tasks.spawn("server certificate", self.server.run(tasks.stop()));
        let Some(listener) = listener else { return Ok(()) };
        if !self.can_serve {
            warn!(
                "the secure port is not served: no certificate files are configured, and no server certificate is issued"
            );
            return Ok(());
        }
        let tls = sluice_tls::server_config(&config.security.versions, identity, clients.clone())
            .map_err(AppError::runtime("set up the secure port"))?;
        let refused = self.metrics.refused_connections.clone();
        let mut additional = AdditionalServices::default();
        if let (Some(signer), Some(authority)) = (self.signer, &config.security.authority) {
            let issuing = IssuingOptions {
                issuer: self
                    .workload_signer
                    .map_or(CertificateIssuer::Authority(signer), CertificateIssuer::Kubernetes),
                authenticators: self.authenticators.clone(),
                nodes: self.nodes,
                lifetimes: authority.lifetimes,
                rate: RequestRate::new(config.limits.certificate_requests),
                message_timeout: config.limits.grpc.first_request_timeout,
                metrics: self.metrics,
            };
            additional = AdditionalServices {
                routes: Routes::new(CertificateService::new(issuing)),
                proto_files: &[CERTIFICATE_SERVICE_PROTO],
            };
        }
        let incoming = SecureIncoming::new(listener, tls, clients, refused);
        let authenticators = if config.features.xds_auth { self.authenticators } else { Authenticators::default() };
        let (options, stop) = (options::server_options(config), tasks.stop());
        let shutdown = async move { stop.cancelled().await };
        let serving = sluice_xds::serve_on(incoming, discovery, options, authenticators, additional, shutdown);
        tasks.spawn_fallible("secure grpc port", serving);
        Ok(())
    }
}

/// Loads or generates the certificate authority, and starts the task that renews it. `None` if it is disabled.
pub(super) async fn open_signer(
    config: &Config,
    clients: &Clients,
    mesh: &MeshConfig,
    metrics: &AuthorityMetrics,
    tasks: &mut Tasks,
) -> Result<Option<Arc<Signer>>, AppError> {
    let Some(authority) = &config.security.authority else { return Ok(None) };
    let client = clients.get(&config.identity.cluster);
    let cluster = client.map(|client| (client, config.identity.namespace.clone()));
    let keeper = AuthorityKeeper::open(authority.clone(), cluster, &mesh.trust_domain).await?;
    let signer = keeper.signer();
    metrics.watch(signer.clone());
    tasks.spawn("certificate authority", keeper.run(tasks.stop()));
    Ok(Some(signer))
}

/// The signer of the Kubernetes API that issues the server certificate.
fn server_signer(signer: &str, client: Option<Client>, mesh: &MeshConfig) -> Result<Arc<ServerSigner>, AuthorityError> {
    let Some(client) = client else {
        let reason = "there is no Kubernetes API".to_owned();
        return Err(AuthorityError::Server { signer: signer.to_owned(), reason });
    };
    let server_signer = ServerSigner::new(client, signer, SignerConfig::default().timeout);
    server_signer.follow(mesh);
    Ok(Arc::new(server_signer))
}

/// Authenticators of the secure port, in order (P07).
fn authenticators(
    config: &Config,
    clients: &Clients,
    verifier: Arc<ClientVerifier>,
    trust_domain: TrustDomain,
    reviews: &ReviewMetrics,
) -> Result<Authenticators, AppError> {
    let tokens = &config.security.tokens;
    let mut chain: Vec<Arc<dyn Authenticator>> = vec![Arc::new(ClientCertificates::checked_by(verifier))];
    if let Some(rule) = &tokens.rule {
        let keys = jwks_client(&options::trusted_fetch_options(config))?;
        let keys = RemoteKeys::new(keys, &rule.issuer, &rule.jwks_uri);
        chain.push(Arc::new(SignedTokens::of_issuer(keys, &rule.issuer, &rule.audiences, trust_domain.clone())));
    }
    if !clients.ids().is_empty() {
        // Each cluster's API server reviews the tokens of its cluster.
        let (own, aliases) = (config.identity.cluster.clone(), config.identity.cluster_aliases.clone());
        let limits = ReviewLimits {
            max_reviews: config.limits.token_reviews,
            timeout: config.limits.token_review_timeout,
            ..ReviewLimits::default()
        };
        let reviewed = ReviewedTokens::new(clients.clone(), own, aliases, &tokens.audiences, trust_domain);
        let reviewed = reviewed.with_limits(limits, reviews.clone());
        chain.push(Arc::new(reviewed));
    } else if !tokens.keys.is_empty() {
        let keys = local_keys(config);
        chain.push(Arc::new(SignedTokens::of_clusters(keys, &tokens.issuer, &tokens.audiences, trust_domain)));
    }
    // Without trusted gateways, the header is never accepted, not even from the loopback.
    if !config.features.trusted_gateways.is_empty() {
        chain.push(Arc::new(ForwardedCertificates::new(config.features.trusted_gateways.clone())));
    }
    Ok(Authenticators::new(chain, true))
}

fn jwks_client(options: &JwksOptions) -> Result<JwksClient, AppError> {
    JwksClient::new(options).map_err(AppError::runtime("set up the HTTP client"))
}

/// Keys of `--tokenKeys` by cluster, under the id and all aliases of the cluster. A caller that names no cluster belongs to
/// the local one.
fn local_keys(config: &Config) -> BTreeMap<String, ClusterKeys> {
    let mut keys = BTreeMap::new();
    let own = &config.identity.cluster;
    for (cluster, file) in &config.security.tokens.keys {
        let is_own = cluster.is_empty() || *cluster == own.as_str();
        let mut names: Vec<String> = if is_own { vec![String::new(), own.to_string()] } else { vec![cluster.clone()] };
        let aliases = config.identity.cluster_aliases.iter();
        let named = |id: &Text| if is_own { id == own } else { id.as_str() == cluster };
        names.extend(aliases.filter(|(_, id)| named(id)).map(|(alias, _)| alias.to_string()));
        let id = if is_own { own.clone() } else { cluster.as_str().into() };
        keys.extend(
            names.into_iter().map(|name| (name, ClusterKeys { cluster: id.clone(), keys: FileKeys::new(file) })),
        );
    }
    keys
}

/// DNS names of the server certificate.
fn dns_names(config: &Config, mesh: &MeshConfig) -> DnsNames {
    let address = mesh.default_config.discovery_address.as_str();
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let mut others = config.security.custom_hosts.clone();
    if !matches!(config.sources.local, ClusterSource::Kubernetes(_)) {
        // Without a cluster no Service name resolves to this process.
        others.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    }
    DnsNames::new(&config.identity.namespace, &config.identity.revision, host, &others)
}
