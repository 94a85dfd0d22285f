//! One HTTP client for everything that Sluice fetches: key sets of token issuers, trust bundles, Wasm modules, container
//! registries, Envoy's admin interface and probes of the application.
//!
//! It is `reqwest` with the limits that a control plane needs:
//! - A request has a timeout and a limit on the size of the response body.
//! - Addresses that are blocked ([`sluice_parse::forbidden_address`]) are never connected to. The check is made on the
//!   resolved address that is connected to, so a DNS name cannot hide one.
//! - Redirects are limited. They never leave TLS unless the options allow it, and credentials stay with their origin.
//! - One connection a request, HTTP/1.1, no proxy from the environment.

mod client;
mod error;
mod resolver;

pub use client::{HttpClient, HttpClientOptions, HttpRequest, HttpResponse, LongBody, PlaintextPolicy};
pub use error::HttpError;

/// URLs as requests take them.
pub use reqwest::Url;

#[cfg(test)]
mod tests;
