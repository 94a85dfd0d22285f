//! The subcommands `wait` and `request`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use std::io::Write as _;

use anyhow::{Context, Result, bail, ensure};
use sluice_http_client::{HttpRequest, Url};

use crate::args::{RequestArgs, WaitArgs};
use crate::local_http;

/// Waits until the URL responds with status 200.
///
/// # Errors
/// The URL is malformed, or it does not respond with 200 before the timeout.
pub(crate) async fn wait(args: &WaitArgs) -> Result<ExitCode> {
    let url: Url = args.url.parse().with_context(|| format!("--url: {:?} is not a URL", args.url))?;
    ensure!(url.scheme() == "http", "--url: {:?} is not a URL of plain HTTP", args.url);
    ensure!(url.has_host(), "--url: {:?} has no host", args.url);
    let client = local_http::client(None)?;
    let request = HttpRequest { timeout: Duration::from_millis(args.request_timeout_millis), ..HttpRequest::get(url) };
    let deadline = Instant::now() + Duration::from_secs(args.timeout_seconds);
    loop {
        let reason = match client.send(request.clone()).await {
            Ok(response) if response.status == http::StatusCode::OK => return Ok(ExitCode::SUCCESS),
            Ok(response) => format!("the response has status {}", response.status),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= deadline {
            bail!("{} is not ready after {} seconds: {reason}", args.url, args.timeout_seconds);
        }
        tokio::time::sleep(Duration::from_millis(args.period_millis)).await;
    }
}

/// Sends a request to Envoy's admin interface and prints the response body.
///
/// # Errors
/// There is no response, or its status is not a success.
pub(crate) async fn request(args: &RequestArgs) -> Result<ExitCode> {
    let host = args.admin.ip().to_string();
    let path = format!("/{}", args.path.trim_start_matches('/'));
    let request = local_http::get("http", &host, args.admin.port(), &path)?;
    let request = HttpRequest { method: args.method.clone(), ..request };
    let response = local_http::client(None)?.send(request).await;
    let response = response.with_context(|| format!("request Envoy's admin interface at {}", args.admin))?;
    print(&String::from_utf8_lossy(&response.body));
    ensure!(response.status.is_success(), "Envoy's admin interface responds with status {}", response.status);
    Ok(ExitCode::SUCCESS)
}

/// Prints the result of a subcommand.
pub(crate) fn print(text: &str) {
    // The reader may have closed it, as `head` does.
    let _ = writeln!(std::io::stdout(), "{text}");
}
