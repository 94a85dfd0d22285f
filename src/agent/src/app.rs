//! Everything in order: settings, secrets, xDS, names, status, Envoy. The one place that knows all.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use sluice_proto::istio::mesh::v1alpha1::ProxyConfig;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::args::ProxyArgs;
use crate::bootstrap;
use crate::debug::{self, DebugProxy};
use crate::dns::{DnsProxy, Names};
use crate::environment::Environment;
use crate::envoy::admin::Admin;
use crate::envoy::{self, End, Stop};
use crate::health;
use crate::identity::{self, Secrets};
use crate::metrics::Metrics;
use crate::node::{Node, interface_addresses};
use crate::sds;
use crate::settings::{CREDENTIAL_SOCKET, FILES_SOCKET, IDENTITY_DIRECTORY, IDENTITY_SOCKET, Settings};
use crate::status::{self, Readiness, Status};
use crate::unix::is_served;
use crate::wasm::Modules;
use crate::xds::{self, Intercepted};

/// Runs beside a proxy until it ends, or we are asked to.
///
/// # Errors
/// Settings are wrong, something cannot be listened on, or Envoy cannot be started.
pub(crate) async fn run(args: &ProxyArgs, log_as_json: bool) -> Result<End> {
    let environment = Environment::of_process();
    let mut warnings = Vec::new();
    let settings =
        Settings::new(args, log_as_json, &environment, &interface_addresses(), Path::new("."), &mut warnings)?;
    let stop = Stop::default();
    stop_on_signal(stop.clone())?;
    let metrics = Metrics::default();

    let dns = match settings.dns.clone() {
        Some(dns) => Some(DnsProxy::new(dns, &settings.namespace, &settings.domain)?),
        None => None,
    };
    let names = dns.as_ref().map(|dns| dns.names.clone());
    let admin = Admin::new(settings.loopback().to_string(), settings.ports.admin)?;
    let readiness = Readiness::new(admin.clone(), names.clone(), stop.requested.clone(), metrics.clone());
    let readiness = Arc::new(readiness);

    let (secrets, foreign_identity) = serve_secrets(&settings, &metrics).await?;
    serve_xds(&settings, &secrets, names.clone(), Arc::clone(&readiness), &metrics)?;
    if let Some(port) = settings.ports.debug {
        let proxy = DebugProxy { upstream: settings.control_plane.peer.clone(), node: settings.node_id() };
        debug::serve(proxy, settings.loopback(), port).await;
    }
    if let Some(dns) = dns {
        dns.serve(metrics.clone()).await?;
    }
    if settings.ports.status != 0 {
        let status = Status::new(&settings, readiness, admin.clone(), stop.clone(), names, metrics)?;
        status::serve(status, settings.ports.status).await?;
    }

    let node = Node::new(&settings, &environment, &mut warnings);
    let file = match settings.proxy.custom_config_file.as_str() {
        "" => {
            let credential_socket = is_served(Path::new(CREDENTIAL_SOCKET)).await;
            let inputs = bootstrap::Inputs { settings: &settings, node: &node, foreign_identity, credential_socket };
            let bootstrap = bootstrap::build(&inputs, &mut warnings);
            bootstrap::write(&settings, &bootstrap).context("write the bootstrap")?
        }
        custom => custom.into(),
    };
    warnings.extend(environment.take_warnings());
    warnings.iter().for_each(|warning| warn!("{warning}"));
    let mut command = envoy::command(&settings, &file)?;
    info!(id = node.id, cluster = node.cluster, addresses = ?settings.addresses, "starting Envoy");
    let child = command.spawn().with_context(|| format!("start {}", settings.proxy.binary_path))?;
    envoy::run(child, &admin, &settings, &stop).await
}

/// Serves the workload's certificate and files, or only these if somebody else serves the former.
async fn serve_secrets(settings: &Settings, metrics: &Metrics) -> Result<(Secrets, bool)> {
    let identity = &settings.identity;
    let socket = Path::new(IDENTITY_DIRECTORY).join(&identity.socket_name);
    let foreign = is_served(&socket).await;
    if !foreign && identity.socket_name != IDENTITY_SOCKET {
        bail!("WORKLOAD_IDENTITY_SOCKET_FILE: nobody serves {}", socket.display());
    }
    let secrets = Secrets::new(!foreign, identity.debounce, metrics.clone());
    if foreign {
        info!(target: "sds", socket = %socket.display(), "somebody else serves the workload's certificate");
        sds::serve(secrets.clone(), Path::new(FILES_SOCKET))?;
    } else {
        sds::serve(secrets.clone(), &socket)?;
        tokio::spawn(identity::run(identity.clone(), secrets.clone(), metrics.clone()));
    }
    Ok((secrets, foreign))
}

fn serve_xds(
    settings: &Settings,
    secrets: &Secrets,
    names: Option<Names>,
    readiness: Arc<Readiness>,
    metrics: &Metrics,
) -> Result<()> {
    let mut intercepted = Intercepted::default();
    if let Some(names) = names {
        intercepted.insert(xds::NAME_TABLE, Box::new(move |message| names.update(message)));
    }
    if settings.control_plane.wants_proxy_config {
        let secrets = secrets.clone();
        intercepted.insert(xds::PROXY_CONFIG, Box::new(move |message| add_roots(&secrets, message)));
    }
    let health = health::spawn(settings, move || {
        let readiness = Arc::clone(&readiness);
        async move { readiness.check().await }
    });
    let upstream = settings.control_plane.peer.clone();
    let modules = Modules::new(settings.wasm.clone(), metrics.clone())?;
    let proxy = xds::Proxy { upstream, intercepted, health, modules, metrics: metrics.clone() };
    xds::serve(proxy, &settings.control_plane.socket)
}

/// Roots of the mesh that the control plane names are trusted as well.
fn add_roots(secrets: &Secrets, message: &[u8]) -> Result<(), String> {
    let config: ProxyConfig = prost::Message::decode(message).map_err(|error| format!("no ProxyConfig: {error}"))?;
    secrets.set_added_roots(config.ca_certificates_pem.join("\n").into_bytes());
    Ok(())
}

/// Asks for the end at SIGTERM or SIGINT; a second signal ends at once.
fn stop_on_signal(stop: Stop) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::spawn(async move {
        for token in [&stop.requested, &stop.at_once] {
            tokio::select! {
                _ = terminate.recv() => info!("got SIGTERM"),
                _ = interrupt.recv() => info!("got SIGINT"),
            }
            token.cancel();
        }
    });
    Ok(())
}
