//! Configuration as it was written: `configz`, `authorizationz`, `telemetryz`, `pushcontext` (O08).
//!
//! The pages have the form of istiod's. One object at a time is decoded.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Response, StatusCode};
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use sluice_auth::Viewer;
use sluice_model::{Kind, Labels, Proxy, Text};
use sluice_parse::KindInfo;
use sluice_sources::Originals;

use crate::answer::{self, Parameters};
use crate::{AdminState, services};

/// The kinds of configuration that are read, in the order of their names.
pub(crate) fn kinds() -> Vec<&'static KindInfo> {
    let mut kinds: Vec<_> =
        sluice_parse::KINDS.iter().filter(|info| info.parse.is_some() && info.is_configuration()).collect();
    kinds.sort_by_key(|info| (info.name, info.group));
    kinds
}

/// All objects, or those of a kind (`kind=`) or a namespace (`namespace=`).
pub(crate) async fn configz(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let given = |name: &str| parameters.get(name).filter(|value| !value.is_empty());
    let mut kinds = kinds();
    if let Some(kind) = given("kind") {
        kinds.retain(|info| info.name.eq_ignore_ascii_case(kind));
        if kinds.is_empty() {
            let reason = format!("kind {kind:?} is unknown: /debug/resourcesz lists the kinds of configuration");
            return answer::fail(StatusCode::BAD_REQUEST, &reason);
        }
    }
    let namespace = given("namespace").map(|namespace| Text::from(namespace.as_str()));
    answer::stream_json(Objects { originals: state.originals.clone(), kinds, namespace }, &parameters)
}

/// Objects in the order of kind, namespace and name.
struct Objects {
    originals: Originals,
    kinds: Vec<&'static KindInfo>,
    namespace: Option<Text>,
}

impl Serialize for Objects {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(None)?;
        for info in &self.kinds {
            for (key, text) in self.originals.of_kind(info.kind) {
                if self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace) {
                    rows.serialize_element(&decode(&text))?;
                }
            }
        }
        rows.end()
    }
}

fn decode(text: &str) -> Value {
    // The text was written from a value.
    serde_json::from_str(text).unwrap_or_default()
}

/// The objects of a kind by namespace, the older ones first.
fn by_namespace(originals: &Originals, kind: Kind) -> BTreeMap<Text, Vec<Value>> {
    let mut objects: BTreeMap<Text, Vec<Value>> = BTreeMap::new();
    for (key, text) in originals.of_kind(kind) {
        objects.entry(key.namespace).or_default().push(decode(&text));
    }
    let created = |object: &Value| object["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
    objects.values_mut().for_each(|objects| objects.sort_by_cached_key(created));
    objects
}

fn authorization_policies(state: &AdminState) -> Value {
    let row = |object: Value| {
        let metadata = &object["metadata"];
        json!({
            "name": metadata["name"], "namespace": metadata["namespace"],
            "annotations": metadata["annotations"], "spec": object["spec"],
        })
    };
    let policies = rows(&state.originals, Kind::AuthorizationPolicy, row);
    json!({"namespace_to_policies": policies, "root_namespace": root_namespace(state)})
}

fn rows(originals: &Originals, kind: Kind, row: impl Fn(Value) -> Value) -> BTreeMap<Text, Vec<Value>> {
    let objects = by_namespace(originals, kind).into_iter();
    objects.map(|(namespace, objects)| (namespace, objects.into_iter().map(&row).collect())).collect()
}

fn root_namespace(state: &AdminState) -> Text {
    state.engine.snapshot().get(&state.handles.mesh, &()).unwrap_or_default().root_namespace.clone()
}

pub(crate) async fn authorizationz(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    answer::json(&json!({"authorization_policies": authorization_policies(&state)}), &parameters)
}

/// There is no push context: the page has the parts of istiod's page that other pages have, too.
pub(crate) async fn pushcontext(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let mut by_network: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for gateway in services::network_gateways(&state.engine) {
        by_network.entry(gateway["Network"].as_str().unwrap_or_default().to_owned()).or_default().push(gateway);
    }
    let gateways = (!by_network.is_empty()).then_some(by_network);
    let page = json!({
        "AuthorizationPolicies": authorization_policies(&state), "NetworkGateways": gateways, "UnresolvedGateways": null,
    });
    answer::json(&page, &parameters)
}

/// All Telemetry objects, or those that apply to a proxy.
pub(crate) async fn telemetryz(
    State(state): State<Arc<AdminState>>,
    Extension(viewer): Extension<Viewer>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let Some(proxy) = parameters.get("proxyID").filter(|proxy| !proxy.is_empty()) else {
        let row = |object: Value| {
            let metadata = &object["metadata"];
            json!({"name": metadata["name"], "namespace": metadata["namespace"], "spec": object["spec"]})
        };
        let telemetries = rows(&state.originals, Kind::Telemetry, row);
        let page = json!({"namespace_to_telemetries": telemetries, "root_namespace": root_namespace(&state)});
        return answer::json(&json!({"telemetries": page}), &parameters);
    };
    let Some(key) = state.status.find(proxy, &viewer) else { return answer::not_connected() };
    let proxy = state.engine.snapshot().get(&state.handles.proxies, &key).unwrap_or_default();
    let objects = by_namespace(&state.originals, Kind::Telemetry);
    answer::json(&applied_telemetry(&objects, &root_namespace(&state), &proxy), &parameters)
}

/// The Telemetry objects that apply to a proxy, from the widest to the narrowest.
fn applied_telemetry(objects: &BTreeMap<Text, Vec<Value>>, root: &Text, proxy: &Proxy) -> Value {
    let find = |namespace: &Text, matches: &dyn Fn(&Value) -> bool| {
        objects.get(namespace).into_iter().flatten().find(|object| matches(object))
    };
    let of_namespace = (proxy.namespace != *root).then(|| find(&proxy.namespace, &|object| !has_selector(object)));
    let levels = [
        ("Root", find(root, &|object| !has_selector(object))),
        ("Namespace", of_namespace.flatten()),
        ("Workload", find(&proxy.namespace, &|object| has_selector(object) && selects(object, &proxy.labels))),
    ];
    let no_name = || json!({"Name": "", "Namespace": ""});
    let no_names = || json!({"Root": no_name(), "Namespace": no_name(), "Workload": no_name(), "Proxy": no_name()});
    let (mut page, mut logging, mut metrics, mut tracing) = (no_names(), Vec::new(), Vec::new(), Vec::new());
    for (level, object) in levels {
        let Some(object) = object else { continue };
        let name = json!({"Name": object["metadata"]["name"], "Namespace": object["metadata"]["namespace"]});
        page[level] = name.clone();
        let list = |field: &str| object["spec"][field].as_array().cloned().unwrap_or_default();
        let access_logging = list("accessLogging");
        if !access_logging.is_empty() {
            let mut row = no_names();
            row[level] = name;
            row["Logging"] = access_logging.into();
            logging.push(row);
        }
        metrics.extend(list("metrics"));
        tracing.extend(list("tracing"));
    }
    page["Logging"] = logging.into();
    page["Metrics"] = metrics.into();
    page["Tracing"] = tracing.into();
    page
}

fn selector(object: &Value) -> Option<&serde_json::Map<String, Value>> {
    object.pointer("/spec/selector/matchLabels")?.as_object()
}

fn has_selector(object: &Value) -> bool {
    let targets = |field: &str| object["spec"].get(field).is_some_and(|targets| !targets.is_null());
    selector(object).is_some_and(|labels| !labels.is_empty()) || targets("targetRef") || targets("targetRefs")
}

fn selects(object: &Value, labels: &Labels) -> bool {
    let matches = |(name, value): (&String, &Value)| labels.get(name).map(Text::as_str) == value.as_str();
    selector(object).is_some_and(|selector| selector.iter().all(matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn telemetry(namespace: &str, name: &str, spec: Value) -> Value {
        json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
    }

    #[test]
    fn telemetry_of_a_proxy_is_that_of_the_root_its_namespace_and_its_labels() {
        let logging = |name: &str| json!([{"providers": [{"name": name}]}]);
        let web = json!({"matchLabels": {"app": "web"}});
        let objects = BTreeMap::from([
            ("root".into(), vec![telemetry("root", "mesh", json!({"accessLogging": logging("envoy")}))]),
            (
                "shop".into(),
                vec![
                    telemetry("shop", "other", json!({"selector": {"matchLabels": {"app": "cart"}}, "metrics": [{}]})),
                    telemetry("shop", "web", json!({"selector": web, "accessLogging": logging("web")})),
                    telemetry("shop", "all", json!({"tracing": [{"randomSamplingPercentage": 7}]})),
                    telemetry("shop", "younger", json!({"metrics": [{}]})),
                ],
            ),
        ]);
        let mut proxy = Proxy { namespace: "shop".into(), ..Proxy::default() };
        proxy.labels.insert("app".into(), "web".into());
        let page = applied_telemetry(&objects, &"root".into(), &proxy);
        assert_eq!(page["Root"], json!({"Name": "mesh", "Namespace": "root"}));
        assert_eq!(page["Namespace"]["Name"], "all", "the oldest one without a selector");
        assert_eq!(page["Workload"]["Name"], "web");
        assert_eq!(page["Metrics"], json!([]));
        assert_eq!(page["Tracing"], json!([{"randomSamplingPercentage": 7}]));
        let logging: Vec<&Value> =
            page["Logging"].as_array().expect("a list").iter().map(|row| &row["Logging"]).collect();
        assert_eq!(json!(logging), json!([[{"providers": [{"name": "envoy"}]}], [{"providers": [{"name": "web"}]}]]));
        // In the root namespace, an object without a selector applies once.
        proxy.namespace = "root".into();
        let page = applied_telemetry(&objects, &"root".into(), &proxy);
        assert_eq!((&page["Namespace"]["Name"], page["Logging"].as_array().map(Vec::len)), (&json!(""), Some(1)));
    }
}
