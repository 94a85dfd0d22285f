//! The listeners of the process.

use tokio::net::TcpListener;
use tracing::info;

use super::AppError;
use crate::config::{ListenAddress, Ports};

/// Bound listeners; `None` is a port that is switched off.
pub(super) struct Listeners {
    pub(super) http: Option<TcpListener>,
    pub(super) grpc: Option<TcpListener>,
    pub(super) secure_grpc: Option<TcpListener>,
    pub(super) monitoring: Option<TcpListener>,
}

impl Listeners {
    /// Binds every configured port.
    ///
    /// # Errors
    /// The first address that cannot be listened on.
    pub(super) async fn bind(ports: &Ports) -> Result<Self, AppError> {
        Ok(Self {
            http: bind("http", "--httpAddr", ports.http.as_ref()).await?,
            grpc: bind("grpc", "--grpcAddr", ports.grpc.as_ref()).await?,
            secure_grpc: bind("secure grpc", "--secureGRPCAddr", ports.secure_grpc.as_ref()).await?,
            monitoring: bind("monitoring", "--monitoringAddr", ports.monitoring.as_ref()).await?,
        })
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
