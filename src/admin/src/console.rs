//! `/console`: pages for browsers, rendered on the server from what the debug pages show. Nothing is computed until a page is requested.
//!
//! Access is that of the debug pages for callers that may see everything. A browser that is not on the loopback gets a session for a
//! token. The pages load nothing from other hosts and have no inline scripts, as their Content-Security-Policy says.

mod changes;
mod collections;
mod dataflow;
mod findings;
mod forms;
mod graph;
mod layout;
mod login;
mod mesh;
mod overview;
mod preview;
mod proxies;
mod resource;
mod timeline;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::middleware::map_response;
use axum::response::IntoResponse;
use axum::routing::{get, post};

pub(crate) use login::offer as offer_login;

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
        .route("/console/mesh", get(mesh::serve))
        .route("/console/changes", get(changes::serve))
        .route("/console/preview", preview::route())
        .route("/console/findings", get(findings::serve))
        .route("/console/collections", get(collections::list))
        .route("/console/collections/{name}", get(collections::records))
        .route("/console/dataflow", get(dataflow::serve))
        .route("/console/timeline", get(timeline::serve))
        .route("/console/assets/live.js", get(script))
        .layer(map_response(with_security_headers))
        .with_state(state)
}

/// The pages for all callers: they show nothing of the mesh.
pub(crate) fn open_router(state: Arc<AdminState>) -> Router {
    Router::new()
        .route(login::PATH, get(login::serve).post(login::log_in))
        .route("/console/logout", post(login::log_out))
        .route("/console/assets/style.css", get(style))
        .layer(map_response(with_security_headers))
        .with_state(state)
}

async fn style() -> Response<Body> {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("console/style.css")).into_response()
}

async fn script() -> Response<Body> {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("console/live.js")).into_response()
}

async fn with_security_headers(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With "no-referrer", a browser does not state the origin of a form.
        (header::REFERRER_POLICY, "same-origin"),
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
