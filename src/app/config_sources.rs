//! Reads the sources of configuration that the mesh config lists (C08, C10).

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use sluice_authority::Signer;
use sluice_kube::Clients;
use sluice_mcp::{McpSource, SourceCredentials};
use sluice_model::{
    ClientTlsMode, ConfigSource, ConfigSourceKind, Identity, MeshConfig, ROOTS_SUFFIX, Secret, Severity, Text,
};
use sluice_sources::configuration::{ConfigSourceState, ConfigurationSources, SourceFinding, SourceFindings};
use sluice_sources::kube::read_secret;
use tracing::info;

use super::{App, AppError, options};

impl App {
    /// Waits for the mesh config, and reads the sources that it lists. Without a list, the local cluster is the only source.
    pub(super) async fn read_configuration(&mut self, configuration: &ConfigurationSources) -> Result<(), AppError> {
        configuration.mesh_config_read().await;
        let Some(mesh) = self.admin.current_mesh.get().map(|mesh| mesh.mesh()) else { return Ok(()) };
        let sources = mesh.config_sources.clone();
        let states: Vec<ConfigSourceState> =
            sources.iter().map(|source| self.graph.metrics.config_sources.add(source)).collect();
        let findings = SourceFindings::new(
            self.graph.handles.inputs.component_rejects.clone(),
            options::mesh_config_map(&self.config.identity),
        );
        if sources.iter().any(is_istio_mutual) {
            self.open_signer(&mesh).await?;
        }
        for (index, sink) in configuration.fix(&sources) {
            let source = &sources[index];
            info!(address = %source.address, "reading a source of configuration");
            match &source.kind {
                ConfigSourceKind::Directory(path) => {
                    let cluster = options::configuration_of(&self.config);
                    self.read_directory(cluster, Path::new(path.as_str()), &sink).await?;
                }
                ConfigSourceKind::Xds(server) => {
                    let (state, findings) = (states[index].clone(), findings.clone());
                    let credentials = Arc::new(self.credentials(&mesh));
                    self.read_server(McpSource {
                        server: server.clone(),
                        address: source.address.clone(),
                        index,
                        tls: source.tls.clone(),
                        credentials,
                        policy: self.config.security.compliance,
                        node: options::source_node(&self.config),
                        cluster: options::configuration_of(&self.config),
                        sink,
                        state,
                        findings,
                    });
                }
                ConfigSourceKind::Cluster | ConfigSourceKind::Unsupported => {}
            }
        }
        let reporting = self.graph.follow_mesh_config(move |mesh| report_change(&findings, &sources, mesh));
        self.tasks.spawn_until_stop("list of configuration sources", reporting);
        Ok(())
    }

    fn read_server(&mut self, source: McpSource) {
        self.tasks.spawn("source of configuration", source.run(self.tasks.stop()));
    }

    fn credentials(&self, mesh: &MeshConfig) -> ControlPlaneCredentials {
        ControlPlaneCredentials {
            clients: self.clients.clone(),
            cluster: self.config.identity.cluster.clone(),
            namespace: self.config.identity.namespace.clone(),
            signer: self.signer.clone(),
            identity: options::own_identity(&self.config, &mesh.trust_domain),
        }
    }
}

fn is_istio_mutual(source: &ConfigSource) -> bool {
    let mode = source.tls.as_ref().map(|tls| tls.mode);
    matches!(source.kind, ConfigSourceKind::Xds(_)) && mode == Some(ClientTlsMode::IstioMutual)
}

/// Reports a list that differs from the one that is read.
fn report_change(findings: &SourceFindings, read: &[ConfigSource], mesh: &MeshConfig) {
    let finding = SourceFinding {
        field_path: String::new(),
        reason: "the list has changed since the start: it takes effect when sluiced restarts, the previous one applies"
            .to_owned(),
        severity: Severity::Warning,
    };
    let has_changed = mesh.config_sources != read;
    findings.set(None, has_changed.then_some(finding).into_iter().collect());
}

/// The certificates of Secrets, and those of the own authority.
struct ControlPlaneCredentials {
    clients: Clients,
    cluster: Text,
    namespace: Text,
    signer: Option<Arc<Signer>>,
    identity: Identity,
}

impl SourceCredentials for ControlPlaneCredentials {
    fn secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Secret, String>> {
        Box::pin(async move {
            let client = self.clients.get(&self.cluster);
            let client = client.ok_or("without the Kubernetes API there are no Secrets: use files")?;
            let read = async |name: &str| {
                let secret = read_secret(&client, &self.namespace, name).await;
                secret.map_err(|error| format!("read Secret {}/{name}: {error}", self.namespace))
            };
            let secret = read(name).await?;
            let mut secret = secret
                .ok_or_else(|| format!("Secret {}/{name} does not exist or has no certificates", self.namespace))?;
            if secret.roots.is_none() {
                // As for gateways, the roots may be in a Secret of their own.
                secret.roots = read(&format!("{name}{ROOTS_SUFFIX}")).await?.and_then(|secret| secret.roots);
            }
            Ok(secret)
        })
    }

    fn own(&self) -> Result<Secret, String> {
        let signer = self.signer.as_ref().ok_or("ISTIO_MUTUAL: the certificate authority is disabled")?;
        signer.own_certificate(&self.identity).map_err(|error| format!("ISTIO_MUTUAL: {error}"))
    }
}
