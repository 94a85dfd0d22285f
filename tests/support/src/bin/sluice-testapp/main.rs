//! The application in a pod of the end-to-end tests. It answers HTTP, TLS and raw connections, and sends the requests that
//! the test commands.
//!
//! Every request is answered with one JSON object: the application and the request it received. Commands come as JSON
//! lines on standard input, and each is answered by one JSON line on standard output (see `sluice_testkit::pods::app`).

mod authorize;
mod client;
mod server;
mod tunnel;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::mpsc;

#[derive(Parser)]
#[command(about = "The application in a pod of the end-to-end tests")]
struct Args {
    /// Address to serve HTTP on, repeatable.
    #[arg(long = "listen")]
    listen: Vec<SocketAddr>,
    /// Address to answer raw connections on, repeatable.
    #[arg(long = "tcp")]
    tcp: Vec<SocketAddr>,
    /// Address to answer datagrams on, repeatable.
    #[arg(long = "udp")]
    udp: Vec<SocketAddr>,
    /// Address to serve HTTPS on, repeatable. Needs a certificate.
    #[arg(long = "https", requires = "certificate")]
    https: Vec<SocketAddr>,
    /// Address to serve external authorization (gRPC) on, repeatable.
    #[arg(long = "authorize")]
    authorize: Vec<SocketAddr>,
    /// Certificate chain, PEM.
    #[arg(long, requires = "key")]
    certificate: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    #[arg(long)]
    key: Option<PathBuf>,
    /// Roots of client certificates, PEM. A client may also have no certificate.
    #[arg(long, requires = "certificate")]
    client_roots: Option<PathBuf>,
    /// Name of the application, part of every response.
    #[arg(long)]
    name: String,
    /// Version of the application, part of every response.
    #[arg(long, default_value = "v1")]
    version: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let app = Arc::new(server::App::new(args.name, args.version));
    let bind =
        async |address: SocketAddr| TcpListener::bind(address).await.with_context(|| format!("listen on {address}"));
    for address in args.listen {
        tokio::spawn(server::serve_http(bind(address).await?, app.clone()));
    }
    for address in args.tcp {
        tokio::spawn(server::serve_lines(bind(address).await?, app.clone()));
    }
    for address in args.udp {
        let socket = UdpSocket::bind(address).await.with_context(|| format!("listen on {address} over UDP"))?;
        tokio::spawn(server::serve_datagrams(socket, app.clone()));
    }
    for address in args.authorize {
        tokio::spawn(authorize::serve(bind(address).await?));
    }
    if let (Some(certificate), Some(key)) = (&args.certificate, &args.key) {
        let tls = server::acceptor(certificate, key, args.client_roots.as_deref())?;
        for address in args.https {
            tokio::spawn(server::serve_https(bind(address).await?, tls.clone(), app.clone()));
        }
    }
    let (replies, mut queue) = mpsc::channel::<AppReply>(64);
    tokio::spawn(async move {
        let mut out = tokio::io::stdout();
        while let Some(reply) = queue.recv().await {
            let mut line = serde_json::to_vec(&reply).unwrap_or_default();
            line.push(b'\n');
            if out.write_all(&line).await.is_err() || out.flush().await.is_err() {
                return;
            }
        }
    });
    // Reports to the parent that every listener is open.
    replies.send(AppReply::ready()).await.context("report ready")?;
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = commands.next_line().await.context("read a command")? {
        let call: AppRequest = serde_json::from_str(&line).with_context(|| format!("parse the command {line}"))?;
        let replies = replies.clone();
        tokio::spawn(async move {
            let reply = client::run(call).await;
            let _ = replies.send(reply).await;
        });
    }
    Ok(())
}
