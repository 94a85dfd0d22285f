//! Receives the events of the plugin.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use tokio::net::UnixListener;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::controller::Controller;
use crate::event::{AddEvent, PATH};
use crate::mesh::PodStart;
use crate::pod::{NodePod, PodName};

/// The plugin has read the pod from the API server, so the watch reports it soon.
const POD_TIMEOUT: Duration = Duration::from_secs(2);
const POD_INTERVAL: Duration = Duration::from_millis(10);

/// Listens on the socket and serves.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn serve(
    path: &Path,
    controller: Arc<Controller>,
) -> io::Result<impl Future<Output = anyhow::Result<()>> + Send + use<>> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // The plugin runs as root.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let router = Router::new().route(PATH, post(add)).with_state(controller);
    Ok(async move { Ok(axum::serve(listener, router).await?) })
}

async fn add(State(controller): State<Arc<Controller>>, body: Bytes) -> (StatusCode, String) {
    let event: AddEvent = match serde_json::from_slice(&body) {
        Ok(event) => event,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("event of the plugin: {error}")),
    };
    let name = PodName { namespace: event.pod_namespace.clone(), name: event.pod_name.clone() };
    match enrol(&controller, &name, event).await {
        Ok(()) => (StatusCode::OK, String::new()),
        Err(error) => {
            warn!(pod = %name, error = format!("{error:#}"), "event of the plugin failed");
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"))
        }
    }
}

async fn enrol(controller: &Controller, name: &PodName, event: AddEvent) -> anyhow::Result<()> {
    info!(pod = %name, netns = event.netns, "event of the plugin");
    let pod = wait_for(controller, name).await?;
    let addresses: Vec<_> = event.ips.iter().map(|ip| ip.address.ip.to_canonical()).collect();
    controller.enrol(NodePod { addresses, ..pod }, PodStart::Starting(event.netns)).await?;
    Ok(())
}

async fn wait_for(controller: &Controller, name: &PodName) -> anyhow::Result<NodePod> {
    let deadline = Instant::now() + POD_TIMEOUT;
    loop {
        match controller.eligible(name) {
            Some(Some(pod)) => return Ok(pod),
            _ if Instant::now() < deadline => sleep(POD_INTERVAL).await,
            Some(None) => anyhow::bail!("pod {name} is not to be enrolled"),
            None => anyhow::bail!("pod {name} is not known"),
        }
    }
}
