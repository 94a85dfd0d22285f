//! `/debug`: the list of all pages, and the pages about collections, configuration, clusters and the log (O08, O10).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{Response, StatusCode};
use axum::response::{Html, IntoResponse};
use axum::routing::{MethodRouter, get};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sluice_engine::Engine;
use sluice_graph::Inputs;
use sluice_model::Text;
use sluice_sources::kube::{ClusterInfo, SyncStatus, WatchSummary};
use sluice_telemetry::UnknownLogLevel;

use crate::answer::{self, Parameters};
use crate::{AdminState, access, answers, config_dump, krtz, proxies, version};

/// A page: path, description, handler.
type Page = (&'static str, &'static str, MethodRouter<Arc<AdminState>>);

/// All pages below `/debug`.
#[rustfmt::skip]
fn pages() -> Vec<Page> {
    vec![
        ("/debug/adsz", "Connected proxies: address, labels, metadata, subscriptions", get(proxies::adsz)),
        ("/debug/collections", "All collections: size, inputs, cost", get(collections)),
        ("/debug/collections/{name}", "Records of a collection (?key=JSON: one record and its inputs)", get(collection)),
        ("/debug/cachez", "Says that there is no cache of resources (?sizes=true)", get(cachez)),
        ("/debug/clusterz", "Clusters: sync state, and for each collection its age and why it cannot be read", get(clusterz)),
        ("/debug/config_dump", "What a proxy was sent (?proxyID=POD.NAMESPACE, types=, include_eds)", get(config_dump::serve)),
        ("/debug/configz", "Configuration objects, as parsed", get(configz)),
        ("/debug/connections", "Connected proxies: address and time", get(proxies::connections)),
        ("/debug/ecdsz", "Extensions that a proxy was sent (?proxyID=POD.NAMESPACE)", get(config_dump::extensions)),
        ("/debug/edsz", "Endpoints that a proxy was sent (?proxyID=POD.NAMESPACE)", get(config_dump::endpoints)),
        ("/debug/endpointShardz", "Endpoints of all services", get(endpointz)),
        ("/debug/endpointz", "Endpoints of all services", get(endpointz)),
        ("/debug/epochs", "Recent epochs: written inputs, changed collections, time", get(epochs)),
        ("/debug/frontier", "Acknowledgements of a resource (?type=cds&name=NAME): proxies that subscribe to it, were sent it, acknowledged it", get(proxies::frontier)),
        ("/debug/history", "Recent changes of objects: resources and proxies that each concerned (?since=, limit=, object=, proxy=)", get(answers::history_page)),
        ("/debug/krtz", "All collections with records and inputs, in istiod's format", get(krtz::serve)),
        ("/debug/list", "Names of these pages", get(list)),
        ("/debug/log", "Log levels by scope; PUT a text such as default:info,ads:debug to change them", get(log).put(set_log)),
        ("/debug/mcsz", "Multi-cluster services: none, since they are not read", get(mcsz)),
        ("/debug/mesh", "Mesh config in use", get(mesh)),
        ("/debug/ndsz", "The name table of a proxy (?proxyID=POD.NAMESPACE)", get(config_dump::name_table)),
        ("/debug/panics", "Closures that panicked, with their input record", get(panics)),
        ("/debug/registryz", "Services", get(registryz)),
        ("/debug/rejects", "Invalid configuration: objects, and files and collections that cannot be read", get(rejects)),
        ("/debug/resourcesz", "Kinds of configuration that are read", get(resourcesz)),
        ("/debug/syncz", "Synchronization of each proxy, by type (?namespace=NAMESPACE)", get(proxies::syncz)),
        ("/debug/wait", "Progress of a change of an object until proxies acknowledge it (?object=KIND/NAMESPACE/NAME, version=, generation=, for=, timeout=)", get(answers::wait_page)),
        ("/debug/why", "Objects that made a resource of a proxy, or a field of it (?proxy=, type=, name=, path=)", get(answers::why_page)),
        ("/debug/why_not", "Why a host, cluster, route or endpoint is absent at a proxy, or an object has no effect there (?proxy=, type=, name=)", get(answers::why_not_page)),
    ]
}

/// The pages, with access control.
pub(crate) fn router(state: Arc<AdminState>) -> Router {
    access::restrict(open_router(state.clone()).fallback(version::without_repeated_slashes), state)
}

/// The pages. Each request has a [`Viewer`](sluice_auth::Viewer) as an extension.
pub(crate) fn open_router(state: Arc<AdminState>) -> Router {
    let mut router = Router::new().route("/debug", get(index));
    for (path, _, handler) in pages() {
        router = router.route(path, handler);
    }
    router.with_state(state)
}

async fn index() -> Html<String> {
    let mut page =
        "<!doctype html><html><head><meta charset=\"utf-8\"><title>Sluice</title><style>body{font-family:sans-serif}\
                    td{padding:.3em 1em .3em 0;vertical-align:top}</style></head><body><h1>Sluice</h1>\
                    <p>Add <code>?pretty</code> for indented JSON.</p><table>"
            .to_owned();
    for (path, help, _) in pages() {
        page += &format!("<tr><td><a href=\"{path}\">{path}</a></td><td>{help}</td></tr>");
    }
    page += "</table></body></html>\n";
    Html(page)
}

async fn list(Query(parameters): Query<Parameters>) -> Response<Body> {
    let pages = pages();
    let names = pages.iter().filter_map(|(path, ..)| path.strip_prefix("/debug/"));
    let names: Vec<&str> = names.filter(|name| *name != "list" && !name.contains('{')).collect();
    answer::json(&names, &parameters)
}

/// Reads the engine on a blocking thread, because a dump waits for the dataflow thread.
async fn read<T: Send + 'static>(
    state: &AdminState,
    read: impl FnOnce(&Engine) -> T + Send + 'static,
) -> Result<T, Response<Body>> {
    let engine = state.engine.clone();
    let result = tokio::task::spawn_blocking(move || read(&engine)).await;
    result.map_err(|error| {
        answer::fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the engine cannot be read: {error}"))
    })
}

/// A page, or a response with an error status.
type Answer = Result<Response<Body>, Response<Body>>;

async fn collections(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    #[derive(Serialize)]
    struct CollectionSummary {
        #[serde(flatten)]
        info: sluice_engine::CollectionInfo,
        metrics: Option<sluice_engine::CollectionMetrics>,
    }
    let rows = read(&state, |engine| {
        let metrics = engine.metrics();
        let mut by_name: BTreeMap<_, _> = metrics.collections.into_iter().map(|it| (it.name.clone(), it)).collect();
        let rows = engine
            .graph()
            .iter()
            .map(|info| CollectionSummary { metrics: by_name.remove(&info.name), info: info.clone() });
        rows.collect::<Vec<_>>()
    });
    Ok(answer::json(&rows.await?, &parameters))
}

async fn collection(
    State(state): State<Arc<AdminState>>,
    Path(name): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Answer {
    let missing = |what: &str| answer::fail(StatusCode::NOT_FOUND, &format!("there is no {what}"));
    if let Some(key) = parameters.get("key") {
        let key: Value = serde_json::from_str(key)
            .map_err(|error| answer::fail(StatusCode::BAD_REQUEST, &format!("key is not JSON: {error}")))?;
        let explained = read(&state, move |engine| engine.explain_json(&name, &key)).await?;
        return Ok(explained.map_or_else(|| missing("such collection or key"), |it| answer::json(&it, &parameters)));
    }
    let dump = read(&state, move |engine| engine.dump(&name)).await?;
    Ok(dump.map_or_else(|| missing("such collection"), |dump| answer::json(&dump, &parameters)))
}

async fn epochs(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    Ok(answer::json(&read(&state, Engine::recent_epochs).await?, &parameters))
}

async fn panics(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    Ok(answer::json(&read(&state, Engine::panics).await?, &parameters))
}

async fn mesh(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    let snapshot = state.engine.snapshot();
    let mesh = snapshot.iter(&state.handles.mesh).next().map(|((), mesh)| mesh);
    Ok(answer::json(&mesh, &parameters))
}

/// istiod lists its cached resources by type, and their sizes. Here collections hold each resource once, and nothing is cached.
async fn cachez(Query(parameters): Query<Parameters>) -> Response<Body> {
    let is_set = |name: &str| parameters.get(name).is_some_and(|value| value == "true");
    match (is_set("clear"), is_set("sizes")) {
        (true, _) => "There is no cache to clear\n".into_response(),
        (false, true) => answer::json(&json!({"total": "0B"}), &parameters),
        (false, false) => answer::json(&json!({}), &parameters),
    }
}

/// As istiod's without multi-cluster services.
async fn mcsz(Query(parameters): Query<Parameters>) -> Response<Body> {
    answer::json(&Value::Null, &parameters)
}

/// Group, version and kind of the configuration, by kind.
async fn resourcesz(Query(parameters): Query<Parameters>) -> Response<Body> {
    let mut kinds: Vec<_> =
        sluice_parse::KINDS.iter().filter(|info| info.parse.is_some() && is_configuration(info)).collect();
    kinds.sort_by_key(|info| (info.name, info.group));
    let row = |info: &&sluice_parse::KindInfo| json!({"group": info.group, "version": info.versions.first(), "kind": info.name});
    answer::json(&kinds.iter().map(row).collect::<Vec<_>>(), &parameters)
}

fn is_configuration(info: &sluice_parse::KindInfo) -> bool {
    info.is_custom() || info.kind == sluice_model::Kind::Ingress
}

/// A cluster, and how current its objects are.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterRow {
    #[serde(flatten)]
    info: ClusterInfo,
    /// Age of the collection that the API server has not confirmed for the longest time.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    watches: Vec<WatchSummary>,
}

async fn clusterz(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    let is_synced = state.engine.snapshot().all_synced();
    let own = ClusterInfo {
        id: state.options.cluster.clone(),
        secret_name: Text::default(),
        sync_status: if is_synced { SyncStatus::Synced } else { SyncStatus::Syncing },
    };
    let row = |info: ClusterInfo| {
        let watches = state.watches.of(&info.id);
        let ages = watches.iter().map(|watch| watch.age_seconds);
        ClusterRow { oldest_seconds: ages.max_by(f64::total_cmp), info, watches }
    };
    let clusters: Vec<_> = [own].into_iter().chain(state.remotes.all()).map(row).collect();
    Ok(answer::json(&clusters, &parameters))
}

async fn registryz(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    let snapshot = state.engine.snapshot();
    let services: Vec<_> = snapshot.iter(&state.handles.services).map(|(_, service)| service).collect();
    Ok(answer::json(&services, &parameters))
}

/// Endpoints by host, then by namespace, then by cluster.
async fn endpointz(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    let snapshot = state.engine.snapshot();
    let mut rows: BTreeMap<String, BTreeMap<String, BTreeMap<String, Vec<Value>>>> = BTreeMap::new();
    let listed = snapshot.iter(&state.handles.endpoints).map(|(key, endpoints)| (key, endpoints.as_slice()));
    let chunks = snapshot.iter(&state.handles.endpoint_chunks);
    let chunks = chunks.map(|((group, _), endpoints)| (&group.service, &**endpoints));
    for (key, endpoints) in listed.chain(chunks) {
        let service = rows.entry(key.host.to_string()).or_default().entry(key.namespace.to_string()).or_default();
        for endpoint in endpoints {
            let shard = service.entry(endpoint.cluster.to_string()).or_default();
            shard.push(serde_json::to_value(endpoint).unwrap_or_default());
        }
    }
    Ok(answer::json(&rows, &parameters))
}

/// Configuration in the form of Kubernetes objects; `spec` contains the parsed fields with defaults.
async fn configz(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    let rows = read(&state, |engine| {
        let mut rows = Vec::new();
        for info in sluice_parse::KINDS.iter().filter(|info| info.is_custom()) {
            let Some(name) = Inputs::collection(info.kind) else { continue };
            for (key, value) in engine.dump(name).iter().flat_map(sluice_engine::Dump::records) {
                let mut metadata = Map::new();
                for field in ["name", "namespace"] {
                    metadata.insert(field.to_owned(), key.get(field).cloned().unwrap_or_default());
                }
                let meta = value.get("meta").cloned().unwrap_or_default();
                for field in ["labels", "annotations"] {
                    if let Some(found) =
                        meta.get(field).filter(|found| found.as_object().is_some_and(|it| !it.is_empty()))
                    {
                        metadata.insert(field.to_owned(), found.clone());
                    }
                }
                let mut spec = value;
                if let Some(spec) = spec.as_object_mut() {
                    spec.remove("meta");
                }
                let (api_version, kind) = (info.api_version(), info.name);
                rows.push(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}));
            }
        }
        rows
    });
    Ok(answer::json(&rows.await?, &parameters))
}

async fn rejects(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Answer {
    let snapshot = state.engine.snapshot();
    let objects: Vec<_> = snapshot.iter(&state.handles.rejects).flat_map(|(_, rejects)| rejects).collect();
    let failing = state.watches.failing().into_iter();
    let collections: Vec<_> =
        failing.map(|(cluster, watch)| json!({"cluster": cluster, "collection": watch})).collect();
    let files = state.reporter.problems();
    Ok(answer::json(&json!({"objects": objects, "files": files, "collections": collections}), &parameters))
}

/// The log levels.
async fn log(State(state): State<Arc<AdminState>>) -> String {
    format!("{}\n", state.log.levels())
}

/// Sets the log levels, and returns them.
async fn set_log(State(state): State<Arc<AdminState>>, text: String) -> Answer {
    let levels = text.trim().parse();
    let levels = levels.map_err(|error: UnknownLogLevel| answer::fail(StatusCode::BAD_REQUEST, &error.to_string()))?;
    state.log.set(levels);
    Ok(log(State(state)).await.into_response())
}

#[cfg(test)]
mod tests {
    use sluice_graph::Inputs;
    use sluice_parse::KINDS;

    #[test]
    fn every_custom_kind_has_its_own_collection() {
        let custom = KINDS.iter().filter(|info| info.is_custom() && info.parse.is_some());
        let mut names: Vec<&str> =
            custom.map(|info| Inputs::collection(info.kind).expect("a collection of the kind")).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }
}
