//! `/console`: pages for browsers, rendered on the server from what the debug pages show. Nothing is computed until a page is requested.
//!
//! Access is that of the debug pages for callers that may see everything. The pages load nothing from other hosts and have no
//! inline scripts, as their Content-Security-Policy says.

mod changes;
mod collections;
mod findings;
mod layout;
mod overview;
mod proxies;
mod resource;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::middleware::{Next, map_response};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::AdminState;

/// Only what this server has, no inline scripts, no frames.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                                       img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The pages, without access control.
pub(crate) fn router(state: Arc<AdminState>) -> Router {
    Router::new()
        .route("/console", get(overview::serve))
        .route("/console/proxies", get(proxies::list))
        .route("/console/proxies/{proxy}", get(resource::list))
        .route("/console/proxies/{proxy}/{kind}", get(resource::serve))
        .route("/console/changes", get(changes::serve))
        .route("/console/findings", get(findings::serve))
        .route("/console/collections", get(collections::list))
        .route("/console/collections/{name}", get(collections::records))
        .route("/console/assets/style.css", get(style))
        .route("/console/assets/live.js", get(script))
        .layer(map_response(with_security_headers))
        .layer(axum::middleware::from_fn(without_other_sites))
        .with_state(state)
}

async fn style() -> Response<Body> {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("console/style.css")).into_response()
}

async fn script() -> Response<Body> {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("console/live.js")).into_response()
}

/// Rejects what a page of another site embeds or fetches. Its links to the console work.
async fn without_other_sites(request: Request, next: Next) -> Response<Body> {
    if is_embedded_by_other_site(request.headers()) {
        return crate::answer::fail(StatusCode::FORBIDDEN, "requests from other origins are rejected");
    }
    next.run(request).await
}

fn is_embedded_by_other_site(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    is("sec-fetch-site", "cross-site") && !is("sec-fetch-mode", "navigate")
}

async fn with_security_headers(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Computes a page on a blocking thread, because it may wait for the dataflow thread.
async fn blocking<T: IntoResponse + Send + 'static>(
    state: Arc<AdminState>,
    render: impl FnOnce(&AdminState) -> T + Send + 'static,
) -> Response<Body> {
    match tokio::task::spawn_blocking(move || render(&state)).await {
        Ok(page) => page.into_response(),
        Err(error) => {
            layout::failed(StatusCode::INTERNAL_SERVER_ERROR, &format!("the page cannot be rendered: {error}"))
        }
    }
}
