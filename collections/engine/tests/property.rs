//! Properties: after any sequence of changes the state equals that of a fresh engine and of a naive computation.

use std::collections::{BTreeMap, BTreeSet};

use sluice_engine::{
    Collection, CopyError, Engine, EngineOptions, Epoch, Feed, GraphBuilder, Incremental, Input, Published,
    RecordFilter,
};

type Pods = BTreeMap<u32, (u32, bool)>;
type Services = BTreeMap<u32, u32>;
type TextByKey = BTreeMap<u32, String>;

/// Inputs and published collections of a graph with every operator.
struct Handles {
    pods: Input<u32, (u32, bool)>,
    services: Input<u32, u32>,
    other: Input<u32, u32>,
    outputs: Vec<Published<u32, String>>,
}

/// The position of each pod among all pods.
#[derive(Default)]
struct Ranks {
    pods: BTreeSet<u32>,
    deleted: BTreeSet<u32>,
}

impl Incremental<u32, (u32, bool)> for Ranks {
    type Key = u32;
    type Value = String;

    fn change(&mut self, pod: &u32, _: Option<&(u32, bool)>, new: Option<&(u32, bool)>) {
        let changed = if new.is_some() { &mut self.pods } else { &mut self.deleted };
        changed.insert(*pod);
        if new.is_none() {
            self.pods.remove(pod);
        }
    }

    fn settle(&mut self) -> Vec<(u32, Option<String>)> {
        let deleted = std::mem::take(&mut self.deleted).into_iter().map(|pod| (pod, None));
        deleted.chain(self.pods.iter().enumerate().map(|(rank, pod)| (*pod, Some(text(rank))))).collect()
    }

    fn owner(output: &u32) -> Option<u32> {
        Some(*output)
    }
}

/// Publishes a copy, so that the operator itself is neither published nor stored, and dumps of it are tested.
fn published_copy(of: &Collection<'_, u32, String>) -> Published<u32, String> {
    of.map(&format!("{}/copy", of.name()), |_, value| value.clone()).publish()
}

fn text(value: impl std::fmt::Debug) -> String {
    format!("{value:?}")
}

fn start() -> (Engine, Handles) {
    Engine::start(EngineOptions::default(), build)
}

fn build(b: &mut GraphBuilder) -> Handles {
    b.dataflow("main", |g| {
        let (pods_in, pods) = g.priority_input::<u32, (u32, bool)>("pods");
        let ready = pods.filter("ready", |_, (_, ready)| *ready);
        let ready_by_service = ready.index("by-service", |_, (service, _)| [(*service, ())]);
        let mut outputs = vec![
            published_copy(&ready.map("ready-text", |_, pod| text(pod))),
            published_copy(&ready_by_service.group("grouped", |_, pods| Some(text(pods)))),
            published_copy(&ready_by_service.distinct("distinct").map("distinct-text", |k, ()| text(k))),
        ];
        let (services_in, services) = g.input::<u32, u32>("services");
        let (other_in, other) = g.input::<u32, u32>("other");
        let fixed = g.fixed("fixed", (0..4u32).map(|n| (n, 100 + n)));
        let by_service = pods.index("pods/by-service", |_, (service, ready)| [(*service, *ready)]);
        let looked_up = services.derive("looked-up", |d| {
            let (by, other) = (d.by(&by_service), d.on(&other));
            move |cx, key, port| {
                let pods = cx.by(&by, key);
                // These look-ups depend on the first one.
                let others: Vec<_> = pods.iter().map(|(pod, _)| cx.get(&other, &(pod % 7)).map(|o| *o)).collect();
                (port % 5 != 0).then(|| text((port, &pods, others)))
            }
        });
        let all = fixed.derive("all", |d| {
            let services = d.on(&services);
            move |cx, key, value| Some(text((key, value, cx.all(&services))))
        });
        let many = services.derive_many("many", |d| {
            let by = d.by(&by_service);
            move |cx, key, _| cx.by(&by, key).into_iter().map(|(pod, r)| (key * 1000 + pod, text(r))).collect()
        });
        outputs.extend([
            published_copy(&services.join("join", &other, |k, a, b| (a != b).then(|| text((k, a, b))))),
            published_copy(&services.union("union", &[&other, &fixed]).map("union-text", |_, v| text(v))),
            published_copy(&services.union_merge("union-merge", &[&other], |k, vs| Some(text((k, vs))))),
            published_copy(
                &by_service
                    .join("endpoints", &services, |s, pod, ready, port| Some((s * 1000 + pod, text((ready, port))))),
            ),
            published_copy(
                &services.flat_map("flat", |k, v| (0..v % 4).map(|n| (k * 10 + n, text(v))).collect::<Vec<_>>()),
            ),
            published_copy(&looked_up),
            published_copy(&all),
            published_copy(&many),
            published_copy(&looked_up.filter_map("chained", |k, v| (k % 2 == 0).then(|| text(v.len())))),
        ]);
        let chunks = pods.group_chunks(
            "chunks",
            |pod| (pod % 3, pod / 2),
            |position| position % 5 == 0,
            |group, pods| (group + 1 != pods.len() as u32).then(|| text(pods)),
        );
        outputs.push(published_copy(&chunks.flat_map("chunk-text", |(group, start), pods| {
            [(group + 3 * start.map_or(0, |start| start + 1), pods.clone())]
        })));
        let groups = other.index("groups-by", |key, _| [((*key != 8).then_some(key % 4), ())]).distinct("groups");
        let restricted = pods.restrict("restricted", &groups, |pod| pod % 4);
        outputs.push(published_copy(&restricted.map("restricted-text", |_, pod| text(pod))));
        // Two pods have one key.
        let halves = pods.flat_map("halves", |pod, value| [(pod / 2, *value)]);
        let restricted = halves.restrict("restricted-halves", &groups, |half| half % 4);
        outputs.push(published_copy(&restricted.map("restricted-halves-text", |_, pod| text(pod))));
        outputs.push(published_copy(&pods.incremental("ranks", Ranks::default)));
        outputs.push(published_copy(&services.derive("filtered", |d| {
            let (pods, by, other) = (d.on(&pods), d.by(&by_service), d.on(&other));
            move |cx, key: &u32, port: &u32| {
                let (service, parity) = (*key, port % 2);
                let ready = RecordFilter::all().matching(move |_, pod: &(u32, bool)| *pod == (service, true));
                let first = cx.fetch(&pods, &ready);
                // These fetches depend on the first one.
                let near = RecordFilter::all().keys(first.iter().map(|(pod, _)| pod % 9));
                let even = near.clone().matching(move |_, value| value % 2 == parity);
                let some = RecordFilter::all().matching(move |pod: &u32, ready: &bool| *ready || pod % 2 == parity);
                let halves = cx.fetch_part(&other, &RecordFilter::all().keys(0..4), |value: &u32| value / 2);
                let exist: Vec<bool> = first.iter().map(|(pod, _)| cx.exists(&other, &(pod % 5))).collect();
                let parts = cx.fetch_part_by(&by, &parity, &RecordFilter::all(), |ready: &bool| *ready);
                let looked_up = (cx.fetch(&other, &near), cx.fetch(&other, &even), cx.fetch_by(&by, key, &some));
                Some(text((&first, looked_up, halves, exist, parts)))
            }
        })));
        let others = other.filter("other-odd", |key, _| key % 2 == 1);
        let even = services.filter("services-even", |key, _| key % 2 == 0);
        outputs.push(published_copy(&even.union_disjoint("disjoint", &[others]).map("disjoint-text", |_, v| text(v))));
        Handles { pods: pods_in, services: services_in, other: other_in, outputs }
    })
}

/// The same outputs, computed from scratch with plain maps.
fn naive(pods: &Pods, services: &Services, other: &Services) -> Vec<TextByKey> {
    let fixed: Services = (0..4).map(|n| (n, 100 + n)).collect();
    let rows = |key: u32, only_ready: bool| -> Vec<(u32, bool)> {
        let rows = pods.iter().filter(|(_, (service, ready))| *service == key && (*ready || !only_ready));
        rows.map(|(pod, (_, ready))| (*pod, *ready)).collect()
    };
    let keys: BTreeSet<u32> = pods.values().filter(|(_, r)| *r).map(|(s, _)| *s).collect();
    let units = |key: u32| rows(key, true).into_iter().map(|(pod, _)| (pod, ())).collect::<Vec<_>>();
    let merged = |maps: &[&Services]| -> Services {
        maps.iter().rev().flat_map(|map| map.iter().map(|(k, v)| (*k, *v))).collect()
    };
    let looked_up: TextByKey = services
        .iter()
        .filter(|(_, port)| **port % 5 != 0)
        .map(|(key, port)| {
            let pods = rows(*key, false);
            let others: Vec<_> = pods.iter().map(|(pod, _)| other.get(&(pod % 7)).copied()).collect();
            (*key, text((port, &pods, others)))
        })
        .collect();
    let listed: Vec<_> = services.iter().map(|(k, v)| (*k, *v)).collect();
    let passes = |key: u32| other.contains_key(&8) || other.keys().any(|group| group % 4 == key % 4);
    let mut by_value: Vec<((u32, bool), u32)> = pods.iter().map(|(pod, value)| (*value, pod / 2)).collect();
    by_value.sort_unstable();
    let union = merged(&[services, other, &fixed]);
    let both: std::collections::BTreeSet<u32> = services.keys().chain(other.keys()).copied().collect();
    vec![
        pods.iter().filter(|(_, (_, r))| *r).map(|(k, v)| (*k, text(v))).collect(),
        keys.iter().map(|k| (*k, text(units(*k)))).collect(),
        keys.iter().map(|k| (*k, text(k))).collect(),
        services.iter().filter_map(|(k, a)| other.get(k).filter(|b| a != *b).map(|b| (*k, text((k, a, b))))).collect(),
        union.iter().map(|(k, v)| (*k, text(v))).collect(),
        both.iter()
            .map(|k| (*k, text((k, [services.get(k), other.get(k)].into_iter().flatten().collect::<Vec<_>>()))))
            .collect(),
        pods.iter()
            .filter_map(|(pod, (s, ready))| services.get(s).map(|port| (s * 1000 + pod, text((ready, port)))))
            .collect(),
        services.iter().flat_map(|(k, v)| (0..v % 4).map(|n| (k * 10 + n, text(v))).collect::<Vec<_>>()).collect(),
        looked_up.clone(),
        fixed.iter().map(|(k, v)| (*k, text((k, v, &listed)))).collect(),
        services
            .keys()
            .flat_map(|k| rows(*k, false).into_iter().map(|(pod, r)| (k * 1000 + pod, text(r))).collect::<Vec<_>>())
            .collect(),
        looked_up.iter().filter(|(k, _)| *k % 2 == 0).map(|(k, v)| (*k, text(v.len()))).collect(),
        chunks(pods),
        pods.iter().filter(|(pod, _)| passes(**pod)).map(|(pod, value)| (*pod, text(value))).collect(),
        // In descending order: the smallest value is inserted last.
        by_value.iter().rev().filter(|(_, half)| passes(*half)).map(|(value, half)| (*half, text(value))).collect(),
        pods.keys().enumerate().map(|(rank, pod)| (*pod, text(rank))).collect(),
        services.iter().map(|(key, port)| (*key, filtered(pods, other, *key, *port))).collect(),
        services
            .iter()
            .filter(|(key, _)| **key % 2 == 0)
            .chain(other.iter().filter(|(key, _)| **key % 2 == 1))
            .map(|(key, value)| (*key, text(value)))
            .collect(),
    ]
}

/// What the fetches with filters find for a service.
fn filtered(pods: &Pods, other: &Services, key: u32, port: u32) -> String {
    let parity = port % 2;
    let first: Vec<_> = pods.iter().filter(|(_, pod)| **pod == (key, true)).collect();
    let near: BTreeSet<u32> = first.iter().map(|(pod, _)| *pod % 9).collect();
    let near: Vec<_> = other.iter().filter(|(key, _)| near.contains(key)).collect();
    let even: Vec<_> = near.iter().copied().filter(|(_, value)| **value % 2 == parity).collect();
    let of =
        |service: u32| pods.iter().filter(move |(_, pod)| pod.0 == service).map(|(pod, (_, ready))| (*pod, *ready));
    let some: Vec<_> = of(key).filter(|(pod, ready)| *ready || pod % 2 == parity).collect();
    let halves: Vec<_> = other.iter().filter(|(key, _)| **key < 4).map(|(key, value)| (*key, value / 2)).collect();
    let exist: Vec<bool> = first.iter().map(|(pod, _)| other.contains_key(&(*pod % 5))).collect();
    text((&first, (near, even, some), halves, exist, of(parity).collect::<Vec<_>>()))
}

/// The pods of each remainder of 3, in chunks that start where half of the number is a multiple of 5.
fn chunks(pods: &Pods) -> TextByKey {
    type PodList = Vec<(u32, (u32, bool))>;
    let mut chunks: BTreeMap<(u32, Option<u32>), PodList> = BTreeMap::new();
    for group in 0..3 {
        let mut start = None;
        for (pod, value) in pods.iter().filter(|(pod, _)| *pod % 3 == group) {
            start = if pod / 2 % 5 == 0 { Some(pod / 2) } else { start };
            chunks.entry((group, start)).or_default().push((*pod, *value));
        }
    }
    let shown = chunks.into_iter().filter(|((group, _), pods)| group + 1 != pods.len() as u32);
    shown.map(|((group, start), pods)| (group + 3 * start.map_or(0, |start| start + 1), text(pods))).collect()
}

fn state(engine: &Engine, handles: &Handles) -> Vec<TextByKey> {
    let snapshot = engine.snapshot();
    handles.outputs.iter().map(|of| snapshot.iter(of).map(|(k, v)| (*k, v.clone())).collect()).collect()
}

/// The dump of every operator equals its published copy.
fn check_dumps(engine: &Engine, handles: &Handles) {
    let snapshot = engine.snapshot();
    for of in &handles.outputs {
        let name = of.name().trim_end_matches("/copy");
        let dump = engine.dump(name).expect("a dump");
        let json = |text: &String| serde_json::json!(text);
        let expected: Vec<_> = snapshot.iter(of).map(|(k, v)| (serde_json::json!(k), json(v))).collect();
        assert_eq!(dump.records().collect::<Vec<_>>(), expected, "{name}");
    }
}

/// All dumps of an engine as text, without epochs.
fn dump_bytes(engine: &Engine) -> Vec<String> {
    let dump = |name: &str| {
        let mut json = serde_json::to_value(engine.dump(name).expect("a dump")).expect("JSON");
        json["epoch"].take();
        json.to_string()
    };
    engine.graph().iter().map(|info| dump(&info.name)).collect()
}

/// A small deterministic generator: the seed reproduces a failure.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit) as u32
    }
}

/// Applies a feed to a state, and checks that the old value of each event is the value in the state.
struct FeedState {
    feed: Feed,
    state: Vec<TextByKey>,
    epoch: Epoch,
}

impl FeedState {
    fn new(engine: &Engine, outputs: usize) -> Self {
        Self { feed: engine.feed(), state: vec![TextByKey::new(); outputs], epoch: Epoch(0) }
    }

    fn catch_up(&mut self, handles: &Handles) {
        while let Some(batch) = self.feed.try_next() {
            assert_eq!(batch.from(), self.epoch);
            self.epoch = batch.epoch();
            for (of, map) in handles.outputs.iter().zip(&mut self.state) {
                for event in batch.events(of) {
                    assert_ne!(event.old, event.new, "an event without a change");
                    assert_eq!(map.get(&event.key), event.old.as_deref(), "{} {}", of.name(), event.key);
                    match event.new {
                        Some(new) => drop(map.insert(*event.key, (*new).clone())),
                        None => drop(map.remove(&event.key)),
                    }
                }
            }
        }
    }
}

/// With `copies`, the engine is replaced by a copy of itself now and then.
fn churn(seed: u64, epochs: u32, copies: bool) {
    let (mut engine, mut handles) = start();
    let mut random = Random(seed);
    let mut copied: Option<(Engine, Handles, Vec<TextByKey>)> = None;
    let (mut pods, mut services, mut other) = (Pods::new(), Services::new(), Services::new());
    let mut quick = FeedState::new(&engine, handles.outputs.len());
    let mut slow = FeedState::new(&engine, handles.outputs.len());
    for epoch in 0..epochs {
        if copies && random.below(40) == 0 {
            if let Some((original, handles, before)) = copied.take() {
                assert_eq!(
                    state(&original, &handles),
                    before,
                    "seed {seed}: a copy has changed what it was copied from"
                );
            }
            let (copy, copy_handles) = engine.start_copy(EngineOptions::default(), build).expect("a copy");
            assert_eq!(copy.snapshot().epoch(), engine.snapshot().epoch());
            assert_eq!(state(&copy, &copy_handles), state(&engine, &handles));
            assert_eq!(dump_bytes(&copy), dump_bytes(&engine));
            let sizes = |of: &Engine| of.metrics().collections.iter().map(|it| it.size).collect::<Vec<_>>();
            assert_eq!(sizes(&copy), sizes(&engine));
            copied = Some((engine, handles, naive(&pods, &services, &other)));
            (engine, handles) = (copy, copy_handles);
            (quick, slow) =
                (FeedState::new(&engine, handles.outputs.len()), FeedState::new(&engine, handles.outputs.len()));
        }
        engine.transaction(|tx| {
            for _ in 0..=random.below(6) {
                let delete = random.below(3) == 0;
                match random.below(5) {
                    0 | 1 => {
                        let (key, value) = (random.below(40), (random.below(12), random.below(2) == 0));
                        if delete {
                            pods.remove(&key);
                            tx.delete(&handles.pods, key);
                        } else {
                            pods.insert(key, value);
                            tx.set(&handles.pods, key, value);
                        }
                    }
                    2 | 3 => {
                        let (key, value) = (random.below(12), random.below(9));
                        if delete {
                            services.remove(&key);
                            tx.delete(&handles.services, key);
                        } else {
                            services.insert(key, value);
                            tx.set(&handles.services, key, value);
                        }
                    }
                    _ if random.below(20) == 0 => {
                        other = (0..random.below(9)).map(|n| (n, random.below(9))).collect();
                        tx.replace_all(&handles.other, other.clone());
                    }
                    _ => {
                        let (key, value) = (random.below(9), random.below(9));
                        if delete {
                            other.remove(&key);
                            tx.delete(&handles.other, key);
                        } else {
                            other.insert(key, value);
                            tx.set(&handles.other, key, value);
                        }
                    }
                }
            }
        });
        quick.catch_up(&handles);
        if epoch % 17 == 0 {
            slow.catch_up(&handles);
        }
        let expected = naive(&pods, &services, &other);
        let actual = state(&engine, &handles);
        for (at, of) in handles.outputs.iter().enumerate() {
            assert_eq!(actual[at], expected[at], "seed {seed}, epoch {epoch}, {}", of.name());
        }
        assert_eq!(quick.state, expected, "seed {seed}, epoch {epoch}");
        if epoch % 50 == 0 {
            check_dumps(&engine, &handles);
        }
    }
    slow.catch_up(&handles);
    assert_eq!(slow.state, state(&engine, &handles));

    // A fresh engine with the final inputs, written in another order.
    let (fresh, fresh_handles) = start();
    for (key, value) in other.iter().rev() {
        fresh_handles.other.set(*key, *value);
    }
    for (key, value) in services.iter().rev() {
        fresh_handles.services.set(*key, *value);
    }
    for (key, value) in &pods {
        fresh_handles.pods.set(*key, *value);
    }
    fresh.flush();
    assert_eq!(state(&fresh, &fresh_handles), state(&engine, &handles));
    assert_eq!(dump_bytes(&fresh), dump_bytes(&engine));
    assert_eq!(engine.panics(), []);

    // After all inputs are deleted, outputs and stores are empty and arrangements are small.
    engine.transaction(|tx| {
        tx.replace_all(&handles.pods, []);
        tx.replace_all(&handles.services, []);
        tx.replace_all(&handles.other, []);
    });
    assert_eq!(state(&engine, &handles), naive(&Pods::new(), &Services::new(), &Services::new()));
    assert_stores_are_empty(&engine, &handles);
}

/// Collections derived from `fixed`, which keep its four records.
const DERIVED_FROM_FIXED: [&str; 8] =
    ["fixed", "all", "all/copy", "union", "union-text", "union-text/copy", "fixed#2", "union#2"];

fn assert_stores_are_empty(engine: &Engine, handles: &Handles) {
    // Deleted rows are removed from arrangements when batches are merged, which takes a few epochs.
    for n in 0..100 {
        handles.pods.set(1, (n % 2, true));
        handles.services.set(1, n % 9);
        handles.other.set(1, n % 9);
        engine.flush();
    }
    handles.pods.delete(1);
    handles.services.delete(1);
    handles.other.delete(1);
    engine.flush();
    for it in engine.metrics().collections {
        if !DERIVED_FROM_FIXED.contains(&it.name.as_str()) {
            assert_eq!((it.size, it.stored, it.conflicts), (0, 0, 0), "{it:?}");
        }
        assert!(it.arranged < 40, "{it:?}");
    }
}

#[test]
fn incremental_state_equals_fresh_and_naive_state() {
    for seed in 1..=8 {
        churn(seed, 500, false);
    }
}

#[test]
fn copied_engine_continues_like_the_one_that_was_copied() {
    for seed in 11..=18 {
        churn(seed, 500, true);
    }
}

#[test]
fn another_graph_takes_over_no_state() {
    let (engine, _handles) = start();
    let other = engine.start_copy(EngineOptions::default(), |builder| {
        builder.dataflow("main", |graph| graph.input::<u32, u32>("pods").0)
    });
    assert_eq!(other.map(|_| ()).expect_err("another graph"), CopyError::OtherGraph);
}

/// The same records in any order, with intermediate values and in several epochs, give the same bytes.
#[test]
fn any_order_of_writes_gives_the_same_result() {
    let run = |seed: u64| {
        let (engine, handles) = start();
        let mut random = Random(seed);
        let mut writes: Vec<(u32, u32)> =
            (0..30).map(|n| (0, n)).chain((0..12).map(|n| (1, n))).chain((0..8).map(|n| (2, n))).collect();
        for at in (1..writes.len()).rev() {
            writes.swap(at, random.below(at as u64 + 1) as usize);
        }
        for (kind, key) in writes {
            let intermediate = random.below(3) == 0;
            match kind {
                0 => {
                    if intermediate {
                        handles.pods.set(key, (random.below(12), true));
                        engine.flush();
                    }
                    handles.pods.set(key, (key % 12, key % 3 != 0));
                }
                1 => {
                    if intermediate {
                        handles.services.set(key, random.below(9));
                        engine.flush();
                        handles.services.delete(key);
                    }
                    handles.services.set(key, key % 9 + 1);
                }
                _ => handles.other.set(key, key + 2),
            }
            if random.below(4) == 0 {
                engine.flush();
            }
        }
        engine.flush();
        dump_bytes(&engine)
    };
    let first = run(1);
    for seed in 2..12 {
        assert_eq!(run(seed), first, "seed {seed}");
    }
}
