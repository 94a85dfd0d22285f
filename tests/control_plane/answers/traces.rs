//! Traces of changes, as a collector receives them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use sluice_testkit::server::get;
use sluice_testkit::wait::until_async;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::mesh::AnswersFixture;

/// The product sends a trace without acknowledgements after a minute.
const TRACE_TIMEOUT: Duration = Duration::from_secs(90);

/// A receiver of traces over HTTP.
struct Collector {
    address: SocketAddr,
    received: UnboundedReceiver<(HeaderMap, ExportTraceServiceRequest)>,
}

impl Collector {
    async fn start(status: StatusCode) -> Self {
        let (send, received) = unbounded_channel();
        let receive = move |headers: HeaderMap, body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body).expect("spans");
            send.send((headers, request)).expect("the test runs");
            async move { status }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().route("/v1/traces", post(receive));
        tokio::spawn(async move { axum::serve(listener, router).await.expect("served") });
        Self { address, received }
    }

    fn variables(&self) -> Vec<(String, String)> {
        let variables = [
            ("OTEL_TRACES_EXPORTER", "otlp".to_owned()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", self.address)),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop".to_owned()),
            ("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=east".to_owned()),
        ];
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The next trace: its spans by name. Each request has one in these tests.
    async fn trace(&mut self) -> BTreeMap<String, Vec<Span>> {
        let received = tokio::time::timeout(TRACE_TIMEOUT, self.received.recv()).await.expect("a trace in time");
        let (headers, request) = received.expect("the collector runs");
        assert_eq!(headers["x-tenant"], "shop");
        let [resource] = request.resource_spans.as_slice() else { panic!("one resource: {request:?}") };
        let attributes = &resource.resource.as_ref().expect("a resource").attributes;
        assert_eq!(text(attributes, "service.name"), "istiod");
        assert_eq!(text(attributes, "k8s.cluster.name"), "east");
        let mut spans = BTreeMap::<_, Vec<_>>::new();
        for span in resource.scope_spans.iter().flat_map(|scope| &scope.spans) {
            spans.entry(span.name.clone()).or_default().push(span.clone());
        }
        spans
    }
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> &'a Attribute {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    let value = found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref());
    value.unwrap_or_else(|| panic!("{key} is missing: {attributes:?}"))
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    texts_of(attribute(attributes, key)).join(",")
}

fn texts_of(value: &Attribute) -> Vec<String> {
    match value {
        Attribute::StringValue(text) => vec![text.clone()],
        Attribute::IntValue(number) => vec![number.to_string()],
        Attribute::ArrayValue(array) => {
            let values = array.values.iter().filter_map(|AnyValue { value }| value.as_ref());
            values.flat_map(texts_of).collect()
        }
        other => panic!("not expected: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_a_trace_from_its_arrival_to_the_last_acknowledgement() {
    let mut collector = Collector::start(StatusCode::OK).await;
    let mesh = AnswersFixture::with_variables(collector.variables()).await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let _till = mesh.connect("till-1", "till").await;
    mesh.route_to(2, "v2");
    let mut spans = collector.trace().await;
    let change = spans.remove("change VirtualService").expect("the change").remove(0);
    assert_eq!(text(&change.attributes, "sluice.objects"), "VirtualService/shop/ratings");
    assert!(text(&change.attributes, "sluice.object.versions").contains("route.yaml:"));
    assert_eq!(text(&change.attributes, "sluice.proxies.concerned"), "2");
    assert_eq!(text(&change.attributes, "sluice.proxies.acknowledged"), "2");
    assert_ne!(text(&change.attributes, "sluice.resources.rds"), "0");
    assert!(change.parent_span_id.is_empty() && change.status.is_none_or(|status| status.message.is_empty()));

    let mut begin = change.start_time_unix_nano;
    for stage in ["parse", "compute", "serve"] {
        let span = spans.remove(stage).unwrap_or_else(|| panic!("no span {stage}")).remove(0);
        assert_eq!((&span.trace_id, &span.parent_span_id), (&change.trace_id, &change.span_id), "{stage}");
        assert_eq!(span.start_time_unix_nano, begin, "{stage} begins when the stage before it ends");
        assert!(span.end_time_unix_nano >= begin, "{stage}");
        begin = span.end_time_unix_nano;
    }
    assert_eq!(begin, change.end_time_unix_nano, "the change ends with its last stage");
    let acknowledged = spans.remove("acknowledge").expect("spans of proxies");
    let mut proxies: Vec<_> = acknowledged.iter().map(|span| text(&span.attributes, "sluice.proxy")).collect();
    proxies.sort();
    assert_eq!(proxies, ["cart-7f.shop", "till-1.shop"]);
    let last = acknowledged.iter().map(|span| span.end_time_unix_nano).max();
    assert_eq!(last, Some(change.end_time_unix_nano));
    assert!(acknowledged.iter().all(|span| span.events.iter().any(|event| event.name == "sent")));
    assert!(spans.is_empty(), "no other spans: {spans:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_a_change_that_is_not_acknowledged_ends_with_the_process() {
    let mut collector = Collector::start(StatusCode::OK).await;
    let mesh = AnswersFixture::with_variables(collector.variables()).await;
    let till = mesh.connect("till-1", "till").await;
    till.withhold();
    mesh.route_to(2, "v2");
    let waited = mesh.ctl(&["wait", "vs/shop/ratings", "--generation=2", "--timeout=1s"]).await;
    assert_eq!(waited.code, 4, "{}{}", waited.out, waited.errors);
    let AnswersFixture { server, directory: _directory } = mesh;
    server.stop(Duration::from_secs(30)).await.expect("it ends");
    let spans = collector.trace().await;
    let change = &spans["change VirtualService"][0];
    let status = change.status.as_ref().expect("a status");
    assert!(status.message.contains("1 of 1 proxies have not acknowledged: till-1.shop"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_traces_is_counted() {
    let mut collector = Collector::start(StatusCode::BAD_REQUEST).await;
    let mesh = AnswersFixture::with_variables(collector.variables()).await;
    mesh.route_to(2, "v2");
    collector.trace().await;
    until_async("the trace is counted", async || {
        let (_, text) = get(mesh.server.monitoring, "/metrics").await.expect("metrics");
        let is_counted =
            text.contains("sluice_traces_failed_total 1\n") && text.contains("sluice_traces_sent_total 0\n");
        is_counted.then_some(())
    })
    .await;
}
