//! Debug pages of the control plane for who is on this machine (D04), by default at `localhost:15004`.
//!
//! A request over HTTP becomes one over xDS, on a stream of its own with the proxy's own token or certificate: so much is
//! seen as the control plane shows the proxy's identity, and a request that is refused does not end Envoy's stream.
//!
//! | path | asked for | answer |
//! |---|---|---|
//! | `/debug/syncz` | type `istio.io/debug/syncz`: how far proxies are | the response as JSON |
//! | `/debug/config_dump?resourceName=POD.NAMESPACE` | type `istio.io/debug/config_dump`: what a proxy was sent | the response as JSON |
//! | `/debug?resourceName=PAGE`, `/debug/PAGE?..` | type `istio.io/debug`: a page with its parameters | the page as it is |

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
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use tokio::net::TcpListener;
use tonic::{Code, Extensions, Request, Status};
use tracing::{info, warn};

use crate::codec::Raw;
use crate::connection;
use crate::settings::Peer;
use crate::xds;

/// Requests of this type name a page with its parameters.
const PAGE: &str = "istio.io/debug";
/// Time for the control plane to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Who asks for pages.
#[derive(Clone, Debug)]
pub(crate) struct DebugProxy {
    pub(crate) upstream: Peer,
    /// The proxy's node id.
    pub(crate) node: String,
}

/// Serves on the loopback until the process ends. Nobody depends on it: a port that is taken is a warning.
pub(crate) async fn serve(proxy: DebugProxy, loopback: IpAddr, port: u16) {
    let address = SocketAddr::new(loopback, port);
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => return warn!(target: "debug", %address, "debug pages are not served: {error}"),
    };
    info!(target: "debug", %address, "listening");
    let answer = get(answer).post(answer);
    let router = Router::new().route("/debug", answer.clone()).route("/debug/{*page}", answer);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router.with_state(Arc::new(proxy))).await {
            warn!(target: "debug", "debug pages are no longer served: {error}");
        }
    });
}

async fn answer(State(proxy): State<Arc<DebugProxy>>, uri: Uri, RawQuery(query): RawQuery) -> Response {
    let wanted = Wanted::new(uri.path(), query.as_deref().unwrap_or_default());
    match tokio::time::timeout(TIMEOUT, proxy.ask(&wanted)).await {
        Ok(Ok(response)) => show(response),
        Ok(Err(status)) => {
            info!(target: "debug", type_url = wanted.type_url, code = ?status.code(), "no page: {}", status.message());
            let code = match status.code() {
                Code::InvalidArgument => StatusCode::BAD_REQUEST,
                Code::PermissionDenied => StatusCode::FORBIDDEN,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            (code, format!("{}\n", status.message())).into_response()
        }
        Err(_) => {
            info!(target: "debug", type_url = wanted.type_url, "the control plane does not answer");
            let reason = format!("the control plane did not answer within {} s\n", TIMEOUT.as_secs());
            (StatusCode::GATEWAY_TIMEOUT, reason).into_response()
        }
    }
}

/// What is asked for.
#[derive(Debug, Eq, PartialEq)]
struct Wanted {
    type_url: String,
    names: Vec<String>,
}

impl Wanted {
    fn new(path: &str, query: &str) -> Self {
        let page = path.strip_prefix("/debug").unwrap_or_default().trim_matches('/');
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let named = pairs.find(|(name, _)| name == "resourceName").map(|(_, value)| value.into_owned());
        // These have types of their own; with other parameters they are pages as over HTTP.
        if page.is_empty() || page == "syncz" || (page == "config_dump" && named.is_some()) {
            let type_url = if page.is_empty() { PAGE.to_owned() } else { format!("{PAGE}/{page}") };
            return Self { type_url, names: named.into_iter().collect() };
        }
        let name = if query.is_empty() { page.to_owned() } else { format!("{page}?{query}") };
        Self { type_url: PAGE.to_owned(), names: vec![name] }
    }
}

impl DebugProxy {
    async fn ask(&self, wanted: &Wanted) -> Result<DiscoveryResponse, Status> {
        let unavailable = |error: anyhow::Error| Status::unavailable(format!("{error:#}"));
        let metadata = connection::metadata(&self.upstream).map_err(unavailable)?;
        let mut client = connection::connect(&self.upstream).await.map_err(unavailable)?;
        client.ready().await.map_err(|error| unavailable(error.into()))?;
        let request = DiscoveryRequest {
            node: Some(Node { id: self.node.clone(), ..Default::default() }),
            type_url: wanted.type_url.clone(),
            resource_names: wanted.names.clone(),
            ..Default::default()
        };
        // The stream stays open until there is an answer.
        let requests = futures::StreamExt::chain(
            futures::stream::iter([request.encode_to_vec().into()]),
            futures::stream::pending(),
        );
        let request = Request::from_parts(metadata, Extensions::default(), requests);
        let mut responses =
            client.streaming(request, http::uri::PathAndQuery::from_static(xds::SOTW), Raw).await?.into_inner();
        match responses.message().await? {
            Some(response) => {
                DiscoveryResponse::decode(response).map_err(|_| Status::unavailable("the answer is no response"))
            }
            None => Err(Status::unavailable("the control plane ended the stream")),
        }
    }
}

/// A page as it is, or a response as JSON.
fn show(response: DiscoveryResponse) -> Response {
    if let [page] = response.resources.as_slice()
        && page.type_url == PAGE
    {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&page.value).is_ok();
        let form = if is_json { "application/json" } else { "text/plain; charset=utf-8" };
        return ([(header::CONTENT_TYPE, form)], page.value.clone()).into_response();
    }
    let resource =
        |any: &sluice_proto::google::protobuf::Any| sluice_proto::json::encode_any(&any.type_url, &any.value);
    let resources: Vec<Value> = response.resources.iter().map(resource).collect();
    let shown = json!({
        "versionInfo": response.version_info,
        "resources": resources,
        "typeUrl": response.type_url,
        "nonce": response.nonce,
    });
    ([(header::CONTENT_TYPE, "application/json")], format!("{shown:#}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(path: &str, query: &str) -> (String, Vec<String>) {
        let Wanted { type_url, names } = Wanted::new(path, query);
        (type_url, names)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn paths_become_types_or_pages() {
        assert_eq!(wanted("/debug/syncz", ""), ("istio.io/debug/syncz".into(), vec![]));
        let dump = wanted("/debug/config_dump", "resourceName=tea-1.shop");
        assert_eq!(dump, ("istio.io/debug/config_dump".into(), names(&["tea-1.shop"])));
        let page = wanted("/debug/config_dump", "proxyID=tea-1.shop");
        assert_eq!(page, ("istio.io/debug".into(), names(&["config_dump?proxyID=tea-1.shop"])));
        let page = wanted("/debug", "resourceName=endpointz%3Fbrief%3Dtrue");
        assert_eq!(page, ("istio.io/debug".into(), names(&["endpointz?brief=true"])));
        assert_eq!(wanted("/debug/adsz", ""), ("istio.io/debug".into(), names(&["adsz"])));
        assert_eq!(wanted("/debug/", ""), ("istio.io/debug".into(), vec![]));
    }
}
