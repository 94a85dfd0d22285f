//! The questions.

use std::time::Instant;

use anyhow::Result;

use crate::change::{Marker, cluster, table};
use crate::change_tracker::{Expectation, ExpectedContent};
use crate::measured_mesh::CHANGED_SERVICE;
use crate::mesh_objects::MeshObjects;
use crate::objects;
use crate::shape::{Service, Shape};

/// The files with the objects that are waited for.
pub(super) const ROUTE_FILE: &str = "answers-route.yaml";
pub(super) const RULE_FILE: &str = "answers-rule.yaml";

type WriteChange = Box<dyn Fn(&MeshObjects, usize) -> Result<Instant>>;

/// A change that all sidecars get.
pub(super) struct FollowedChange {
    /// Makes the change of a round; returns when.
    pub(super) write: WriteChange,
    /// What a proxy gets in a round.
    pub(super) expected: Box<dyn Fn(usize) -> Expectation>,
}

/// A question to the HTTP port.
pub(super) struct Question {
    pub(super) name: &'static str,
    /// Path and query in a round.
    pub(super) path: Box<dyn Fn(usize) -> String>,
    /// The body of a `POST` request.
    pub(super) body: Option<String>,
    /// The change that is made before each request. The time counts from it.
    pub(super) change: Option<FollowedChange>,
    /// A text that a right answer contains.
    pub(super) expect: &'static str,
}

impl Question {
    fn get(name: &'static str, path: String, expect: &'static str) -> Self {
        let path = path.replace('|', "%7C").replace('[', "%5B").replace(']', "%5D");
        let path = Box::new(move |_| path.clone());
        Self { name, path, body: None, change: None, expect }
    }

    fn preview(name: &'static str, query: &str, body: String) -> Self {
        Self { body: Some(body), ..Self::get(name, format!("/debug/preview{query}"), "\"isComplete\"") }
    }
}

/// All questions, in the order in which they are asked.
pub(super) fn all(shape: &Shape) -> Vec<Question> {
    let service = shape.http_service(shape.services / 2);
    // That of the changes without a question: the tables of the ports have different sizes.
    let changed = shape.http_service(CHANGED_SERVICE);
    let (owner, endpoint) = shape.proxy(0);
    let proxy = format!("{}.{}", owner.pod(endpoint), owner.namespace());
    let why = |name, kind: &str, resource: &str, path: &str| {
        let path = format!("/debug/why?proxy={proxy}&type={kind}&name={resource}&path={path}");
        Question::get(name, path, "\"madeBy\"")
    };
    let why_not = |name, kind: &str, absent: &str| {
        let path = format!("/debug/why_not?proxy={proxy}&type={kind}&name={absent}");
        Question::get(name, path, "\"findings\"")
    };
    let cluster = service.cluster();
    let table = service.port().to_string();
    let virtual_host = format!("virtualHosts[{}:{table}]", service.host());
    let route = named(&objects::virtual_service(service, "preview"));
    vec![
        why("why: a cluster", "cds", &cluster, ""),
        why("why: a load assignment", "eds", &cluster, ""),
        why("why: a virtual host of a route table", "rds", &table, &virtual_host),
        why("why: a listener", "lds", "virtualInbound", ""),
        why_not("why-not: a host", "host", &format!("absent.{}.svc.cluster.local", service.namespace())),
        why_not("why-not: a cluster of a subset", "cds", &format!("outbound|{table}|absent|{}", service.host())),
        Question::preview("preview: a VirtualService", "", route),
        Question::preview("preview: a DestinationRule of the whole mesh", "", mesh_wide_rule()),
        Question::preview("preview: a Service is deleted", "?delete=true", service_object(service)),
        wait_for_route(changed),
        wait_for_rule(changed),
        Question::get("history", "/debug/history?limit=50".to_owned(), "\"changes\""),
        Question::get("krtz: services", "/debug/krtz?collection=services".to_owned(), "\"inputs\""),
        Question::get("krtz: endpoints", "/debug/krtz?collection=endpoints".to_owned(), "\"inputs\""),
        Question::get("krtz: everything", "/debug/krtz".to_owned(), "\"inputs\""),
        Question::get("console: overview", "/console".to_owned(), "<html"),
    ]
}

/// The object with a name of its own.
fn named(object: &str) -> String {
    object.replacen("name: bench,", "name: answers,", 1)
}

/// A VirtualService changes: all proxies get a table with the routes of the whole mesh.
fn wait_for_route(service: Service) -> Question {
    let object = move |marker: &str| objects::virtual_service(service, marker);
    let expected = move |marker| table(service, Marker::Present(marker));
    wait(
        "wait: a VirtualService changes, until all acknowledge",
        ("VirtualService", ROUTE_FILE),
        service,
        object,
        expected,
    )
}

/// A DestinationRule changes: all proxies get one cluster.
fn wait_for_rule(service: Service) -> Question {
    let object = move |marker: &str| objects::destination_rule(service, marker);
    let expected = move |marker| cluster(service, ExpectedContent::Has(marker));
    wait(
        "wait: a DestinationRule changes, until all acknowledge",
        ("DestinationRule", RULE_FILE),
        service,
        object,
        expected,
    )
}

/// Writes the object of a marker with a new generation, and waits until all proxies have acknowledged it.
fn wait(
    name: &'static str,
    (kind, file): (&str, &'static str),
    service: Service,
    object: impl Fn(&str) -> String + 'static,
    expected: impl Fn(String) -> Expectation + 'static,
) -> Question {
    let awaited = format!("{kind}/{}/answers", service.namespace());
    let write = move |mesh: &MeshObjects, round: usize| {
        let text = named(&object(&marker(round)));
        let text = text.replacen("metadata: {", &format!("metadata: {{generation: {}, ", generation(round)), 1);
        mesh.write(file, &text)
    };
    let path =
        move |round| format!("/debug/wait?object={awaited}&generation={}&for=acked&timeout=120s", generation(round));
    let change = FollowedChange { write: Box::new(write), expected: Box::new(move |round| expected(marker(round))) };
    Question { name, path: Box::new(path), body: None, change: Some(change), expect: "\"done\"" }
}

/// The text by which the change of a round is recognized.
fn marker(round: usize) -> String {
    format!("answers-{round:04}")
}

fn generation(round: usize) -> usize {
    round + 1
}

fn mesh_wide_rule() -> String {
    "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: answers, namespace: istio-system, creationTimestamp: 2026-01-01T00:00:00Z}
spec:
  host: \"*.local\"
  trafficPolicy: {connectionPool: {tcp: {maxConnections: 77}}}
"
    .to_owned()
}

/// What identifies a Service, to delete it.
fn service_object(service: Service) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {}, namespace: {}}}\n",
        service.name(),
        service.namespace()
    )
}
