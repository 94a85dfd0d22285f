//! What a kubelet serves to the API server: the logs of containers, and the commands of `kubectl exec`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path as UrlPath, Query, State};
use axum::routing::get;
use http::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;

use super::container::ContainerKey;
use super::exec::{self, Commands};
use crate::pods::identity::{Authority, certificates, private_key};

/// The server of a kubelet. It ends when this is dropped.
pub(super) struct KubeletServer {
    pub(super) address: SocketAddr,
    logs: Logs,
    commands: Commands,
    task: JoinHandle<()>,
}

/// By namespace and name of a pod, and name of a container.
type Logs = Arc<Mutex<BTreeMap<ContainerKey, Log>>>;

struct Log {
    file: PathBuf,
    /// When the file was seen with another length than before, and the length in bytes.
    lengths: Vec<(Timestamp, u64)>,
}

impl Drop for KubeletServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl KubeletServer {
    /// Starts it on a free port of the loopback. The API server does not verify certificates of kubelets.
    pub(super) async fn start() -> Result<Self> {
        let (chain, key) = Authority::new()?.issue_hosts(&["node".to_owned()])?;
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().context("choose versions")?.with_no_client_auth();
        let config =
            builder.with_single_cert(certificates(&chain)?, private_key(&key)?).context("set the certificate")?;
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen for the API server")?;
        let address = listener.local_addr()?;
        let (logs, commands) = (Logs::default(), Commands::default());
        let router = Router::new()
            .route("/containerLogs/{namespace}/{pod}/{container}", get(answer))
            .with_state(logs.clone())
            .merge(exec::router(commands.clone()));
        Ok(Self { address, logs, commands, task: tokio::spawn(serve(listener, tls, router)) })
    }

    /// Serves the commands of `kubectl exec` by a program.
    pub(super) async fn serve_commands(&self, program: &Path) -> Result<()> {
        self.commands.start(program).await
    }

    /// Sets how a container is entered; `None` if it no longer runs.
    pub(super) fn set_entry(&self, key: ContainerKey, entry: Option<Vec<String>>) {
        self.commands.set_entry(key, entry);
    }

    /// Records the length of the log of a running container.
    pub(super) fn observe(&self, key: ContainerKey, file: &Path) -> Result<()> {
        let length = file.metadata().with_context(|| format!("read {}", file.display()))?.len();
        let mut logs = lock(&self.logs);
        let log = logs.entry(key);
        let log = log.or_insert_with(|| Log { file: file.to_owned(), lengths: Vec::new() });
        if log.lengths.last().is_none_or(|(_, last)| *last != length) {
            log.lengths.push((Timestamp::now(), length));
        }
        Ok(())
    }
}

impl Log {
    /// What was written after a time.
    fn since(&self, time: Option<Timestamp>) -> std::io::Result<Vec<u8>> {
        let mut text = std::fs::read(&self.file)?;
        let before = self.lengths.iter().rev().find(|(seen, _)| time.is_some_and(|time| *seen <= time));
        let start = before.and_then(|(_, length)| usize::try_from(*length).ok()).unwrap_or(0);
        Ok(text.split_off(start.min(text.len())))
    }
}

fn lock(logs: &Logs) -> MutexGuard<'_, BTreeMap<ContainerKey, Log>> {
    logs.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(
    State(logs): State<Logs>,
    UrlPath(key): UrlPath<ContainerKey>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<Vec<u8>, StatusCode> {
    let since = query.get("sinceTime").map(|time| time.parse()).transpose().map_err(|_| StatusCode::BAD_REQUEST)?;
    match lock(&logs).get(&key) {
        Some(log) => log.since(since).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR),
        None => Err(StatusCode::NOT_FOUND),
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, router: Router) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (tls, service) = (tls.clone(), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            // The client may end the connection at any time.
            let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
        });
    }
}

#[test]
fn log_since_a_time_begins_with_what_was_written_after_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("log");
    std::fs::write(&file, "old\nnew\n").expect("write the log");
    let at = |second| Timestamp::from_second(second).expect("a time");
    let log = Log { file, lengths: vec![(at(10), 0), (at(20), 4), (at(30), 8)] };
    let since = |time| String::from_utf8(log.since(time).expect("read the log")).expect("a text");
    assert_eq!(since(None), "old\nnew\n");
    assert_eq!(since(Some(at(5))), "old\nnew\n");
    assert_eq!(since(Some(at(25))), "new\n");
    assert_eq!(since(Some(at(30))), "");
}
