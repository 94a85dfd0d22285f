//! Fetches with filters: which records they find, and which changes run a closure again (K04, K05, K06).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use sluice_engine::{
    Collection, Engine, EngineOptions, Index, Input, LabelSelecting, Labeled, Namespaced, NamespacedName, Published,
    RecordFilter,
};

type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Pod {
    labels: Labels,
    address: &'static str,
}

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Service {
    selector: Labels,
    port: u16,
}

impl Labeled for Pod {
    fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.labels()
    }
}

impl LabelSelecting for Service {
    fn selector(&self) -> impl Iterator<Item = (&str, &str)> {
        self.selector.labels()
    }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn name(text: &str) -> NamespacedName {
    text.parse().expect("a name")
}

fn pod(app: &str, address: &'static str) -> Pod {
    Pod { labels: labels(&[("app", app)]), address }
}

type Pods<'s> = Collection<'s, NamespacedName, Pod>;
type Services<'s> = Collection<'s, NamespacedName, Service>;
type Texts<'s> = Collection<'s, NamespacedName, String>;
type Make = for<'s> fn(&Pods<'s>, &Services<'s>, Arc<AtomicUsize>) -> Texts<'s>;

/// An engine with pods and services, and a collection with a counter for runs of its closure.
struct Mesh {
    engine: Engine,
    pods: Input<NamespacedName, Pod>,
    services: Input<NamespacedName, Service>,
    out: Published<NamespacedName, String>,
    runs: Arc<AtomicUsize>,
}

impl Mesh {
    fn start(make: Make) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        let (engine, (pods, services, out)) = Engine::start(EngineOptions::default(), move |b| {
            b.dataflow("main", |g| {
                let (pods_in, pods) = g.input("pods");
                let (services_in, services) = g.input("services");
                (pods_in, services_in, make(&pods, &services, counter).publish())
            })
        });
        Self { engine, pods, services, out, runs }
    }

    /// Sets pods, and returns how often the closure ran for that.
    fn set_pod(&self, key: &str, pod: Pod) -> usize {
        self.pods.set(name(key), pod);
        self.runs()
    }

    fn delete_pod(&self, key: &str) -> usize {
        self.pods.delete(name(key));
        self.runs()
    }

    fn set_service(&self, key: &str, selector: &[(&str, &str)], port: u16) -> usize {
        self.services.set(name(key), Service { selector: labels(selector), port });
        self.runs()
    }

    fn runs(&self) -> usize {
        self.engine.flush();
        self.runs.swap(0, Ordering::Relaxed)
    }

    #[track_caller]
    fn expect(&self, expected: &[(&str, &str)]) {
        let snapshot = self.engine.snapshot();
        let state: Vec<_> = snapshot.iter(&self.out).map(|(key, text)| (key.to_string(), text.as_str())).collect();
        let expected: Vec<_> = expected.iter().map(|(key, text)| ((*key).to_owned(), *text)).collect();
        assert_eq!(state, expected);
    }
}

fn names<V>(found: &[(NamespacedName, V)]) -> String {
    found.iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>().join(",")
}

/// For each service the pods that it selects.
fn selected_pods<'s>(pods: &Pods<'s>, services: &Services<'s>, runs: Arc<AtomicUsize>) -> Texts<'s> {
    services.derive("selected", |d| {
        let pods = d.on(pods);
        move |cx, key, service: &Service| {
            runs.fetch_add(1, Ordering::Relaxed);
            let namespace = key.namespace.clone();
            let filter = RecordFilter::all()
                .matching(move |pod: &NamespacedName, _| pod.namespace() == namespace)
                .labels(service.selector.clone());
            let found = cx.fetch(&pods, &filter);
            Some(found.iter().map(|(_, pod)| pod.address).collect::<Vec<_>>().join(","))
        }
    })
}

#[test]
fn closure_runs_again_only_for_records_that_pass_its_filter() {
    let mesh = Mesh::start(selected_pods);
    mesh.set_service("shop/web", &[("app", "web")], 80);
    mesh.set_service("shop/api", &[("app", "api")], 80);
    assert_eq!(mesh.set_service("shop/all", &[], 80), 1);
    mesh.expect(&[("shop/all", ""), ("shop/api", ""), ("shop/web", "")]);
    assert_eq!(mesh.set_pod("shop/1", pod("web", "10.0.0.1")), 2, "web and all");
    assert_eq!(mesh.set_pod("other/2", pod("web", "10.0.0.2")), 0, "another namespace");
    mesh.expect(&[("shop/all", "10.0.0.1"), ("shop/api", ""), ("shop/web", "10.0.0.1")]);
    assert_eq!(mesh.set_pod("shop/1", pod("web", "10.0.0.3")), 2, "another address");
    assert_eq!(mesh.set_pod("shop/1", pod("api", "10.0.0.3")), 3, "web selected it before, api selects it now");
    mesh.expect(&[("shop/all", "10.0.0.3"), ("shop/api", "10.0.0.3"), ("shop/web", "")]);
    assert_eq!(mesh.set_service("shop/all", &[("app", "none")], 80), 1, "the filter changes with the record");
    assert_eq!(mesh.delete_pod("shop/1"), 1, "only api still selects it");
    mesh.expect(&[("shop/all", ""), ("shop/api", ""), ("shop/web", "")]);
}

#[test]
fn changes_of_one_epoch_run_a_closure_once() {
    let mesh = Mesh::start(selected_pods);
    mesh.set_service("shop/web", &[("app", "web")], 80);
    mesh.engine.transaction(|tx| {
        for (at, address) in ["10.0.0.1", "10.0.0.2", "10.0.0.3"].into_iter().enumerate() {
            tx.set(&mesh.pods, name(&format!("shop/{at}")), pod("web", address));
        }
        tx.set(&mesh.services, name("shop/web"), Service { selector: labels(&[("app", "web")]), port: 81 });
    });
    assert_eq!(mesh.runs(), 1);
    mesh.expect(&[("shop/web", "10.0.0.1,10.0.0.2,10.0.0.3")]);
}

#[test]
fn services_that_select_a_pod_are_found_by_its_labels() {
    let mesh = Mesh::start(|pods, services, runs| {
        pods.derive("services", |d| {
            let services = d.on(services);
            move |cx, _, pod: &Pod| {
                runs.fetch_add(1, Ordering::Relaxed);
                let all = cx.fetch(&services, &RecordFilter::all().selects(pod.labels.clone()));
                let non_empty = cx.fetch(&services, &RecordFilter::all().selects_non_empty(pod.labels.clone()));
                Some(format!("{};{}", names(&all), names(&non_empty)))
            }
        })
    });
    mesh.set_pod("shop/1", pod("web", "10.0.0.1"));
    assert_eq!(mesh.set_service("shop/web", &[("app", "web")], 80), 1);
    assert_eq!(mesh.set_service("shop/external", &[], 80), 1);
    assert_eq!(mesh.set_service("shop/strict", &[("app", "web"), ("tier", "front")], 80), 0);
    mesh.expect(&[("shop/1", "shop/external,shop/web;shop/web")]);
}

#[test]
fn fetch_of_keys_ignores_other_keys() {
    let mesh = Mesh::start(|pods, services, runs| {
        services.derive("by-key", |d| {
            let pods = d.on(pods);
            move |cx, _, _| {
                runs.fetch_add(1, Ordering::Relaxed);
                let filter = RecordFilter::all().keys([name("shop/1"), name("shop/2")]);
                let any = names(&cx.fetch(&pods, &filter));
                let web = names(&cx.fetch(&pods, &filter.labels([("app", "web")])));
                let none = names(&cx.fetch(&pods, &RecordFilter::all().keys([])));
                Some(format!("{any};{web};{none}"))
            }
        })
    });
    mesh.set_service("shop/web", &[], 80);
    assert_eq!(mesh.set_pod("shop/2", pod("api", "10.0.0.2")), 1, "a fetch without a result is a dependency too");
    assert_eq!(mesh.set_pod("shop/1", pod("web", "10.0.0.1")), 1);
    assert_eq!(mesh.set_pod("shop/3", pod("web", "10.0.0.3")), 0);
    mesh.expect(&[("shop/web", "shop/1,shop/2;shop/1;")]);
    assert_eq!(mesh.delete_pod("shop/1"), 1);
    mesh.expect(&[("shop/web", "shop/2;;")]);
}

#[test]
fn fetch_that_depends_on_another_fetch_follows_its_keys() {
    let mesh = Mesh::start(|pods, services, runs| {
        services.derive("followed", |d| {
            let pods = d.on(pods);
            move |cx, key, _| {
                runs.fetch_add(1, Ordering::Relaxed);
                let first = cx.fetch_one(&pods, &RecordFilter::key(key.clone()))?;
                let next = cx.fetch_one(&pods, &RecordFilter::key(NamespacedName::new("next", first.1.address)));
                Some(next.map_or_else(String::new, |(_, pod)| pod.address.to_owned()))
            }
        })
    });
    mesh.set_service("shop/web", &[], 80);
    mesh.set_pod("shop/web", pod("web", "east"));
    assert_eq!(mesh.set_pod("next/east", pod("web", "10.0.0.1")), 1);
    mesh.expect(&[("shop/web", "10.0.0.1")]);
    assert_eq!(mesh.set_pod("next/west", pod("web", "10.0.0.2")), 0);
    assert_eq!(mesh.set_pod("shop/web", pod("web", "west")), 1);
    mesh.expect(&[("shop/web", "10.0.0.2")]);
    assert_eq!(mesh.set_pod("next/east", pod("web", "10.0.0.3")), 0, "it is not read any more");
    assert_eq!(mesh.delete_pod("next/west"), 1);
    mesh.expect(&[("shop/web", "")]);
    assert_eq!(mesh.delete_pod("shop/web"), 1);
    mesh.expect(&[]);
}

#[test]
fn closure_does_not_run_again_while_the_fetched_parts_stay() {
    let mesh = Mesh::start(|pods, services, runs| {
        services.derive("parts", |d| {
            let pods = d.on(pods);
            move |cx, _, service: &Service| {
                runs.fetch_add(1, Ordering::Relaxed);
                let filter = RecordFilter::all().labels(service.selector.clone());
                let parts = cx.fetch_part(&pods, &filter, |pod: &Pod| pod.address);
                Some(parts.iter().map(|(_, address)| *address).collect::<Vec<_>>().join(","))
            }
        })
    });
    mesh.set_service("shop/web", &[("app", "web")], 80);
    assert_eq!(mesh.set_pod("shop/1", pod("web", "10.0.0.1")), 1);
    let mut relabelled = pod("web", "10.0.0.1");
    relabelled.labels.insert("zone".to_owned(), "a".to_owned());
    assert_eq!(mesh.set_pod("shop/1", relabelled.clone()), 0, "the address is the same");
    relabelled.address = "10.0.0.2";
    assert_eq!(mesh.set_pod("shop/1", relabelled), 1);
    mesh.expect(&[("shop/web", "10.0.0.2")]);
    mesh.engine.transaction(|tx| {
        tx.delete(&mesh.pods, name("shop/1"));
        tx.set(&mesh.pods, name("shop/2"), pod("web", "10.0.0.2"));
    });
    assert_eq!(mesh.runs(), 1, "another record has the part");
    assert_eq!(mesh.delete_pod("shop/2"), 1);
    mesh.expect(&[("shop/web", "")]);
}

#[test]
fn existence_does_not_depend_on_the_value() {
    let mesh = Mesh::start(|pods, services, runs| {
        services.derive("exists", |d| {
            let pods = d.on(pods);
            move |cx, key, _| {
                runs.fetch_add(1, Ordering::Relaxed);
                Some(cx.exists(&pods, key).to_string())
            }
        })
    });
    mesh.set_service("shop/web", &[], 80);
    mesh.expect(&[("shop/web", "false")]);
    assert_eq!(mesh.set_pod("shop/web", pod("web", "10.0.0.1")), 1);
    mesh.expect(&[("shop/web", "true")]);
    assert_eq!(mesh.set_pod("shop/web", pod("web", "10.0.0.2")), 0);
    assert_eq!(mesh.delete_pod("shop/web"), 1);
    mesh.expect(&[("shop/web", "false")]);
}

#[test]
fn fetch_by_index_key_filters_the_rows_of_that_key() {
    let mesh = Mesh::start(|pods, services, runs| {
        let by_namespace: Index<'_, String, NamespacedName, Pod> = pods.by_namespace("pods/by-namespace");
        services.derive("in-namespace", |d| {
            let pods = d.by(&by_namespace);
            move |cx, key, service: &Service| {
                runs.fetch_add(1, Ordering::Relaxed);
                let filter = RecordFilter::all().labels(service.selector.clone());
                let found = cx.fetch_by(&pods, &key.namespace, &filter);
                let ports = cx.fetch_part_by(&pods, &key.namespace, &filter, |pod: &Pod| pod.address.len());
                assert_eq!(found.len(), ports.len());
                Some(names(&found))
            }
        })
    });
    mesh.set_service("shop/web", &[("app", "web")], 80);
    assert_eq!(mesh.set_pod("shop/1", pod("web", "10.0.0.1")), 1);
    assert_eq!(mesh.set_pod("shop/2", pod("api", "10.0.0.2")), 0, "it does not pass");
    assert_eq!(mesh.set_pod("other/3", pod("web", "10.0.0.3")), 0, "another index key");
    assert_eq!(mesh.set_pod("shop/2", pod("web", "10.0.0.2")), 1);
    mesh.expect(&[("shop/web", "shop/1,shop/2")]);
    assert_eq!(mesh.delete_pod("shop/1"), 1);
    mesh.expect(&[("shop/web", "shop/2")]);
}

#[test]
fn several_records_for_fetch_one_are_reported_and_the_last_output_stays() {
    let mesh = Mesh::start(|pods, services, _| {
        services.derive("one", |d| {
            let pods = d.on(pods);
            move |cx, _, _| cx.fetch_one(&pods, &RecordFilter::all()).map(|(key, _)| key.to_string())
        })
    });
    mesh.set_service("shop/web", &[], 80);
    mesh.set_pod("shop/1", pod("web", "10.0.0.1"));
    mesh.expect(&[("shop/web", "shop/1")]);
    mesh.set_pod("shop/2", pod("web", "10.0.0.2"));
    mesh.expect(&[("shop/web", "shop/1")]);
    let panics = mesh.engine.panics();
    assert!(panics.len() == 1 && panics[0].message.contains("2 records pass"), "{panics:?}");
    mesh.delete_pod("shop/1");
    mesh.expect(&[("shop/web", "shop/2")]);
}

#[test]
fn condition_that_panics_runs_the_closure_again() {
    let mesh = Mesh::start(|pods, services, runs| {
        services.derive("strict", |d| {
            let pods = d.on(pods);
            move |cx, _, _| {
                runs.fetch_add(1, Ordering::Relaxed);
                let filter = RecordFilter::all().matching(|_, pod: &Pod| {
                    assert_ne!(pod.address, "bad");
                    pod.address.starts_with("10.")
                });
                Some(names(&cx.fetch(&pods, &filter)))
            }
        })
    });
    mesh.set_service("shop/web", &[], 80);
    mesh.set_pod("shop/1", pod("web", "10.0.0.1"));
    mesh.expect(&[("shop/web", "shop/1")]);
    assert_eq!(mesh.set_pod("shop/2", pod("web", "bad")), 1);
    mesh.expect(&[("shop/web", "shop/1")]);
    assert_ne!(mesh.engine.panics(), []);
    // The fetch that panicked is a dependency too.
    assert_eq!(mesh.delete_pod("shop/2"), 1);
    assert_eq!(mesh.set_pod("shop/3", pod("web", "10.0.0.3")), 1);
    mesh.expect(&[("shop/web", "shop/1,shop/3")]);
}

#[test]
fn nothing_is_kept_of_records_and_fetches_that_are_gone() {
    let mesh = Mesh::start(selected_pods);
    let stored = || mesh.engine.metrics().collections.iter().map(|it| it.stored).sum::<i64>();
    let empty = stored();
    let mut full = None;
    for round in 0..20u16 {
        for key in 0..5 {
            let app = if (round + key) % 2 == 0 { "web" } else { "api" };
            mesh.set_service(&format!("shop/{key}"), &[("app", app)], round);
            mesh.set_pod(&format!("shop/{key}"), pod(app, if round % 2 == 0 { "10.0.0.1" } else { "10.0.0.2" }));
        }
        assert_eq!(stored(), *full.get_or_insert_with(stored), "round {round}");
    }
    assert!(full > Some(empty));
    mesh.engine.transaction(|tx| {
        tx.delete_where(&mesh.services, |_, _| true);
        tx.delete_where(&mesh.pods, |_, _| true);
    });
    assert_eq!(stored(), empty);
}

#[test]
fn readers_of_a_snapshot_use_the_same_filters() {
    let mesh = Mesh::start(|_, services, _| services.map("ports", |_, service| service.port.to_string()));
    for (key, port) in [("shop/web", 80), ("shop/api", 81), ("other/web", 80)] {
        mesh.set_service(key, &[], port);
    }
    let snapshot = mesh.engine.snapshot();
    let found = |filter: RecordFilter<NamespacedName, String>| {
        let found = snapshot.fetch(&mesh.out, &filter);
        found.iter().map(|(key, port)| format!("{key}:{port}")).collect::<Vec<_>>()
    };
    assert_eq!(found(RecordFilter::all()), ["other/web:80", "shop/api:81", "shop/web:80"]);
    assert_eq!(found(RecordFilter::key(name("shop/web"))), ["shop/web:80"]);
    let on_80 = RecordFilter::all().matching(|_, port: &String| port == "80");
    assert_eq!(found(on_80.clone()), ["other/web:80", "shop/web:80"]);
    assert_eq!(found(on_80.keys([name("shop/api"), name("shop/web")])), ["shop/web:80"]);
}
