//! The connection to a running control plane: its debug pages over HTTP.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::header::{AUTHORIZATION, HeaderValue};
use serde_json::Value;
use sluice_http_client::{HttpClient, HttpClientOptions, HttpError, HttpRequest, Url};

/// The command line or the question is invalid.
pub(crate) const EXIT_INVALID: u8 = 2;
/// The server cannot be reached, or does not answer the caller.
pub(crate) const EXIT_UNREACHABLE: u8 = 3;

/// Time limit of a question. The answer takes less than a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the size of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Flags about the server.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// Address of the HTTP port of sluiced. A port-forward to port 8080 of its pod makes it available on localhost.
    #[arg(long, value_name = "URL", default_value = "http://localhost:8080", help_heading = "Server")]
    pub(crate) address: String,
    /// File with a token of a service account in the namespace of the control plane. It is needed for addresses other than
    /// those of the loopback.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) token_file: Option<PathBuf>,
}

/// A question that is not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// The flags are invalid.
    #[error("{0}")]
    Flags(String),
    /// There is no response.
    #[error(
        "{address}: {error}; --address is the address of the HTTP port of sluiced, for example of `kubectl -n istio-system port-forward deploy/istiod 8080`"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What failed.
        error: HttpError,
    },
    /// The server refuses the question.
    #[error("{address}: status {status}: {text}")]
    Refused {
        /// The address.
        address: String,
        /// The status of the response.
        status: u16,
        /// The reason that the server gives.
        text: String,
    },
    /// The question is malformed.
    #[error("{0}")]
    Invalid(String),
    /// What the question names does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The response is not what this version expects.
    #[error("the server's response is not understood: {0}; the versions of sluicectl and sluiced may differ")]
    Response(String),
}

impl QueryError {
    /// The exit code: `not_found` if what the question names does not exist.
    pub(crate) fn exit_code(&self, not_found: u8) -> u8 {
        match self {
            Self::Flags(_) | Self::Invalid(_) => EXIT_INVALID,
            Self::Unreachable { .. } | Self::Refused { .. } | Self::Response(_) => EXIT_UNREACHABLE,
            Self::NotFound(_) => not_found,
        }
    }
}

/// A server whose debug pages are read.
pub(crate) struct Server {
    address: Url,
    authorization: Option<HeaderValue>,
    client: HttpClient,
    runtime: tokio::runtime::Runtime,
}

/// Prepares requests to the server of these flags. No request is sent yet.
pub(crate) fn connect(args: &ServerArgs) -> Result<Server, QueryError> {
    let invalid = |error: &dyn std::fmt::Display| QueryError::Flags(format!("--address {:?}: {error}", args.address));
    let text = if args.address.contains("://") { args.address.clone() } else { format!("http://{}", args.address) };
    let address = Url::parse(&text).map_err(|error| invalid(&error))?;
    if address.scheme() != "http" || !address.has_host() {
        return Err(invalid(&"an address has the form http://HOST:PORT"));
    }
    let authorization = args.token_file.as_ref().map(|path| {
        let failed =
            |error: &dyn std::fmt::Display| QueryError::Flags(format!("--token-file {}: {error}", path.display()));
        let token = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        let mut header = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|error| failed(&error))?;
        header.set_sensitive(true);
        Ok(header)
    });
    let setup = |error: &dyn std::fmt::Display| QueryError::Flags(format!("the HTTP client cannot be set up: {error}"));
    let client = HttpClient::new(HttpClientOptions { user_agent: "sluicectl", ..HttpClientOptions::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(Server {
        address,
        authorization: authorization.transpose()?,
        client: client.map_err(|error| setup(&error))?,
        runtime: runtime.map_err(|error| setup(&error))?,
    })
}

/// Parameters of a page. Empty ones are not sent.
pub(crate) type Parameters<'a> = [(&'a str, &'a str)];

impl Server {
    /// The answer of a page.
    pub(crate) fn get(&self, page: &str, parameters: &Parameters<'_>) -> Result<Value, QueryError> {
        let mut body = Vec::new();
        self.receive(page, parameters, ANSWER_TIMEOUT, &mut |chunk| body.extend_from_slice(chunk))?;
        serde_json::from_slice(&body).map_err(|error| QueryError::Response(error.to_string()))
    }

    /// Reads a page of lines, each a JSON value, as they arrive.
    pub(crate) fn lines(
        &self,
        page: &str,
        parameters: &Parameters<'_>,
        timeout: Duration,
        on_line: &mut (dyn FnMut(Value) + Send),
    ) -> Result<(), QueryError> {
        let (mut rest, mut failed) = (Vec::new(), None);
        self.receive(page, parameters, timeout, &mut |chunk| {
            rest.extend_from_slice(chunk);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(value) => on_line(value),
                    Err(error) => failed = Some(error.to_string()),
                }
            }
        })?;
        failed.map_or(Ok(()), |error| Err(QueryError::Response(error)))
    }

    fn receive(
        &self,
        page: &str,
        parameters: &Parameters<'_>,
        timeout: Duration,
        on_chunk: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), QueryError> {
        let mut url = self.address.clone();
        url.set_path(&format!("/debug/{page}"));
        {
            let mut query = url.query_pairs_mut();
            query.clear();
            query.extend_pairs(parameters.iter().filter(|(_, value)| !value.is_empty()));
        }
        let mut request = HttpRequest { timeout, max_body_bytes: MAX_ANSWER_BYTES, ..HttpRequest::get(url) };
        request.headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
        let mut refusal = Vec::new();
        let mut is_success = None;
        let received = self.runtime.block_on(self.client.receive(request, &mut |status, chunk| {
            is_success = Some(status.is_success());
            if status.is_success() { on_chunk(chunk) } else { refusal.extend_from_slice(chunk) }
        }));
        let address = || self.address.to_string().trim_end_matches('/').to_owned();
        let status = received.map_err(|error| QueryError::Unreachable { address: address(), error })?;
        let text = String::from_utf8_lossy(&refusal).trim().to_owned();
        match status.as_u16() {
            _ if status.is_success() => Ok(()),
            400 => Err(QueryError::Invalid(text)),
            404 if !text.is_empty() => Err(QueryError::NotFound(text)),
            404 => Err(QueryError::Response(format!("{} has no page /debug/{page}", address()))),
            status => Err(QueryError::Refused { address: address(), status, text }),
        }
    }
}

/// A duration as a parameter.
pub(crate) fn seconds(duration: Duration) -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = write!(text, "{}", duration.as_secs_f64());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(address: &str) -> ServerArgs {
        ServerArgs { address: address.to_owned(), token_file: None }
    }

    #[test]
    fn addresses_are_http_with_a_host() {
        for address in ["http://localhost:8080", "localhost:8080", "http://[::1]:8080", "10.0.0.1:8080"] {
            assert!(connect(&flags(address)).is_ok(), "{address}");
        }
        for address in ["https://localhost:8080", "ftp://a", "http://", ""] {
            let error = connect(&flags(address)).err().expect("invalid");
            assert_eq!(error.exit_code(1), EXIT_INVALID, "{address}");
            assert!(error.to_string().starts_with("--address"), "{error}");
        }
    }

    #[test]
    fn unreachable_server_is_named_with_a_hint() {
        let server = connect(&flags("http://127.0.0.1:1")).expect("valid flags");
        let error = server.get("why", &[]).expect_err("no server");
        assert_eq!(error.exit_code(1), EXIT_UNREACHABLE);
        let text = error.to_string();
        assert!(text.starts_with("http://127.0.0.1:1: ") && text.contains("port-forward"), "{text}");
    }
}
