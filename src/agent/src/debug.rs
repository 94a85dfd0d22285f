//! Debug pages of the control plane for clients on this machine (D04), by default at `localhost:15004`.
//!
//! An HTTP request becomes an xDS request on a separate stream, authenticated as the proxy. The pages show what the control
//! plane allows for the proxy's identity, and a rejected request does not end Envoy's stream.
//!
//! | path | xDS request | response |
//! |---|---|---|
//! | `/debug/syncz` | type `istio.io/debug/syncz`: synchronization of proxies | the response as JSON |
//! | `/debug/config_dump?resourceName=POD.NAMESPACE` | type `istio.io/debug/config_dump`: configuration of a proxy | the response as JSON |
//! | `/debug?resourceName=PAGE`, `/debug/PAGE?..` | type `istio.io/debug`: a page with its parameters | the page unchanged |

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prost::Message as _;
use serde_json::{Value, json};
use sluice_listen::{BodyLimits, ListenMetrics, Listener, serve_http};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Extensions, Request, Status};
use tracing::{info, warn};

use crate::codec::Raw;
use crate::connection;
use crate::ports;
use crate::serving::keep_serving;
use crate::settings::Upstream;
use crate::xds;

/// Type of requests that name a page with its parameters.
const PAGE_TYPE: &str = "istio.io/debug";
/// Time limit of a request to the control plane.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of the control plane's debug pages.
#[derive(Clone, Debug)]
pub(crate) struct DebugProxy {
    pub(crate) upstream: Upstream,
    /// The proxy's node id.
    pub(crate) node: String,
}

/// Serves on the loopback until the process ends. The pages are optional: a port in use is a warning.
pub(crate) async fn serve(proxy: DebugProxy, loopback: IpAddr, port: u16, metrics: ListenMetrics) {
    let address = SocketAddr::new(loopback, port);
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => return warn!(target: "debug", %address, %error, "failed to listen for debug pages"),
    };
    info!(target: "debug", %address, "listening");
    let handler = get(serve_page).post(serve_page);
    let router = Router::new().route("/debug", handler.clone()).route("/debug/{*page}", handler);
    let router = router.with_state(Arc::new(proxy));
    keep_serving(
        "debug pages",
        listener,
        move || TcpListener::bind(address),
        move |listener| {
            let listener = Listener::new(listener, ports::options("debug", metrics.clone()));
            let serving = serve_http(listener, router.clone(), BodyLimits::default(), CancellationToken::new());
            async move {
                serving.await;
                Ok(())
            }
        },
    );
}

async fn serve_page(State(proxy): State<Arc<DebugProxy>>, uri: Uri, RawQuery(query): RawQuery) -> Response {
    let request = PageRequest::new(uri.path(), query.as_deref().unwrap_or_default());
    match tokio::time::timeout(REQUEST_TIMEOUT, proxy.fetch(&request)).await {
        Ok(Ok(response)) => to_http(response),
        Ok(Err(status)) => {
            let (type_url, code, reason) = (&request.type_url, status.code(), status.message());
            info!(target: "debug", type_url, ?code, reason, "request for a debug page failed");
            let code = match status.code() {
                Code::InvalidArgument => StatusCode::BAD_REQUEST,
                Code::PermissionDenied => StatusCode::FORBIDDEN,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            (code, format!("{}\n", status.message())).into_response()
        }
        Err(_) => {
            info!(target: "debug", type_url = request.type_url, "request for a debug page timed out");
            let reason = format!("the control plane did not respond within {} s\n", REQUEST_TIMEOUT.as_secs());
            (StatusCode::GATEWAY_TIMEOUT, reason).into_response()
        }
    }
}

/// The xDS request for a page.
#[derive(Debug, Eq, PartialEq)]
struct PageRequest {
    type_url: String,
    names: Vec<String>,
}

impl PageRequest {
    fn new(path: &str, query: &str) -> Self {
        let page = path.strip_prefix("/debug").unwrap_or_default().trim_matches('/');
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let named = pairs.find(|(name, _)| name == "resourceName").map(|(_, value)| value.into_owned());
        // These have their own types; with other parameters they are pages.
        if page.is_empty() || page == "syncz" || (page == "config_dump" && named.is_some()) {
            let type_url = if page.is_empty() { PAGE_TYPE.to_owned() } else { format!("{PAGE_TYPE}/{page}") };
            return Self { type_url, names: named.into_iter().collect() };
        }
        let name = if query.is_empty() { page.to_owned() } else { format!("{page}?{query}") };
        Self { type_url: PAGE_TYPE.to_owned(), names: vec![name] }
    }
}

impl DebugProxy {
    async fn fetch(&self, page: &PageRequest) -> Result<DiscoveryResponse, Status> {
        let unavailable = |error: anyhow::Error| Status::unavailable(format!("{error:#}"));
        let metadata = connection::metadata(&self.upstream).map_err(unavailable)?;
        let mut client = connection::connect(&self.upstream).await.map_err(unavailable)?;
        client.ready().await.map_err(|error| unavailable(error.into()))?;
        let request = DiscoveryRequest {
            node: Some(Node { id: self.node.clone(), ..Default::default() }),
            type_url: page.type_url.clone(),
            resource_names: page.names.clone(),
            ..Default::default()
        };
        // The stream stays open until the response arrives.
        let requests = futures::StreamExt::chain(
            futures::stream::iter([request.encode_to_vec().into()]),
            futures::stream::pending(),
        );
        let request = Request::from_parts(metadata, Extensions::default(), requests);
        let mut responses =
            client.streaming(request, http::uri::PathAndQuery::from_static(xds::SOTW), Raw).await?.into_inner();
        match responses.message().await? {
            Some(response) => {
                DiscoveryResponse::decode(response).map_err(|_| Status::unavailable("the response is malformed"))
            }
            None => Err(Status::unavailable("the control plane closed the stream")),
        }
    }
}

/// A page unchanged, or a discovery response as JSON.
fn to_http(response: DiscoveryResponse) -> Response {
    if let [page] = response.resources.as_slice()
        && page.type_url == PAGE_TYPE
    {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&page.value).is_ok();
        let content_type = if is_json { "application/json" } else { "text/plain; charset=utf-8" };
        return ([(header::CONTENT_TYPE, content_type)], page.value.clone()).into_response();
    }
    let resource =
        |any: &sluice_proto::google::protobuf::Any| sluice_proto::json::encode_any(&any.type_url, &any.value);
    let resources: Vec<Value> = response.resources.iter().map(resource).collect();
    let body = json!({
        "versionInfo": response.version_info,
        "resources": resources,
        "typeUrl": response.type_url,
        "nonce": response.nonce,
    });
    ([(header::CONTENT_TYPE, "application/json")], format!("{body:#}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, query: &str) -> (String, Vec<String>) {
        let PageRequest { type_url, names } = PageRequest::new(path, query);
        (type_url, names)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn path_selects_type_or_page() {
        assert_eq!(request("/debug/syncz", ""), ("istio.io/debug/syncz".into(), vec![]));
        let dump = request("/debug/config_dump", "resourceName=tea-1.shop");
        assert_eq!(dump, ("istio.io/debug/config_dump".into(), names(&["tea-1.shop"])));
        let page = request("/debug/config_dump", "proxyID=tea-1.shop");
        assert_eq!(page, ("istio.io/debug".into(), names(&["config_dump?proxyID=tea-1.shop"])));
        let page = request("/debug", "resourceName=endpointz%3Fbrief%3Dtrue");
        assert_eq!(page, ("istio.io/debug".into(), names(&["endpointz?brief=true"])));
        assert_eq!(request("/debug/adsz", ""), ("istio.io/debug".into(), names(&["adsz"])));
        assert_eq!(request("/debug/", ""), ("istio.io/debug".into(), vec![]));
    }
}
