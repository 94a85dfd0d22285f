//! `restrict`: the records of the groups that pass share their values with the records of the parent.

use std::sync::Arc;

use sluice_engine::{Engine, EngineOptions, Input, Published};

struct Handles {
    objects: Input<u32, String>,
    groups: Input<Option<u32>, ()>,
    all: Published<u32, String>,
    selected: Published<u32, String>,
}

#[test]
fn records_that_pass_share_their_values() {
    let (engine, handles) = Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("main", |graph| {
            let (objects, rows) = graph.input::<u32, String>("objects");
            let (groups, named) = graph.input::<Option<u32>, ()>("groups");
            let selected = rows.restrict("selected", &named, |key| key % 4);
            Handles { objects, groups, all: rows.publish(), selected: selected.publish() }
        })
    });
    let shared = || {
        let now = engine.snapshot();
        let keys: Vec<u32> = now.iter(&handles.selected).map(|(key, _)| *key).collect();
        for key in &keys {
            let [whole, selected] = [&handles.all, &handles.selected].map(|of| now.get(of, key));
            assert!(whole.zip(selected).is_some_and(|(a, b)| Arc::ptr_eq(&a, &b)), "{key} has a copy");
        }
        keys.len()
    };
    let stored = || {
        let collections = engine.metrics().collections;
        collections.iter().find(|collection| collection.name == "selected").map(|collection| collection.stored)
    };
    engine.transaction(|tx| {
        for key in 0..40 {
            tx.set(&handles.objects, key, format!("object {key}"));
        }
        tx.set(&handles.groups, Some(1), ());
    });
    assert_eq!((shared(), stored()), (10, Some(40)), "one reference for each record, whether it passes or not");
    // A group that begins to pass, a changed record, and all records.
    engine.transaction(|tx| {
        tx.set(&handles.groups, Some(2), ());
        tx.set(&handles.objects, 1, "changed".to_owned());
    });
    assert_eq!((shared(), stored()), (20, Some(40)));
    engine.transaction(|tx| tx.set(&handles.groups, None, ()));
    assert_eq!((shared(), stored()), (40, Some(40)));
    engine.transaction(|tx| tx.delete(&handles.groups, None));
    assert_eq!((shared(), stored()), (20, Some(40)));
}
