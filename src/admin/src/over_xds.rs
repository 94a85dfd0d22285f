//! The debug pages over xDS, as `istioctl` requests them (O09).

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use serde_json::json;
use sluice_auth::Viewer;
use sluice_model::Identity;
use tower::ServiceExt;

use crate::version::BUILD;
use crate::{AdminState, config_dump, debug};
use sluice_xds::{DEBUG_TYPE, DebugPages, DebugRequest, NamedResource};
use sluice_xds_protocol::StreamError;

/// Answers requests with the content of the pages over HTTP.
pub struct PagesOverXds {
    state: Arc<AdminState>,
    pages: Router,
}

impl PagesOverXds {
    /// The pages over this state.
    #[must_use]
    pub fn new(state: Arc<AdminState>) -> Self {
        Self { pages: debug::open_router(state.clone()), state }
    }
}

impl DebugPages for PagesOverXds {
    fn viewer(&self, identity: &Identity) -> Option<Viewer> {
        self.state.viewer(std::slice::from_ref(identity))
    }

    fn identifier(&self) -> String {
        json!({"Component": "istiod", "ID": self.state.options.pod_name.as_str(), "Info": BUILD}).to_string()
    }

    fn answer(
        &self,
        request: DebugRequest,
        viewer: Viewer,
    ) -> BoxFuture<'static, Result<Vec<NamedResource>, StreamError>> {
        let (state, pages) = (self.state.clone(), self.pages.clone());
        Box::pin(async move {
            match request {
                DebugRequest::Page(page) => page_of(pages, page, viewer).await.map(|page| vec![page]),
                DebugRequest::Sync => Ok(state.status.client_configs(&viewer)),
                DebugRequest::Dump(proxy) => Ok(dump(&state, &proxy, &viewer)),
                DebugRequest::Unknown => Ok(Vec::new()),
            }
        })
    }
}

async fn page_of(pages: Router, page: String, viewer: Viewer) -> Result<NamedResource, StreamError> {
    let name = page.split_once('?').map_or(page.as_str(), |(name, _)| name);
    if !viewer.may_open(name) {
        return Err(StreamError::Denied(format!(
            "the debug page {name:?} is not for service accounts of your namespace"
        )));
    }
    let request = Request::get(format!("/debug/{page}")).extension(viewer).body(Body::empty());
    let request = request.map_err(|_| StreamError::Invalid(format!("{page:?} is not a debug page")))?;
    let Ok(response) = pages.oneshot(request).await;
    let status = response.status();
    let mut body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if status == StatusCode::NOT_FOUND && body.is_empty() {
        // For this text, istioctl requests and prints the list of the pages.
        body = Bytes::from_static(b"404 page not found\n");
    }
    Ok(NamedResource { name: page, type_url: DEBUG_TYPE.to_owned(), bytes: body })
}

fn dump(state: &AdminState, proxy: &str, viewer: &Viewer) -> Vec<NamedResource> {
    let parts = config_dump::parts(state, proxy, viewer).unwrap_or_default();
    let encoded = parts.iter().filter_map(|part| sluice_proto::json::decode_any(part).ok());
    encoded
        .map(|decoded| {
            let (type_url, bytes) = decoded.message;
            NamedResource { name: String::new(), type_url, bytes: Bytes::from(bytes) }
        })
        .collect()
}
