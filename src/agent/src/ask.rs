//! The small commands: `wait` and `request`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::{Method, Uri};

use crate::args::{RequestArgs, WaitArgs};
use crate::http_client::Ask;

/// Waits until the URL answers 200.
///
/// # Errors
/// The URL is none, or does not answer so in time.
pub(crate) async fn wait(args: &WaitArgs) -> Result<ExitCode> {
    let url: Uri = args.url.parse().with_context(|| format!("--url: {:?}", args.url))?;
    ensure!(url.scheme_str() == Some("http"), "--url: {:?} is not plain HTTP", args.url);
    let host = url.host().context("--url has no host")?;
    let (port, path) = (url.port_u16().unwrap_or(80), url.path_and_query().map_or("/", |path| path.as_str()));
    let deadline = Instant::now() + Duration::from_secs(args.timeout_seconds);
    loop {
        let timeout = Duration::from_millis(args.request_timeout_millis);
        let answer = Ask { timeout, ..Ask::new(Method::GET, host, port, path) }.send().await;
        let reason = match answer {
            Ok((status, _, _)) if status == http::StatusCode::OK => return Ok(ExitCode::SUCCESS),
            Ok((status, _, _)) => format!("it answers {status}"),
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() >= deadline {
            bail!("{} is not ready after {} seconds: {reason}", args.url, args.timeout_seconds);
        }
        tokio::time::sleep(Duration::from_millis(args.period_millis)).await;
    }
}

/// Asks Envoy's admin interface and prints what it says.
///
/// # Errors
/// It does not answer.
pub(crate) async fn request(args: &RequestArgs) -> Result<ExitCode> {
    let host = args.admin.ip().to_string();
    let path = format!("/{}", args.path.trim_start_matches('/'));
    let ask = Ask::new(args.method.clone(), &host, args.admin.port(), &path);
    let (status, _, body) = ask.send().await.with_context(|| format!("ask Envoy at {}", args.admin))?;
    print(&String::from_utf8_lossy(&body));
    ensure!(status.is_success(), "Envoy answers {status}");
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "that is what the commands are for")]
pub(crate) fn print(text: &str) {
    println!("{text}");
}
