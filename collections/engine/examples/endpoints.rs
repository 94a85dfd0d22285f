//! Services × pods → endpoints, by labels: collections that code writes, and a handler.
//!
//! `cargo run -p sluice-engine --example endpoints`
//!
//! ```text
//! [ services ] ──derive──▶ [ endpoints ] ──▶ handler
//! [ pods ] ──by namespace──────┘
//! ```

#![expect(clippy::print_stdout, reason = "an example prints what it shows")]

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde::Serialize;
use sluice_engine::{Engine, EngineOptions, EventKind, Input, Labeled, NamespacedName, Published, RecordFilter};

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Service {
    selector: BTreeMap<String, String>,
    port: u16,
}

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Pod {
    labels: BTreeMap<String, String>,
    ip: String,
}

impl Labeled for Pod {
    fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.labels()
    }
}

/// The inputs and the result of the graph.
struct Collections {
    services: Input<NamespacedName, Service>,
    pods: Input<NamespacedName, Pod>,
    /// The addresses of each service, sorted. A service without a ready pod has none and is not in it.
    endpoints: Published<NamespacedName, Vec<String>>,
}

fn start() -> (Engine, Collections) {
    Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("endpoints", |g| {
            let (services_in, services) = g.input::<NamespacedName, Service>("services");
            let (pods_in, pods) = g.input::<NamespacedName, Pod>("pods");
            let by_namespace = pods.by_namespace("pods/by-namespace");
            let endpoints = services.derive("endpoints", |deps| {
                let pods = deps.by(&by_namespace);
                move |cx, name: &NamespacedName, service: &Service| {
                    // A service without a selector selects no pods.
                    if service.selector.is_empty() {
                        return None;
                    }
                    // Runs again only when a pod of this namespace with these labels changes, or stops having them.
                    let selected = RecordFilter::all().labels(service.selector.clone());
                    let pods = cx.fetch_by(&pods, &name.namespace, &selected);
                    let addresses = pods.iter().map(|(_, pod)| format!("{}:{}", pod.ip, service.port));
                    let mut addresses: Vec<_> = addresses.collect();
                    addresses.sort();
                    (!addresses.is_empty()).then_some(addresses)
                }
            });
            Collections { services: services_in, pods: pods_in, endpoints: endpoints.publish() }
        })
    })
}

fn labels(app: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), app.to_owned())])
}

fn pod(app: &str, ip: &str) -> Pod {
    Pod { labels: labels(app), ip: ip.to_owned() }
}

/// Runs the example. Returns what the handler has seen.
pub(crate) fn run() -> Result<Vec<String>, RecvTimeoutError> {
    let (engine, collections) = start();
    let Collections { services, pods, endpoints } = &collections;
    let web = NamespacedName::new("shop", "web");
    services.set(web.clone(), Service { selector: labels("web"), port: 80 });
    pods.set(NamespacedName::new("shop", "web-1"), pod("web", "10.0.0.1"));
    engine.flush();

    // The handler has a thread of its own. It is registered late, and gets the endpoints that exist as additions.
    let (sender, seen) = channel();
    let registration = engine.register(endpoints, move |event| {
        let addresses = event.latest().map(|addresses| addresses.join(" ")).unwrap_or_default();
        let kind = match event.kind() {
            EventKind::Added => "add",
            EventKind::Updated => "update",
            EventKind::Removed => "delete",
        };
        // Fails only when the example has ended.
        let _ = sender.send(format!("{kind} {}: {addresses}", event.key));
    });
    let next = || seen.recv_timeout(Duration::from_secs(30));
    let mut lines = vec![next()?];

    // Both pods become visible together: one run of the closure, and one event.
    engine.transaction(|tx| {
        tx.set(pods, NamespacedName::new("shop", "web-2"), pod("web", "10.0.0.2"));
        tx.set(pods, NamespacedName::new("shop", "web-3"), pod("web", "10.0.0.3"));
    });
    lines.push(next()?);
    // Another app, and another namespace: the closure does not run.
    pods.set(NamespacedName::new("shop", "api-1"), pod("api", "10.0.0.4"));
    pods.set(NamespacedName::new("blog", "web-1"), pod("web", "10.0.0.5"));
    engine.flush();
    pods.set(NamespacedName::new("shop", "web-1"), pod("api", "10.0.0.1"));
    lines.push(next()?);
    services.delete(web);
    lines.push(next()?);

    // When this returns, the handler is not called any more.
    registration.unregister_and_wait();
    Ok(lines)
}

fn main() -> Result<(), RecvTimeoutError> {
    run()?.iter().for_each(|line| println!("{line}"));
    Ok(())
}
