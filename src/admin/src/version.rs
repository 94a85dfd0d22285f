//! The version of this build, as `istioctl version` reads it (O07, I05).

use std::fmt;

use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Information about the build.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Build {
    version: &'static str,
    /// The commit of the source, if the build was told: variable `SLUICE_REVISION` of the build.
    revision: &'static str,
    /// istioctl prints it; there is no Go here.
    golang_version: &'static str,
    /// `Clean` or `Modified` in istiod. A build here does not know.
    status: &'static str,
    pub(crate) tag: &'static str,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// This build.
pub(crate) const BUILD: Build = Build {
    version: VERSION,
    revision: match option_env!("SLUICE_REVISION") {
        Some(revision) => revision,
        None => "unknown",
    },
    golang_version: "",
    status: "unknown",
    tag: VERSION,
};

impl fmt::Display for Build {
    /// `VERSION-REVISION-STATUS`. istioctl takes the last two parts off, whatever the version contains.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.version, self.revision, self.status)
    }
}

pub(crate) async fn serve() -> String {
    BUILD.to_string()
}

/// Redirects a path with repeated slashes to the same path without them: istioctl requests `//version` and
/// `//debug/clusterz`. All other paths are not found.
pub(crate) async fn without_repeated_slashes(uri: Uri) -> Response {
    let path = uri.path();
    if !path.contains("//") {
        return StatusCode::NOT_FOUND.into_response();
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, format!("/{}{query}", parts.join("/")))]).into_response()
}
