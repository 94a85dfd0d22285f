//! The commands of `kubectl exec`. A program speaks the protocol of the streams; requests are forwarded to it with a command that
//! enters the container.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, RawQuery, State};
use axum::routing::any;
use http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, BufReader, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::container::ContainerKey;

/// The running containers, and the program that runs commands in them.
#[derive(Clone, Default)]
pub(super) struct Commands(Arc<Mutex<CommandState>>);

#[derive(Default)]
struct CommandState {
    /// The program, and the address of its server. It ends when this is dropped.
    program: Option<(Child, SocketAddr)>,
    /// What precedes a command of a container.
    entries: BTreeMap<ContainerKey, Vec<String>>,
}

impl Commands {
    fn state(&self) -> MutexGuard<'_, CommandState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the program.
    pub(super) async fn start(&self, program: &Path) -> Result<()> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let stdout = child.stdout.take().context("the output of the program")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await.context("read the address of the program")?;
        let address = line.trim().parse().with_context(|| format!("{line:?} is an address"))?;
        self.state().program = Some((child, address));
        Ok(())
    }

    /// Sets how a container is entered; `None` if it no longer runs.
    pub(super) fn set_entry(&self, key: ContainerKey, entry: Option<Vec<String>>) {
        match entry {
            Some(entry) => self.state().entries.insert(key, entry),
            None => self.state().entries.remove(&key),
        };
    }

    /// The address of the program, and the query with the command that enters the container. `None` if there is no such container, or
    /// no program.
    fn target(&self, key: &ContainerKey, query: &str) -> Option<(SocketAddr, String)> {
        let state = self.state();
        let (_, address) = state.program.as_ref()?;
        let entry = state.entries.get(key)?;
        Some((*address, with_command(entry, query)))
    }
}

/// The routes of requests.
pub(super) fn router(commands: Commands) -> Router {
    Router::new().route("/exec/{namespace}/{pod}/{container}", any(forward)).with_state(commands)
}

async fn forward(
    State(commands): State<Commands>,
    UrlPath(key): UrlPath<ContainerKey>,
    RawQuery(query): RawQuery,
    request: Request<Body>,
) -> Result<Response<Body>, (StatusCode, String)> {
    let Some((address, query)) = commands.target(&key, &query.unwrap_or_default()) else {
        return Err((StatusCode::NOT_FOUND, format!("the container {key:?} does not run")));
    };
    upgrade(address, &query, request).await.map_err(|error| (StatusCode::BAD_GATEWAY, format!("{error:#}")))
}

/// Forwards a request that changes the protocol, and then the bytes of both sides.
async fn upgrade(address: SocketAddr, query: &str, mut request: Request<Body>) -> Result<Response<Body>> {
    let stream = TcpStream::connect(address).await.context("connect to the program")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("start HTTP")?;
    tokio::spawn(connection.with_upgrades());
    let mut forwarded = Request::builder().method(request.method().clone()).uri(format!("/exec?{query}"));
    if let Some(headers) = forwarded.headers_mut() {
        headers.clone_from(request.headers());
    }
    let forwarded = forwarded.body(Body::empty()).context("make the request")?;
    let mut response = sender.send_request(forwarded).await.context("send the request")?;
    ensure!(response.status() == StatusCode::SWITCHING_PROTOCOLS, "the program answers with {}", response.status());
    let mut answer = Response::builder().status(response.status());
    if let Some(headers) = answer.headers_mut() {
        headers.clone_from(response.headers());
    }
    let (client, server) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut response));
    tokio::spawn(async move {
        let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
        // Either side may end the connection at any time.
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    });
    answer.body(Body::empty()).context("make the answer")
}

/// A query whose command begins with these arguments.
fn with_command(arguments: &[String], query: &str) -> String {
    let mut before = form_urlencoded::Serializer::new(String::new());
    before.extend_pairs(arguments.iter().map(|argument| ("command", argument)));
    format!("{}&{query}", before.finish())
}

#[test]
fn command_of_a_request_follows_the_one_that_enters_the_container() {
    let entry = ["env".to_owned(), "A=b & c".to_owned()];
    assert_eq!(with_command(&entry, "output=1&command=ls"), "command=env&command=A%3Db+%26+c&output=1&command=ls");
}
