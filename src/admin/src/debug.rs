//! `/debug`: the list of all pages, and the pages about collections, configuration, clusters and the log (O08, O10).

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use serde::Serialize;
use serde_json::{Value, json};
use sluice_engine::Engine;
use sluice_model::Text;
use sluice_sources::kube::{ClusterInfo, SyncStatus, WatchSummary};
use sluice_telemetry::UnknownLogLevel;

use crate::answer::{self, PageResult, Parameters, read};
use crate::index::{self, Field, Page};
use crate::{
    AdminOptions, AdminState, access, ambient, answers, config_dump, configuration, console, endpoints, findings, krtz,
    preview, profiles, proxies, record, services, sidecar_scope, version,
};
use axum::response::Html;

/// All pages below `/debug`.
#[rustfmt::skip]
pub(crate) fn pages(options: &AdminOptions) -> Vec<Page> {
    use Field::{Body, Flag, OptionalProxy, OptionalText, Proxy, Text};
    let page = |path, help, fields, handler| Page { path, help, fields, handler };
    let mut pages = vec![
        page("/debug/adsz", "Connected proxies: address, labels, metadata, subscriptions (?push=true: says that changes are sent without it)", &[Field::Flag("push")], get(proxies::adsz)),
        page("/debug/ambientz", "Workloads, services and policies of ambient mode", &[], get(ambient::serve)),
        page("/debug/authorization", "How the policies of a pod decide about a request (?pod=NAME.NAMESPACE, method=, path=, host=, headers=, port=, principal=, sourceNamespace=, sourceAccount=, sourceIP=, remoteIP=, serverName=, claims=)", &[Text("pod"), OptionalText("method"), OptionalText("path"), OptionalText("host"), OptionalText("headers"), OptionalText("port"), OptionalText("principal"), OptionalText("sourceNamespace"), OptionalText("sourceAccount"), OptionalText("sourceIP"), OptionalText("remoteIP"), OptionalText("serverName"), OptionalText("claims")], get(answers::authorization_page)),
        page("/debug/authorizationz", "Authorization policies by namespace", &[], get(configuration::authorizationz)),
        page("/debug/cachez", "Says that there is no cache of resources (?sizes=true)", &[Flag("sizes")], get(cachez)),
        page("/debug/clusterz", "Clusters: sync state, and for each collection its age and why it cannot be read", &[], get(clusterz)),
        page("/debug/collections", "All collections: size, inputs, cost", &[], get(findings::collections)),
        page("/debug/collections/{name}", "Records of a collection (?key=JSON: one record and its inputs)", &[], get(collection)),
        page("/debug/config_dump", "What a proxy was sent (?proxyID=POD.NAMESPACE, types=, include_eds)", &[Proxy("proxyID"), OptionalText("types"), Flag("include_eds")], get(config_dump::serve)),
        page("/debug/config_sources", "Sources of configuration that the mesh config lists: state, objects, why one cannot be read", &[], get(config_sources)),
        page("/debug/configz", "Configuration objects, as they were written (?kind=, namespace=)", &[OptionalText("kind"), OptionalText("namespace")], get(configuration::configz)),
        page("/debug/connections", "Connected proxies: address and time", &[], get(proxies::connections)),
        page("/debug/describe", "Everything that acts on a pod or a service (?pod=NAME.NAMESPACE or service=NAME.NAMESPACE)", &[Text("pod")], get(answers::describe_page)),
        page("/debug/ecdsz", "Extensions that a proxy was sent (?proxyID=POD.NAMESPACE)", &[Proxy("proxyID")], get(config_dump::extensions)),
        page("/debug/edsz", "Endpoints that a proxy was sent (?proxyID=POD.NAMESPACE)", &[Proxy("proxyID")], get(config_dump::endpoints)),
        page("/debug/endpointShardz", "Endpoints of all services", &[], get(endpoints::serve)),
        page("/debug/endpointz", "Endpoints of all services", &[], get(endpoints::serve)),
        page("/debug/epochs", "Recent epochs: written inputs, changed collections, time", &[], get(epochs)),
        page("/debug/frontier", "Acknowledgements of a resource (?type=cds&name=NAME): proxies that subscribe to it, were sent it, acknowledged it", &[Text("type"), Text("name")], get(proxies::frontier)),
        page("/debug/history", "Recent changes of objects: resources and proxies that each concerned (?since=, limit=, object=, proxy=)", &[OptionalText("since"), OptionalText("limit"), OptionalText("object"), OptionalProxy("proxy")], get(answers::history_page)),
        page("/debug/inject", "Templates of the injector", &[], get(inject)),
        page("/debug/instancesz", "Ports of services that each connected proxy serves", &[], get(services::instancesz)),
        page("/debug/krtz", "All collections, their records and the keys of the records that made them, in istiod's format (?collection=NAME)", &[OptionalText("collection")], get(krtz::serve)),
        page("/debug/list", "Names of these pages", &[], get(list)),
        page("/debug/log", "Log levels by scope; PUT a text such as default:info,ads:debug to change them", &[], get(log).put(set_log)),
        page("/debug/mcsz", "Services that clusters export or import by the Multi-Cluster Services API", &[], get(services::mcsz)),
        page("/debug/mesh", "Mesh config in use, with its defaults", &[], get(mesh)),
        page("/debug/ndsz", "The name table of a proxy (?proxyID=POD.NAMESPACE)", &[Proxy("proxyID")], get(config_dump::name_table)),
        page("/debug/networkz", "Gateways between networks", &[], get(services::networkz)),
        page("/debug/panics", "Closures that panicked, with their input record", &[], get(panics)),
        page("/debug/preview", "What applying objects would change: POST YAML or JSON documents (?delete=true: deleting them)", &[Body, Flag("delete")], preview::route()),
        page("/debug/push_status", "Says that nothing is counted for each push: /debug/rejects has conflicts between objects", &[], get(push_status)),
        page("/debug/pushcontext", "Authorization policies, and gateways between networks", &[], get(configuration::pushcontext)),
        page("/debug/record", "A recording: all inputs and their changes, for a replay (?duration=60s)", &[Text("duration")], get(record::record_page)),
        page("/debug/registryz", "Services", &[], get(services::registryz)),
        page("/debug/rejects", "Invalid configuration: objects, and files and collections that cannot be read; objects that are declared more than once", &[], get(findings::rejects)),
        page("/debug/resourcesz", "Kinds of configuration that are read", &[], get(resourcesz)),
        page("/debug/sidecarz", "What a proxy can reach: egress listeners, services, VirtualServices and DestinationRules (?proxyID=POD.NAMESPACE)", &[Proxy("proxyID")], get(sidecar_scope::serve)),
        page("/debug/syncz", "Synchronization of each proxy, by type (?namespace=NAMESPACE)", &[OptionalText("namespace")], get(proxies::syncz)),
        page("/debug/telemetryz", "Telemetry objects by namespace, or those that apply to a proxy (?proxyID=POD.NAMESPACE)", &[OptionalProxy("proxyID")], get(configuration::telemetryz)),
        page("/debug/wait", "Progress of a change of an object until proxies acknowledge it (?object=KIND/NAMESPACE/NAME, version=, generation=, for=, timeout=)", &[Text("object"), OptionalText("version"), OptionalText("generation"), OptionalText("for"), OptionalText("timeout")], get(answers::wait_page)),
        page("/debug/why", "Objects that made a resource of a proxy, or a field of it (?proxy=, type=, name=, path=)", &[Proxy("proxy"), Text("type"), Text("name"), OptionalText("path")], get(answers::why_page)),
        page("/debug/why_not", "Why a host, cluster, route or endpoint is absent at a proxy, or an object has no effect there (?proxy=, type=, name=)", &[Proxy("proxy"), Text("type"), Text("name")], get(answers::why_not_page)),
    ];
    if options.changing_pages {
        pages.push(page("/debug/force_disconnect", "Closes the stream of a proxy (?proxyID=POD.NAMESPACE)", &[Proxy("proxyID")], get(proxies::force_disconnect)));
    }
    if options.profiles {
        pages.push(page("/debug/pprof/", "Profiles of the process for go tool pprof", &[], get(profiles::index)));
        pages.push(page("/debug/pprof/{name}", "A profile: profile (CPU, ?seconds=30), heap, cmdline", &[], get(profiles::profile)));
    }
    pages
}

/// The pages and the web console, with access control.
pub(crate) fn router(state: Arc<AdminState>) -> Router {
    let router = open_router(state.clone()).merge(console::router(state.clone()));
    let router = access::restrict(router.fallback(version::without_repeated_slashes), state.clone());
    router.layer(axum::middleware::from_fn(console::offer_login)).merge(console::open_router(state))
}

/// The pages. Each request has a [`Viewer`](sluice_auth::Viewer) as an extension.
pub(crate) fn open_router(state: Arc<AdminState>) -> Router {
    let mut router = Router::new().route("/debug", get(index));
    for page in pages(&state.options) {
        router = router.route(page.path, page.handler);
    }
    router.with_state(state)
}

async fn index(State(state): State<Arc<AdminState>>) -> Html<String> {
    index::html(&state, &pages(&state.options))
}

async fn list(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Response<Body> {
    answer::json(&index::names(&pages(&state.options)), &parameters)
}

async fn collection(
    State(state): State<Arc<AdminState>>,
    Path(name): Path<String>,
    Query(parameters): Query<Parameters>,
) -> PageResult {
    let Some(key) = parameters.get("key") else { return records(&state.engine, name, &parameters).await };
    let key: Value = serde_json::from_str(key)
        .map_err(|error| answer::fail(StatusCode::BAD_REQUEST, &format!("key is not JSON: {error}")))?;
    let explained = read(&state.engine, move |engine| engine.explain_json(&name, &key)).await?;
    Ok(explained.map_or_else(|| missing("there is no such collection or key"), |it| answer::json(&it, &parameters)))
}

/// All records of a collection.
async fn records(engine: &Engine, name: String, parameters: &Parameters) -> PageResult {
    let dump = read(engine, move |engine| engine.dump(&name)).await?;
    Ok(dump.map_or_else(|| missing("there is no such collection"), |dump| answer::stream_json(dump, parameters)))
}

fn missing(reason: &str) -> Response<Body> {
    answer::fail(StatusCode::NOT_FOUND, reason)
}

async fn epochs(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> PageResult {
    Ok(answer::json(&read(&state.engine, Engine::recent_epochs).await?, &parameters))
}

async fn panics(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> PageResult {
    Ok(answer::json(&read(&state.engine, Engine::panics).await?, &parameters))
}

async fn mesh(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> PageResult {
    let Some(mesh) = state.mesh_config.get() else {
        return Err(answer::fail(StatusCode::SERVICE_UNAVAILABLE, "the mesh config is not read yet"));
    };
    let mesh = mesh().map_err(|reason| answer::fail(StatusCode::INTERNAL_SERVER_ERROR, &reason))?;
    Ok(answer::json(&mesh, &parameters))
}

/// The templates by name, as they are configured; `null` without an injector or a configuration.
async fn inject(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> PageResult {
    let templates = state.templates.get().and_then(|templates| templates());
    Ok(answer::json(&templates, &parameters))
}

/// istiod counts conflicts for each push. Here they are findings, and resources are built once for all proxies.
async fn push_status(Query(parameters): Query<Parameters>) -> Response<Body> {
    answer::json(&json!({}), &parameters)
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

/// Group, version and kind of the configuration, by kind.
async fn resourcesz(Query(parameters): Query<Parameters>) -> Response<Body> {
    let mut kinds: Vec<_> =
        sluice_parse::KINDS.iter().filter(|info| info.parse.is_some() && is_configuration(info)).collect();
    kinds.sort_by_key(|info| (info.name, info.group));
    let row = |info: &&sluice_parse::KindInfo| json!({"group": info.group, "version": info.versions.first(), "kind": info.name});
    answer::json(&kinds.iter().map(row).collect::<Vec<_>>(), &parameters)
}

fn is_configuration(info: &sluice_parse::KindInfo) -> bool {
    info.is_configuration() || info.kind == sluice_model::Kind::Ingress
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

async fn clusterz(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> PageResult {
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

async fn config_sources(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> PageResult {
    Ok(answer::json(&state.config_sources.all(), &parameters))
}

/// The log levels.
async fn log(State(state): State<Arc<AdminState>>) -> String {
    format!("{}\n", state.log.levels())
}

/// Sets the log levels, and returns them.
async fn set_log(State(state): State<Arc<AdminState>>, text: String) -> PageResult {
    let levels = text.trim().parse();
    let levels = levels.map_err(|error: UnknownLogLevel| answer::fail(StatusCode::BAD_REQUEST, &error.to_string()))?;
    state.log.set(levels);
    Ok(log(State(state)).await.into_response())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use serde::Serializer;
    use sluice_engine::EngineOptions;

    use super::*;

    static ENCODED_BYTES: AtomicUsize = AtomicUsize::new(0);

    const RECORDS: u32 = 20_000;
    const RECORD_BYTES: usize = 1_000;

    /// A long text that is counted when it is encoded.
    #[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
    struct CountedText(char);

    impl Serialize for CountedText {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            ENCODED_BYTES.fetch_add(RECORD_BYTES, Ordering::SeqCst);
            serializer.serialize_str(&self.0.to_string().repeat(RECORD_BYTES))
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn records_of_a_collection_are_encoded_as_the_client_reads_them() {
        let rows = (0..RECORDS).map(|number| (number, CountedText('x')));
        let (engine, _texts) = Engine::start(EngineOptions::default(), move |builder| {
            builder.dataflow("main", |graph| graph.fixed("texts", rows).publish())
        });
        for query in [Parameters::new(), Parameters::from([("pretty".to_owned(), String::new())])] {
            ENCODED_BYTES.store(0, Ordering::SeqCst);
            let page = records(&engine, "texts".to_owned(), &query).await.expect("a page");
            // The first frame is there, so the page is being written.
            let mut body = page.into_body();
            let frame = body.frame().await.expect("a frame").expect("the page is complete");
            let mut text = frame.into_data().expect("data").to_vec();
            let encoded = ENCODED_BYTES.load(Ordering::SeqCst);
            assert!(encoded < 1 << 20, "{encoded} bytes are encoded for a client that has read {}", text.len());
            text.extend_from_slice(&body.collect().await.expect("the page is complete").to_bytes());
            let dump = engine.dump("texts").expect("the collection");
            let mut expected = match query.contains_key("pretty") {
                true => serde_json::to_vec_pretty(&dump),
                false => serde_json::to_vec(&dump),
            }
            .expect("JSON");
            expected.push(b'\n');
            assert!(text == expected, "the page has {} bytes instead of {}", text.len(), expected.len());
        }
        let absent = records(&engine, "absent".to_owned(), &Parameters::new()).await.expect("a page");
        assert_eq!(absent.status(), StatusCode::NOT_FOUND);
    }
}
