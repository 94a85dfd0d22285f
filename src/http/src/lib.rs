//! One HTTP client for everything that Sluice fetches: key sets of token issuers, trust bundles, Wasm modules, container
//! registries, Envoy's admin interface and probes of the application.
//!
//! It is `reqwest` with the limits that a control plane needs:
//! - A request has a timeout and a limit on the size of the response body.
//! - The client never connects to blocked addresses ([`sluice_parse::forbidden_address`]). The check uses the
//!   resolved address of the connection, so a DNS name cannot hide a blocked address.
//! - Redirects are limited. They never leave TLS unless the options allow it, and credentials stay with their origin:
//!   scheme, host and port.
//! - Each request has a separate connection, with HTTP/1.1 and without a proxy from the environment.

mod client;
mod error;
mod resolver;

pub use client::{HttpClient, HttpClientOptions, HttpRequest, HttpResponse, LongBody, PlaintextPolicy};
pub use error::HttpError;

/// The URL type of requests.
pub use reqwest::Url;

#[cfg(test)]
mod tests;
