//! A server of JSON web key sets on the loopback, like that of a token issuer. Tests can replace the keys.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::token::TokenIssuer;

/// A running server. It ends when this is dropped.
pub struct KeyServer {
    address: SocketAddr,
    keys: Arc<Mutex<String>>,
    task: AbortHandle,
}

impl KeyServer {
    /// Starts a server with the keys of these issuers.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(issuers: &[&TokenIssuer]) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        let address = listener.local_addr().context("read the local address")?;
        let keys = Arc::new(Mutex::new(key_set(issuers)));
        let served = keys.clone();
        let answer = move || async move { served.lock().unwrap_or_else(PoisonError::into_inner).clone() };
        let server = axum::serve(listener, Router::new().route("/keys", get(answer)));
        let task = tokio::spawn(async move { server.await }).abort_handle();
        Ok(Self { address, keys, task })
    }

    /// The URI of the keys.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("http://{}/keys", self.address)
    }

    /// Serves the keys of these issuers from now on.
    pub fn serve(&self, issuers: &[&TokenIssuer]) {
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = key_set(issuers);
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn key_set(issuers: &[&TokenIssuer]) -> String {
    json!({ "keys": issuers.iter().map(|issuer| issuer.key()).collect::<Vec<Value>>() }).to_string()
}
