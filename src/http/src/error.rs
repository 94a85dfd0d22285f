//! Errors of requests.

use std::error::Error;
use std::io;
use std::time::Duration;

use http::StatusCode;

/// The reason why a request has no usable response, or why a client cannot be created.
///
/// No error text contains the URL's user, password, query or fragment.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The client cannot be created.
    #[error("set up the HTTP client: {0}")]
    Setup(String),
    /// The URL cannot be requested.
    #[error("{0}")]
    Url(String),
    /// The host's address must not be connected to.
    #[error("connect to {host}: {reason}")]
    BlockedAddress {
        /// The host of the URL.
        host: String,
        /// Which address is blocked, and why.
        reason: String,
    },
    /// The URL needs TLS, and there are no root certificates to verify the server with.
    #[error("no root certificates to verify the server with")]
    NoRoots,
    /// A redirect leaves TLS.
    #[error("redirect from TLS to plaintext is refused")]
    PlaintextRedirect,
    /// There are more redirects than the limit.
    #[error("more than {0} redirects")]
    TooManyRedirects(usize),
    /// The TCP connection or the TLS handshake fails.
    #[error("connect to {host}: {reason}")]
    Connect {
        /// Host and port.
        host: String,
        /// The cause.
        reason: String,
        /// The kind of the I/O error, if it is one.
        kind: Option<io::ErrorKind>,
    },
    /// The exchange fails after the connection is made.
    #[error("exchange HTTP: {0}")]
    Exchange(String),
    /// The response body exceeds the limit of the request.
    #[error("the response body exceeds the limit of {0} bytes")]
    BodyTooLong(usize),
    /// The request requires success, and the response has another status.
    #[error("the response has status {0}")]
    Status(StatusCode),
    /// The response does not arrive in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
}

impl HttpError {
    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Exchange(_) | Self::Timeout(_) => true,
            Self::Status(status) => status.is_server_error(),
            _ => false,
        }
    }

    /// Whether the connection's source address does not exist on this machine.
    #[must_use]
    pub fn is_source_address_unavailable(&self) -> bool {
        matches!(self, Self::Connect { kind: Some(io::ErrorKind::AddrNotAvailable), .. })
    }
}

/// A refusal of the DNS resolver or the redirect policy, which `reqwest` wraps.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{reason}")]
    BlockedAddress { host: String, reason: String },
    #[error("no root certificates")]
    NoRoots,
    #[error("redirect to plaintext")]
    PlaintextRedirect,
    #[error("scheme {0:?} is not accepted")]
    Scheme(String),
    #[error("too many redirects")]
    TooManyRedirects(usize),
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::BlockedAddress { host, reason } => Self::BlockedAddress { host, reason },
            Refusal::NoRoots => Self::NoRoots,
            Refusal::PlaintextRedirect => Self::PlaintextRedirect,
            Refusal::Scheme(_) => Self::Url(refusal.to_string()),
            Refusal::TooManyRedirects(limit) => Self::TooManyRedirects(limit),
        }
    }
}

impl HttpError {
    /// From an error of `reqwest` for a new client.
    pub(crate) fn setup(error: &reqwest::Error) -> Self {
        let mut root: &(dyn Error + 'static) = error;
        while let Some(cause) = next_cause(root) {
            root = cause;
        }
        Self::Setup(root.to_string())
    }

    /// From an error of `reqwest` for a request to `host`.
    pub(crate) fn from_reqwest(error: &reqwest::Error, host: &str) -> Self {
        let mut root: &(dyn Error + 'static) = error;
        let mut kind = None;
        let mut refusal = None;
        loop {
            if let Some(io) = root.downcast_ref::<io::Error>() {
                kind = Some(io.kind());
            }
            refusal = refusal.or_else(|| root.downcast_ref::<Refusal>().cloned());
            match next_cause(root) {
                Some(source) => root = source,
                None => break,
            }
        }
        if let Some(refusal) = refusal {
            return refusal.into();
        }
        // The texts of errors of `reqwest` contain the URL; those of the root causes do not.
        let reason = match root.downcast_ref::<reqwest::Error>() {
            Some(_) if error.is_redirect() => "the redirect is malformed".to_owned(),
            Some(_) if error.is_builder() => "the URL or a header is malformed".to_owned(),
            Some(_) => "the connection failed".to_owned(),
            None => root.to_string(),
        };
        if error.is_connect() {
            Self::Connect { host: host.to_owned(), reason, kind }
        } else if error.is_builder() || error.is_redirect() {
            Self::Url(reason)
        } else {
            Self::Exchange(reason)
        }
    }
}

/// The cause of an error. `io::Error::source` skips the wrapped error and returns its cause.
fn next_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return Some(inner);
    }
    error.source()
}
