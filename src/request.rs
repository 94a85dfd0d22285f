//! The subcommand `request`.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sluice_config::{ListenAddress, RequestArgs};
use sluice_http_client::{HttpClient, HttpClientOptions, HttpRequest, Url};

/// Time limit of a request, as in istiod.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Limit on the size of a response. The pages of a large mesh are some hundred MiB.
const MAX_BODY_BYTES: usize = 1 << 30;

/// Sends a request to the HTTP port, and prints the response body. The exit code is 1 if its status is not a success.
pub(crate) fn run(http_address: &str, args: &RequestArgs) -> ExitCode {
    match send(http_address, args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluiced: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn send(http_address: &str, args: &RequestArgs) -> Result<()> {
    let url = url(http_address, &args.path)?;
    let method = args.method.to_uppercase().parse();
    let method = method.with_context(|| format!("{:?} is not a method of HTTP", args.method))?;
    let body = args.body.clone().unwrap_or_default().into();
    let request =
        HttpRequest { method, body, timeout: TIMEOUT, max_body_bytes: MAX_BODY_BYTES, ..HttpRequest::get(url) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let response = runtime.block_on(async {
        let client = HttpClient::new(HttpClientOptions::default())?;
        client.send(request).await
    });
    let response = response.with_context(|| format!("request {}", args.path))?;
    // The reader may have closed it, as `head` does.
    let _ = std::io::stdout().write_all(&response.body);
    ensure!(response.status.is_success(), "the response to {} has status {}", args.path, response.status);
    Ok(())
}

/// The URL of a path on the address of the flag.
fn url(http_address: &str, path: &str) -> Result<Url> {
    let address = ListenAddress::parse(http_address).context("--httpAddr")?.context("--httpAddr is empty")?;
    let authority = match address.host() {
        "" | "0.0.0.0" | "::" => format!("127.0.0.1:{}", address.port()),
        _ => address.to_string(),
    };
    let url = format!("http://{authority}/{}", path.trim_start_matches('/'));
    url.parse().with_context(|| format!("{url} is not a URL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_of_all_addresses_becomes_the_loopback() {
        let url = |address: &str, path: &str| url(address, path).map(String::from).map_err(|error| error.to_string());
        assert_eq!(url(":8080", "debug/syncz").as_deref(), Ok("http://127.0.0.1:8080/debug/syncz"));
        assert_eq!(url("[::]:80", "/ready?a=b").as_deref(), Ok("http://127.0.0.1/ready?a=b"));
        assert_eq!(url("10.0.0.1:8080", "/").as_deref(), Ok("http://10.0.0.1:8080/"));
        assert!(url("", "/").is_err());
    }
}
