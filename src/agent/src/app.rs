//! Start of the agent in order: settings, secrets, xDS proxy, DNS proxy, status server, bootstraps, Envoy.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use sluice_proto::istio::mesh::v1alpha1::ProxyConfig;
use sluice_tasks::restart_with;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::args::ProxyArgs;
use crate::bootstrap;
use crate::debug::{self, DebugProxy};
use crate::dns::{DnsProxy, NameTableStore};
use crate::environment::Environment;
use crate::envoy::admin::Admin;
use crate::envoy::{self, ShutdownTokens, Termination};
use crate::grpc_bootstrap;
use crate::health;
use crate::identity::{self, SecretStore};
use crate::metrics::Metrics;
use crate::node::{EnvoyNode, interface_addresses};
use crate::sds;
use crate::settings::{CREDENTIAL_SOCKET, FILES_SOCKET, IDENTITY_DIRECTORY, IDENTITY_SOCKET, Settings};
use crate::status::{self, Readiness, StatusState};
use crate::unix::{SocketUsers, is_served};
use crate::wasm::Modules;
use crate::xds::{self, InterceptedTypes};

/// Runs the agent until Envoy exits or a termination is requested. With `DISABLE_ENVOY` there is no Envoy.
///
/// # Errors
/// A setting is invalid or a variable has a value that is not supported, the agent cannot listen on an address, or Envoy cannot be started.
pub(crate) async fn run(args: &ProxyArgs, log_as_json: bool) -> Result<Termination> {
    let environment = Environment::of_process();
    let mut warnings = environment.not_followed()?;
    let settings =
        Settings::new(args, log_as_json, &environment, &interface_addresses(), Path::new("."), &mut warnings)?;
    let stop = ShutdownTokens::default();
    stop_on_signal(stop.clone())?;
    let metrics = Metrics::default();

    let dns = match settings.dns.clone() {
        Some(dns) => Some(DnsProxy::new(dns, &settings.namespace, &settings.domain)?),
        None => None,
    };
    let names = dns.as_ref().map(|dns| dns.names.clone());
    let admin = match settings.runs_envoy {
        true => Some(Admin::new(settings.loopback().to_string(), settings.ports.admin)?),
        false => None,
    };
    let grpc_files = grpc_bootstrap::needed_files(&settings);
    let readiness = Readiness::new(admin.clone(), grpc_files, names.clone(), stop.requested.clone(), metrics.clone());
    let readiness = Arc::new(readiness);

    let (secrets, external_sds) = serve_secrets(&settings, &metrics).await?;
    serve_xds(&settings, &secrets, names.clone(), Arc::clone(&readiness), &metrics)?;
    if let Some(port) = settings.ports.debug {
        let proxy = DebugProxy { upstream: settings.control_plane.upstream.clone(), node: settings.node_id() };
        debug::serve(proxy, settings.loopback(), port, metrics.listen()).await;
    }
    if let Some(dns) = dns {
        dns.serve(metrics.clone()).await?;
    }
    if settings.ports.status != 0 {
        let listen_metrics = metrics.listen();
        let status = StatusState::new(&settings, readiness, admin.clone(), stop.clone(), names, metrics)?;
        status::serve(status, settings.ports.status, listen_metrics).await?;
    }

    let node = EnvoyNode::new(&settings, &environment, &mut warnings);
    if let Some(file) = &settings.grpc_bootstrap {
        let written = grpc_bootstrap::write(file, &settings, &node);
        written.with_context(|| format!("write {}, the bootstrap of gRPC libraries", file.display()))?;
    }
    let Some(admin) = admin else {
        log_warnings(&warnings, &environment);
        info!(id = node.id, addresses = ?settings.addresses, "Envoy is disabled, gRPC libraries are served");
        stop.requested.cancelled().await;
        return Ok(Termination::Requested);
    };
    let file = match settings.proxy.custom_config_file.as_str() {
        "" => {
            let credential_socket = is_served(Path::new(CREDENTIAL_SOCKET)).await;
            let inputs =
                bootstrap::BootstrapInputs { settings: &settings, node: &node, external_sds, credential_socket };
            let bootstrap = bootstrap::build(&inputs, &mut warnings);
            bootstrap::write(&settings, &bootstrap).context("write the bootstrap")?
        }
        custom => custom.into(),
    };
    log_warnings(&warnings, &environment);
    let mut command = envoy::command(&settings, &file)?;
    info!(id = node.id, cluster = node.cluster, addresses = ?settings.addresses, "starting Envoy");
    let child = command.spawn().with_context(|| {
        format!("ProxyConfig: binaryPath: start {:?}, which has to be the path of Envoy", settings.proxy.binary_path)
    })?;
    envoy::run(child, &admin, &settings, &stop).await
}

fn log_warnings(warnings: &[String], environment: &Environment) {
    warnings.iter().chain(&environment.take_warnings()).for_each(|warning| warn!(warning, "configuration warning"));
}

/// Serves the workload's certificate and secrets in files. If another SDS server has the socket, the agent serves secrets in files
/// only. Without Envoy, the certificate is only written to files. Returns whether there is another server.
async fn serve_secrets(settings: &Settings, metrics: &Metrics) -> Result<(SecretStore, bool)> {
    let identity = &settings.identity;
    let socket = Path::new(IDENTITY_DIRECTORY).join(&identity.socket_name);
    let external = is_served(&socket).await;
    if !external && identity.socket_name != IDENTITY_SOCKET {
        bail!("WORKLOAD_IDENTITY_SOCKET_FILE: no server accepts connections on {}", socket.display());
    }
    let secrets = SecretStore::new(!external, identity.debounce, metrics.clone());
    if external {
        info!(target: "sds", socket = %socket.display(), "another SDS server provides the workload's certificate");
        if identity.output.is_some() {
            warn!(target: "cache", "OUTPUT_CERTS has no effect: the agent does not have the certificate of another SDS server");
        }
    }
    if settings.runs_envoy {
        sds::serve(secrets.clone(), if external { Path::new(FILES_SOCKET) } else { &socket }, metrics)?;
    }
    if !external {
        tokio::spawn(identity::run(identity.clone(), secrets.clone(), metrics.clone()));
    }
    Ok((secrets, external))
}

fn serve_xds(
    settings: &Settings,
    secrets: &SecretStore,
    names: Option<NameTableStore>,
    readiness: Arc<Readiness>,
    metrics: &Metrics,
) -> Result<()> {
    let mut intercepted = InterceptedTypes::default();
    if let Some(names) = names {
        intercepted.insert(xds::NAME_TABLE, Box::new(move |message| names.update(message)));
    }
    if settings.control_plane.subscribe_proxy_config {
        let secrets = secrets.clone();
        intercepted.insert(xds::PROXY_CONFIG, Box::new(move |message| add_roots(&secrets, message)));
    }
    let health = health::spawn(settings, move || {
        let readiness = Arc::clone(&readiness);
        async move { readiness.check().await }
    });
    let upstream = settings.control_plane.upstream.clone();
    let modules = Modules::new(settings.wasm.clone(), metrics.clone())?;
    let proxy = xds::XdsProxy { upstream, intercepted, health, modules, metrics: metrics.clone() };
    // Envoy is of the agent's user, the application need not be.
    let users = if settings.runs_envoy { SocketUsers::Own } else { SocketUsers::All };
    xds::serve(proxy, &settings.control_plane.socket, users)
}

/// Trusts the roots in the control plane's ProxyConfig as well.
fn add_roots(secrets: &SecretStore, message: &[u8]) -> Result<(), prost::DecodeError> {
    let config: ProxyConfig = prost::Message::decode(message)?;
    secrets.set_added_roots(config.ca_certificates_pem.join("\n").into_bytes());
    Ok(())
}

/// SIGTERM or SIGINT terminates the agent; a second signal skips draining.
fn stop_on_signal(stop: ShutdownTokens) -> Result<()> {
    let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::spawn(async move {
        let tokens = [stop.requested, stop.at_once].into_iter();
        let mut state = (terminate, interrupt, tokens);
        restart_with("signals", &mut state, |(terminate, interrupt, tokens)| {
            Box::pin(async move {
                for token in tokens {
                    tokio::select! {
                        _ = terminate.recv() => info!("SIGTERM received"),
                        _ = interrupt.recv() => info!("SIGINT received"),
                    }
                    token.cancel();
                }
            })
        })
        .await;
    });
    Ok(())
}
