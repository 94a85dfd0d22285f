use envoy_types::pb::envoy::config::trace::v3::{DatadogConfig, tracing};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::Tracing,
};

use super::*;
use crate::wire::any;

fn tag(name: &str, value: &str) -> CustomTag {
    let literal = custom_tag::Literal { value: value.to_owned() };
    CustomTag { tag: name.to_owned(), r#type: Some(custom_tag::Type::Literal(literal)) }
}

fn manager(tags: Vec<CustomTag>, service: &str) -> Bytes {
    let datadog =
        DatadogConfig { service_name: service.to_owned(), collector_cluster: "c".into(), ..Default::default() };
    let provider = tracing::Http {
        name: "envoy.tracers.datadog".into(),
        config_type: Some(tracing::http::ConfigType::TypedConfig(any(&datadog))),
    };
    let tracing = Tracing { custom_tags: tags, provider: Some(provider), verbose: true, ..Tracing::default() };
    HttpConnectionManager { stat_prefix: "s".into(), tracing: Some(tracing), ..Default::default() }
        .encode_to_vec()
        .into()
}

fn proxy() -> Proxy {
    Proxy {
        cluster: "Kubernetes".into(),
        namespace: "orchard".into(),
        service_cluster: "picker.orchard".into(),
        labels: [("service.istio.io/canonical-name".into(), "picker".into())].into(),
        ..Proxy::default()
    }
}

#[test]
fn filled_template_equals_the_encoded_message() {
    let marked = |name: &str| CustomTag { tag: element_marker(name), r#type: None };
    let tags = vec![tag("a", "b"), marked("istio.canonical_service"), tag("k", "v"), marked("istio.namespace")];
    let template = template(manager(tags, &field_marker(DATADOG_SERVICE)));
    assert!(matches!(template, Resource::Template(_)));
    let expected = manager(
        vec![tag("a", "b"), tag("istio.canonical_service", "picker"), tag("k", "v"), tag("istio.namespace", "orchard")],
        "picker.orchard",
    );
    let decode = |bytes: &Bytes| HttpConnectionManager::decode(bytes.clone()).unwrap();
    let filled = template.bytes(&identity_slots(&proxy())).unwrap();
    assert_eq!(decode(&filled), decode(&expected));
    assert_eq!(filled, expected);
}

#[test]
fn message_without_markers_is_unchanged() {
    let encoded = manager(vec![tag("a", "\u{1}b")], "x");
    assert!(matches!(template(encoded.clone()), Resource::Encoded(bytes) if bytes == encoded));
}

#[test]
fn markers_are_restored_and_split_again() {
    let marked = |name: &str| CustomTag { tag: element_marker(name), r#type: None };
    let encoded = manager(IDENTITY_TAGS.map(marked).to_vec(), &field_marker(DATADOG_SERVICE));
    let cut = template(encoded.clone());
    assert_eq!(cut.bytes(&marker_slots()), Some(encoded));
    assert_eq!(template(cut.bytes(&marker_slots()).unwrap()), cut);
    let slots: Vec<Text> = identity_slots(&proxy()).into_keys().collect();
    assert_eq!(marker_slots().into_keys().collect::<Vec<_>>(), slots, "every slot has a marker");
}
