use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sluice_model::{ObjectKey, ParsedObject};

use super::*;
use crate::ChangeOrigin;
use crate::full_lane::FullLane;

type Id = (Kind, ObjectKey);

/// What the sink has been told.
#[derive(Default)]
struct Recorded {
    /// The source of each object, as its place.
    objects: BTreeMap<Id, Text>,
    synced: BTreeSet<Kind>,
}

#[derive(Clone, Default)]
struct RecordingSink(Arc<Mutex<Recorded>>);

impl RecordingSink {
    fn objects(&self) -> BTreeMap<Id, Text> {
        self.0.lock().expect("no panic").objects.clone()
    }

    fn is_synced(&self, kind: Kind) -> bool {
        self.0.lock().expect("no panic").synced.contains(&kind)
    }
}

impl Sink for RecordingSink {
    fn commit(&self, changes: Vec<Change>) {
        let mut recorded = self.0.lock().expect("no panic");
        for change in changes {
            let id = (change.kind, change.key);
            match change.object {
                Some(_) => recorded.objects.insert(id, change.origin.place),
                None => recorded.objects.remove(&id),
            };
        }
    }

    fn synced(&self, _cluster: &Text, kinds: &[Kind]) {
        self.0.lock().expect("no panic").synced.extend(kinds);
    }
}

fn cluster(ignored: &[Kind]) -> Cluster {
    Cluster {
        id: "c".into(),
        domain: "cluster.local".into(),
        is_remote: false,
        reads_remote_gateways: false,
        ignored: ignored.iter().copied().collect(),
        revision: Text::default(),
        multi_cluster_api: sluice_model::MultiClusterApi::default(),
    }
}

fn sources_of(addresses: &[&str]) -> Vec<ConfigSource> {
    let kind = |address: &str| match address.split_once("://") {
        Some(("xds", host)) => ConfigSourceKind::Xds(host.into()),
        Some(("fs", path)) => ConfigSourceKind::Directory(path.into()),
        Some(("k8s", _)) => ConfigSourceKind::Cluster,
        _ => ConfigSourceKind::Unsupported,
    };
    addresses
        .iter()
        .map(|address| ConfigSource { address: (*address).into(), kind: kind(address), tls: None })
        .collect()
}

fn change(kind: Kind, name: &str, place: &str, exists: bool) -> Change {
    let key = ObjectKey::new("c", "shop", name);
    let object = exists.then(|| Box::new(ParsedObject { kind, key: key.clone(), object: None, rejects: Vec::new() }));
    Change { kind, key, object, origin: ChangeOrigin { place: place.into(), ..ChangeOrigin::default() } }
}

fn set(kind: Kind, name: &str, place: &str) -> Change {
    change(kind, name, place, true)
}

fn id(kind: Kind, name: &str) -> Id {
    (kind, ObjectKey::new("c", "shop", name))
}

fn start(ignored: &[Kind]) -> (RecordingSink, ConfigurationSources, Reporter) {
    let (sink, reporter) = (RecordingSink::default(), Reporter::default());
    let sources = ConfigurationSources::new(Arc::new(sink.clone()), cluster(ignored), reporter.clone());
    (sink, sources, reporter)
}

#[test]
fn configuration_of_the_cluster_waits_for_the_mesh_config() {
    let (sink, sources, _) = start(&[Kind::WasmPlugin]);
    let local = sources.local();
    local.commit(vec![set(Kind::VirtualService, "a", "cluster"), set(Kind::Service, "a", "cluster")]);
    local.synced(&"c".into(), &[Kind::VirtualService, Kind::Service]);
    assert_eq!(sink.objects().into_keys().collect::<Vec<_>>(), [id(Kind::Service, "a")]);
    assert!(sink.is_synced(Kind::Service) && !sink.is_synced(Kind::VirtualService));

    assert!(sources.fix(&[]).is_empty());
    assert!(sink.objects().contains_key(&id(Kind::VirtualService, "a")));
    assert!(sink.is_synced(Kind::VirtualService));
    assert!(sink.is_synced(Kind::WasmPlugin), "an ignored kind is not waited for");
    local.commit(vec![change(Kind::VirtualService, "a", "cluster", false)]);
    assert!(!sink.objects().contains_key(&id(Kind::VirtualService, "a")));
}

#[test]
fn object_of_the_first_source_decides() {
    let (sink, sources, reporter) = start(&[]);
    let local = sources.local();
    local.commit(vec![set(Kind::Gateway, "a", "cluster"), set(Kind::Gateway, "b", "cluster")]);
    let [(_, server)] =
        sources.fix(&sources_of(&["xds://s:1", "k8s://"])).try_into().map_err(|_| ()).expect("one server");
    let place = |name: &str| sink.objects().get(&id(Kind::Gateway, name)).cloned().unwrap_or_default();
    assert_eq!((place("a").as_str(), place("b").as_str()), ("cluster", "cluster"));

    server.commit(vec![set(Kind::Gateway, "a", "server")]);
    assert_eq!(place("a"), "server");
    let [duplicate] = reporter.duplicates().try_into().expect("one object");
    assert_eq!(
        (duplicate.files, duplicate.used),
        (vec!["xds://s:1".to_owned(), "k8s://".to_owned()], "xds://s:1".to_owned())
    );
    local.commit(vec![set(Kind::Gateway, "a", "changed in the cluster")]);
    assert_eq!(place("a"), "server");
    server.commit(vec![change(Kind::Gateway, "a", "", false)]);
    assert_eq!(place("a"), "changed in the cluster");
    assert_eq!(reporter.duplicates(), []);
    local.commit(vec![change(Kind::Gateway, "a", "", false), change(Kind::Gateway, "b", "", false)]);
    assert!(sink.objects().is_empty());
}

#[test]
fn kind_is_synced_once_all_sources_have_it() {
    let (sink, sources, _) = start(&[Kind::Telemetry]);
    let local = sources.local();
    local.synced(&"c".into(), &[Kind::Gateway]);
    let read = sources.fix(&sources_of(&["fs:///a", "other://", "k8s://", "xds://s:1"]));
    assert_eq!(read.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 3]);
    read[0].1.synced(&"c".into(), &[Kind::Gateway, Kind::Telemetry]);
    assert!(!sink.is_synced(Kind::Gateway));
    read[1].1.synced(&"c".into(), &[Kind::Gateway, Kind::Telemetry]);
    assert!(sink.is_synced(Kind::Gateway));
    assert!(sink.is_synced(Kind::Telemetry), "the cluster is not asked for an ignored kind");
}

#[test]
fn custom_resources_of_a_cluster_that_is_not_listed_are_not_read() {
    let (sink, sources, _) = start(&[]);
    let local = sources.local();
    let all = [Kind::VirtualService, Kind::HTTPRoute, Kind::Service, Kind::Ingress];
    local.commit(all.map(|kind| set(kind, "a", "cluster")).to_vec());
    let [(_, server)] = sources.fix(&sources_of(&["xds://s:1"])).try_into().map_err(|_| ()).expect("one server");
    local.commit(all.map(|kind| set(kind, "b", "cluster")).to_vec());
    local.synced(&"c".into(), &all);
    let kinds: BTreeSet<Kind> = sink.objects().into_keys().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [Kind::Service, Kind::Ingress].into());
    assert!(sink.is_synced(Kind::HTTPRoute) && !sink.is_synced(Kind::VirtualService));
    server.commit(vec![set(Kind::VirtualService, "a", "server")]);
    server.synced(&"c".into(), &[Kind::VirtualService]);
    assert!(sink.is_synced(Kind::VirtualService));
    assert_eq!(sink.objects()[&id(Kind::VirtualService, "a")], "server");
}

#[test]
fn workload_entries_do_not_wait_for_a_full_lane_of_configuration() {
    let full = Arc::new(FullLane::default());
    let sources = ConfigurationSources::new(full.clone(), cluster(&[]), Reporter::default());
    let local = sources.local();
    let [(_, server)] =
        sources.fix(&sources_of(&["xds://s:1", "k8s://"])).try_into().map_err(|_| ()).expect("one server");
    let commit = |sink: &Arc<dyn Sink>, change| {
        let sink = sink.clone();
        std::thread::spawn(move || sink.commit(vec![change]))
    };
    let waiting = commit(&local, set(Kind::VirtualService, "route", "cluster"));
    full.delays_a_commit();
    let (done, is_done) = std::sync::mpsc::channel();
    let entries = std::thread::spawn(move || {
        local.commit(vec![set(Kind::WorkloadEntry, "local", "cluster")]);
        server.commit(vec![set(Kind::WorkloadEntry, "remote", "server")]);
        local.synced(&"c".into(), &[Kind::WorkloadEntry]);
        // The test may have given up.
        let _ = done.send(());
    });
    let is_done = is_done.recv_timeout(std::time::Duration::from_secs(20));
    let committed = full.take();
    full.open();
    for thread in [waiting, entries] {
        thread.join().expect("no panic");
    }
    assert_eq!(is_done, Ok(()));
    assert_eq!(committed, ["+local", "+remote"]);
    assert_eq!(full.take(), ["+route"]);
}

proptest! {
    /// After any changes, and wherever the list is fixed in between, each object is that of the first source that has it.
    #[test]
    fn result_does_not_depend_on_the_order_of_changes(
        changes in prop::collection::vec((0..3_usize, 0..4_u8, any::<bool>()), 0..60),
        fixed_after in 0..20_usize,
    ) {
        let (sink, sources, _) = start(&[]);
        let local = sources.local();
        let list = sources_of(&["xds://s:1", "k8s://", "fs:///a"]);
        let mut sinks: BTreeMap<usize, Arc<dyn Sink>> = [(1, local)].into();
        let mut present: BTreeSet<(String, usize)> = BTreeSet::new();
        for (n, (rank, name, exists)) in changes.iter().enumerate() {
            if n == fixed_after {
                sinks.extend(sources.fix(&list));
            }
            let Some(source) = sinks.get(rank) else { continue };
            let name = name.to_string();
            source.commit(vec![change(Kind::Sidecar, &name, &rank.to_string(), *exists)]);
            match exists {
                true => present.insert((name, *rank)),
                false => present.remove(&(name, *rank)),
            };
        }
        sources.fix(&list);
        let mut expected: BTreeMap<Id, Text> = BTreeMap::new();
        for (name, rank) in &present {
            expected.entry(id(Kind::Sidecar, name)).or_insert_with(|| rank.to_string().into());
        }
        prop_assert_eq!(sink.objects(), expected);
    }
}
