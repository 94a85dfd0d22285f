//! Builds the certificate authority and the secure port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use sluice_auth::{
    Authenticator, Authenticators, ClientCertificates, FileKeys, ForwardedCertificates, RemoteKeys, ReviewedTokens,
    SignedTokens, TrustDomain,
};
use sluice_authority::{
    AuthorityError, AuthorityMetrics, BundleWriter, CertificateService, DnsNames, Issuing, Keeper, KubernetesSigner,
    Maker, NodePods, PROTO, RemoteRoots, RootsOptions, ServerKeeper, ServerSigner, Signer, SignerConfig, TrustAnchors,
    TrustBundleWriter,
};
use sluice_engine::Engine;
use sluice_graph::Handles;
use sluice_jwks::{JwksClient, JwksOptions};
use sluice_kube::{Clients, Election, ROOTS_LEASE, TRUST_BUNDLE_LEASE};
use sluice_model::{MeshConfig, Text};
use sluice_tls::{ClientVerifier, SecureIncoming};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tracing::{error, info, warn};

use super::{AppError, server_options};
use crate::config::{CertProvider, ClusterSource, Config};
use sluice_xds::{AdditionalServices, DiscoveryServer};

/// How long a certificate of the server lives if there is no authority that says so.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What the secure port is built from.
pub(super) struct Security {
    /// Who signs, if there is an authority.
    signer: Option<Arc<Signer>>,
    /// Who signs for workloads instead, if that is somebody else.
    external: Option<Arc<KubernetesSigner>>,
    server: ServerKeeper,
    /// Pods that node proxies speak for, if any may.
    nodes: Option<Arc<NodePods>>,
    /// Whether there is a certificate to show, or may be.
    can_serve: bool,
    authenticators: Authenticators,
    clients: Clients,
    metrics: AuthorityMetrics,
}

impl Security {
    /// Makes or loads the authority and the server's certificate; what keeps them as they should be goes on in tasks.
    pub(super) async fn open(
        config: &Config,
        clients: &Clients,
        mesh: &MeshConfig,
        trust_domain: TrustDomain,
        metrics: AuthorityMetrics,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        stop: &CancellationToken,
    ) -> Result<Self, AppError> {
        let security = &config.security;
        let client = clients.get(&config.identity.cluster);
        let mut signer = None;
        if let Some(authority) = &security.authority {
            let cluster = client.clone().map(|client| (client, config.identity.namespace.clone()));
            let keeper = Keeper::open(authority.clone(), cluster, &mesh.trust_domain).await?;
            metrics.watch(keeper.signer());
            signer = Some(keeper.signer());
            let stop = stop.clone();
            tasks.spawn(async move {
                keeper.run(stop).await;
                Ok(())
            });
        }
        let external = match (&security.external, &client, &security.authority) {
            (Some(external), Some(client), Some(authority)) => {
                let signer = KubernetesSigner::new(client.clone(), external.clone(), authority.terms);
                signer.follow(mesh);
                let (signer_name, domain) = (external.signer.as_str(), external.domain.as_str());
                info!(target: "pkira", signer_name, domain, "workloads are certified through the Kubernetes API");
                Some(Arc::new(signer))
            }
            (Some(_), None, Some(_)) => {
                warn!("EXTERNAL_CA has no effect: there is no Kubernetes API");
                None
            }
            _ => None,
        };
        let verifier = Arc::new(ClientVerifier::new(trust_domain.clone()));
        let lifetime = security.authority.as_ref().map_or(YEAR, |authority| authority.root_lifetime);
        let mut server = ServerKeeper::new(verifier, signer.clone(), lifetime);
        server.external.clone_from(&external);
        server.files.clone_from(&security.files);
        // Files that are mounted count before any signer.
        if let (CertProvider::Signer(name), None) = (&security.provider, &security.files) {
            server.certifier = Some(certifier(name, client, mesh)?);
        }
        server.names = (security.provider != CertProvider::Nobody).then(|| dns_names(config, mesh));
        let has_certificate = match (server.begin().await, &security.provider) {
            (Ok(shown), _) => shown,
            (Err(error), CertProvider::Signer(signer)) => {
                return Err(AuthorityError::Server { signer: signer.clone(), reason: error.to_string() }.into());
            }
            (Err(error), _) => {
                error!(target: "tls", %error, "cannot issue the server's certificate");
                false
            }
        };
        Ok(Self {
            nodes: None,
            can_serve: has_certificate || server.files.is_some(),
            authenticators: authenticators(config, clients, trust_domain),
            clients: clients.clone(),
            signer,
            external,
            server,
            metrics,
        })
    }

    /// Who is let in.
    pub(super) fn authenticators(&self) -> Authenticators {
        self.authenticators.clone()
    }

    /// Follows the pods that node proxies speak for, and writes roots into the namespaces of the cluster.
    pub(super) fn follow(
        &mut self,
        engine: &Engine,
        handles: &Handles,
        (client, election): (Option<Client>, Election),
        config: &Config,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        stop: &CancellationToken,
    ) {
        if !config.security.node_accounts.is_empty() {
            let nodes = Arc::new(NodePods::new(config.security.node_accounts.clone()));
            self.nodes = Some(nodes.clone());
            let (engine, handles, stop) = (engine.clone(), handles.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = nodes.follow(engine, &handles) => anyhow::bail!("the engine has stopped"),
                    () = stop.cancelled() => Ok(()),
                }
            });
        }
        if let Some(external) = self.external.clone() {
            let (engine, handles, stop) = (engine.clone(), handles.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = follow_mesh(engine, handles, |mesh| external.follow(mesh)) => anyhow::bail!("the engine has stopped"),
                    () = stop.cancelled() => Ok(()),
                }
            });
        }
        if let Some(certifier) = self.server.certifier.clone() {
            let (engine, handles, stop) = (engine.clone(), handles.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = follow_mesh(engine, handles, |mesh| certifier.follow(mesh)) => anyhow::bail!("the engine has stopped"),
                    () = stop.cancelled() => Ok(()),
                }
            });
        }
        if config.security.authority.as_ref().is_some_and(|authority| authority.multi_root) {
            // Whom all trust is to be known for sure.
            let options = JwksOptions { skip_verify: false, ..super::jwks_options(&config.features) };
            let fetcher = JwksClient::new(&options).only_secure();
            let (bundle, input) = (self.server.bundle.subscribe(), handles.inputs.trust_bundle.clone());
            let anchors = TrustAnchors::new(fetcher, bundle, self.external.clone(), input);
            let running = anchors.run(engine.clone(), handles.clone(), stop.clone());
            tasks.spawn(async move {
                running.await;
                Ok(())
            });
        }
        if config.features.external
            && let Some(authority) = &config.security.authority
            && config.security.provider != CertProvider::Nobody
        {
            let options = RootsOptions {
                own: config.identity.cluster.clone(),
                system_namespace: config.identity.namespace.clone(),
                roots: authority.roots_config_map.clone(),
                revoked: authority.revocations.then(|| authority.revoked_config_map.clone()),
                cluster_trust_bundle: authority.cluster_trust_bundle,
                pod: config.features.leader_election.then(|| config.identity.pod_name.clone()),
            };
            let (clients, bundle) = (self.clients.clone(), self.server.bundle.subscribe());
            let roots = RemoteRoots::new(options, clients, engine.clone(), handles.namespaces.clone(), bundle);
            let stop = stop.clone();
            tasks.spawn(async move {
                roots.run(stop).await;
                Ok(())
            });
        }
        if let (Some(client), Some(authority)) = (client, &config.security.authority)
            && config.security.provider != CertProvider::Nobody
        {
            let (authority, stop) = (authority.clone(), stop.clone());
            let bundle = self.server.bundle.subscribe();
            if authority.cluster_trust_bundle {
                tasks.spawn(async move {
                    let write = |term| TrustBundleWriter::new(client.clone(), bundle.clone()).run(term);
                    election.lead(TRUST_BUNDLE_LEASE, stop, write).await;
                    Ok(())
                });
                return;
            }
            let (cluster, only) = (config.identity.cluster.clone(), config.sources.watch_namespace.clone());
            let (engine, namespaces) = (engine.clone(), handles.namespaces.clone());
            tasks.spawn(async move {
                let revoked = authority.revocations.then_some(authority.revoked_config_map.as_str());
                let write = |term| {
                    let writer = BundleWriter::new(
                        client.clone(),
                        cluster.clone(),
                        only.clone(),
                        engine.feed(),
                        namespaces.clone(),
                        bundle.clone(),
                        (&authority.roots_config_map, revoked),
                    );
                    writer.run(term)
                };
                election.lead(ROOTS_LEASE, stop, write).await;
                Ok(())
            });
        }
    }

    /// Serves the listener, if there is a certificate to show.
    pub(super) fn serve(
        self,
        listener: Option<TcpListener>,
        discovery: Arc<DiscoveryServer>,
        config: &Config,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        stop: &CancellationToken,
    ) -> Result<(), AppError> {
        let (identity, clients) = (self.server.identity.clone(), self.server.clients.clone());
        let keeping = stop.clone();
        tasks.spawn(async move {
            self.server.run(keeping).await;
            Ok(())
        });
        let Some(listener) = listener else { return Ok(()) };
        if !self.can_serve {
            warn!("the secure port is not served: there is no certificate authority and no certificate");
            return Ok(());
        }
        let tls = sluice_tls::server_config(&config.security.versions, identity, clients).map_err(AppError::Runtime)?;
        let refused = self.metrics.refused_connections.clone();
        let mut additional = AdditionalServices::default();
        if let (Some(signer), Some(authority)) = (self.signer, &config.security.authority) {
            let issuing = Issuing {
                maker: self.external.map_or(Maker::Own(signer), Maker::Kubernetes),
                authenticators: self.authenticators.clone(),
                nodes: self.nodes,
                terms: authority.terms,
                metrics: self.metrics,
            };
            additional =
                AdditionalServices { routes: Routes::new(CertificateService::new(issuing)), proto_files: &[PROTO] };
        }
        let incoming = SecureIncoming::new(listener, tls, refused);
        let authenticators = if config.features.xds_auth { self.authenticators } else { Authenticators::default() };
        let (options, stop) = (server_options(config), stop.clone());
        tasks.spawn(sluice_xds::serve_on(incoming, discovery, options, authenticators, additional, async move {
            stop.cancelled().await
        }));
        Ok(())
    }
}

/// Who certifies the server behind the Kubernetes API.
fn certifier(signer: &str, client: Option<Client>, mesh: &MeshConfig) -> Result<Arc<ServerSigner>, AuthorityError> {
    let Some(client) = client else {
        let reason = "there is no Kubernetes API".to_owned();
        return Err(AuthorityError::Server { signer: signer.to_owned(), reason });
    };
    let certifier = ServerSigner::new(client, signer, SignerConfig::default().patience);
    certifier.follow(mesh);
    Ok(Arc::new(certifier))
}

/// The ways to prove who one is on the secure port, in the order in which they are asked (P07).
fn authenticators(config: &Config, clients: &Clients, trust_domain: TrustDomain) -> Authenticators {
    let tokens = &config.security.tokens;
    let mut chain: Vec<Arc<dyn Authenticator>> = vec![Arc::new(ClientCertificates)];
    if let Some(rule) = &tokens.rule {
        let keys = JwksClient::new(&super::jwks_options(&config.features));
        let keys = RemoteKeys::new(keys, &rule.issuer, &rule.jwks_uri);
        chain.push(Arc::new(SignedTokens::of_issuer(keys, &rule.issuer, &rule.audiences, trust_domain.clone())));
    }
    if !clients.ids().is_empty() {
        // Each cluster's API server knows its own tokens.
        let (own, aliases) = (config.identity.cluster.clone(), config.identity.cluster_aliases.clone());
        let reviewed = ReviewedTokens::new(clients.clone(), own, aliases, &tokens.audiences, trust_domain);
        chain.push(Arc::new(reviewed));
    } else if !tokens.keys.is_empty() {
        let keys = local_keys(config);
        chain.push(Arc::new(SignedTokens::of_clusters(keys, &tokens.issuer, &tokens.audiences, trust_domain)));
    }
    // Who trusts no gateways has none: then nobody is believed, not even on the loopback.
    if !config.features.trusted_gateways.is_empty() {
        chain.push(Arc::new(ForwardedCertificates::new(config.features.trusted_gateways.clone())));
    }
    Authenticators::new(chain, true)
}

/// Keys by every name of a cluster; callers that name none are of the own one.
fn local_keys(config: &Config) -> BTreeMap<String, FileKeys> {
    let mut keys = BTreeMap::new();
    let own = &config.identity.cluster;
    for (cluster, file) in &config.security.tokens.keys {
        let is_own = cluster.is_empty() || *cluster == own.as_str();
        let mut names: Vec<String> = if is_own { vec![String::new(), own.to_string()] } else { vec![cluster.clone()] };
        let aliases = config.identity.cluster_aliases.iter();
        let named = |id: &Text| if is_own { id == own } else { id.as_str() == cluster };
        names.extend(aliases.filter(|(_, id)| named(id)).map(|(alias, _)| alias.to_string()));
        keys.extend(names.into_iter().map(|name| (name, FileKeys::new(file))));
    }
    keys
}

fn dns_names(config: &Config, mesh: &MeshConfig) -> DnsNames {
    let address = mesh.default_config.discovery_address.as_str();
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let mut others = config.security.custom_hosts.clone();
    if matches!(config.sources.local, ClusterSource::Directory(_)) {
        // There are no Services whose names would lead here.
        others.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    }
    DnsNames::new(&config.identity.namespace, &config.identity.revision, host, &others)
}

/// The mesh config of the moment.
pub(super) fn mesh_config(engine: &Engine, handles: &Handles) -> MeshConfig {
    engine.snapshot().get(&handles.mesh, &()).map(|mesh| (*mesh).clone()).unwrap_or_default()
}

/// Tells of the mesh config, now and whenever it changes, until the engine stops.
pub(super) async fn follow_mesh(engine: Engine, handles: Handles, mut tell: impl FnMut(&MeshConfig)) {
    let mut feed = engine.feed().only(&handles.mesh);
    while let Some(batch) = feed.next().await {
        for event in batch.events(&handles.mesh) {
            if let Some(mesh) = event.new {
                tell(&mesh);
            }
        }
    }
}
