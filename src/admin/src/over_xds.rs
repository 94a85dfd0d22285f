//! The debug pages over xDS, as `istioctl` requests them (O09).

mod page_limits;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::json;
use sluice_auth::Viewer;
use sluice_model::Identity;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::version::BUILD;
use crate::{AdminState, config_dump, debug};
use page_limits::PageLimits;
use sluice_xds::{DEBUG_TYPE, DebugPages, DebugRequest, NamedResource};
use sluice_xds_protocol::StreamError;

/// Pages that wait for something else than the server. Others are built meanwhile.
const WAITING_PAGES: [&str; 3] = ["pprof/profile", "record", "wait"];

/// Answers requests with the content of the pages over HTTP.
pub struct PagesOverXds {
    state: Arc<AdminState>,
    pages: Router,
    limits_of_operators: PageLimits,
    /// Those of callers that see only their namespace, which cannot use up the limits of operators.
    limits_of_namespaces: PageLimits,
}

impl PagesOverXds {
    /// The pages over this state.
    #[must_use]
    pub fn new(state: Arc<AdminState>) -> Self {
        Self {
            pages: debug::open_router(state.clone()),
            state,
            limits_of_operators: PageLimits::default(),
            limits_of_namespaces: PageLimits::default(),
        }
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
        let limits = match viewer {
            Viewer::All => self.limits_of_operators.clone(),
            Viewer::Namespace(_) => self.limits_of_namespaces.clone(),
        };
        Box::pin(async move {
            // The task runs while the stream is not polled, because other pages wait for it. It ends with the stream.
            let mut task = JoinSet::new();
            task.spawn(build(state, pages, limits, request, viewer));
            let built = task.join_next().await.and_then(Result::ok);
            built.unwrap_or_else(|| Err(StreamError::Unavailable("building the debug page panicked".to_owned())))
        })
    }
}

async fn build(
    state: Arc<AdminState>,
    pages: Router,
    limits: PageLimits,
    request: DebugRequest,
    viewer: Viewer,
) -> Result<Vec<NamedResource>, StreamError> {
    match request {
        DebugRequest::Page(page) => page_of(pages, &limits, page, viewer).await,
        DebugRequest::Sync => sync_status(&state, &limits, &viewer).await,
        DebugRequest::Dump(proxy) => dump(&state, &limits, &proxy, &viewer).await,
        DebugRequest::Unknown => Ok(Vec::new()),
    }
}

async fn page_of(
    pages: Router,
    limits: &PageLimits,
    page: String,
    viewer: Viewer,
) -> Result<Vec<NamedResource>, StreamError> {
    let name = page.split_once('?').map_or(page.as_str(), |(name, _)| name);
    if !viewer.may_open(name) {
        return Err(StreamError::Denied(format!(
            "the debug page {name:?} is not for service accounts of your namespace"
        )));
    }
    let request = Request::get(format!("/debug/{page}")).extension(viewer).body(Body::empty());
    let request = request.map_err(|_| StreamError::Invalid(format!("{page:?} is not a debug page")))?;
    let _turn = if WAITING_PAGES.contains(&name) { None } else { limits.turn().await };
    let mut counted = limits.page(name);
    let Ok(response) = pages.oneshot(request).await;
    let status = response.status();
    let mut body = counted.collect(response.into_body()).await?;
    if status == StatusCode::NOT_FOUND && body.is_empty() {
        // For this text, istioctl requests and prints the list of the pages.
        body = Bytes::from_static(b"404 page not found\n");
    }
    Ok(counted.finish(vec![NamedResource { name: page, type_url: DEBUG_TYPE.to_owned(), bytes: body }]))
}

async fn sync_status(
    state: &AdminState,
    limits: &PageLimits,
    viewer: &Viewer,
) -> Result<Vec<NamedResource>, StreamError> {
    let _turn = limits.turn().await;
    let mut counted = limits.page("syncz");
    let configs = state.status.client_configs(viewer);
    counted.add(configs.iter().map(|config| config.bytes.len()).sum()).await?;
    Ok(counted.finish(configs))
}

async fn dump(
    state: &AdminState,
    limits: &PageLimits,
    proxy: &str,
    viewer: &Viewer,
) -> Result<Vec<NamedResource>, StreamError> {
    let _turn = limits.turn().await;
    let mut counted = limits.page("config_dump");
    let mut resources = Vec::new();
    for part in config_dump::parts(state, proxy, viewer).unwrap_or_default() {
        let decoded = sluice_proto::json::decode_any(&part).map(|decoded| decoded.message);
        let Ok((type_url, bytes)) = decoded else { continue };
        counted.add(bytes.len()).await?;
        resources.push(NamedResource { name: String::new(), type_url, bytes: Bytes::from(bytes) });
    }
    Ok(counted.finish(resources))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::routing::get;
    use futures::future::{join_all, pending};

    use super::*;

    #[tokio::test]
    async fn one_page_is_built_at_a_time_and_those_that_wait_delay_no_other() {
        let (building, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (now, highest) = (building.clone(), most.clone());
        let page = async move || {
            highest.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::SeqCst);
            "a page"
        };
        let pages = Router::new().route("/debug/syncz", get(page)).route("/debug/wait", get(pending::<String>));
        let limits = PageLimits::default();
        let request = |page: &str| page_of(pages.clone(), &limits, page.to_owned(), Viewer::All);
        let built = async {
            tokio::select! {
                biased;
                _ = request("wait?object=a") => panic!("the page waits"),
                built = join_all((0..5).map(|_| request("syncz"))) => built,
            }
        };
        let built = tokio::time::timeout(Duration::from_secs(30), built).await.expect("the pages do not wait");
        for page in built {
            let page = page.expect("a page");
            assert_eq!((page.len(), &page[0].bytes[..]), (1, &b"a page"[..]));
        }
        assert_eq!((most.load(Ordering::SeqCst), building.load(Ordering::SeqCst)), (1, 0));
    }
}
