//! ControlZ, with the topics about the control plane (O12): version, metrics, collections and epochs.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use serde::Serialize;
use serde_json::{Value, json};
use sluice_controlz::Topic;

use crate::version::BUILD;
use crate::{AdminState, access, metrics};

/// All pages of ControlZ, with the access control of the debug pages. `is_shown` says of which environment variables the value may
/// be shown.
pub fn controlz_router(
    state: Arc<AdminState>,
    is_shown: impl Fn(&str) -> bool + Clone + Send + Sync + 'static,
) -> Router {
    let topics = vec![
        sluice_controlz::arguments(),
        sluice_controlz::environment(is_shown),
        sluice_controlz::memory(),
        sluice_controlz::process(),
        sluice_controlz::scopes(state.log.clone()),
        sluice_controlz::signals(),
        Topic::of_value("version", "Version Info", "the build", || value(&BUILD)),
        of_state(&state, "metric", "Metrics", "all metrics, as /metrics shows them", |state| {
            match metrics::text(state) {
                Ok(text) => rows(&text),
                Err(error) => json!({"error": error}),
            }
        }),
        of_state(&state, "collection", "Collections", "the collections of the dataflow: size and cost", collections),
        of_state(&state, "epoch", "Epochs", "recent epochs: written inputs, changed collections, time", |state| {
            value(&state.engine.recent_epochs())
        }),
    ];
    access::restrict(sluice_controlz::router(topics), state)
}

fn of_state(
    state: &Arc<AdminState>,
    prefix: &str,
    title: &'static str,
    about: &'static str,
    read: impl Fn(&AdminState) -> Value + Clone + Send + Sync + 'static,
) -> Topic {
    let state = state.clone();
    Topic::of_value(prefix, title, about, move || read(&state))
}

/// A row for each collection.
fn collections(state: &AdminState) -> Value {
    let metrics = state.engine.metrics();
    let mut by_name: BTreeMap<_, _> = metrics.collections.into_iter().map(|it| (it.name.clone(), it)).collect();
    let row = |info: &sluice_engine::CollectionInfo| {
        let mut row = value(info);
        let metrics = by_name.remove(&info.name).map(|metrics| value(&metrics)).unwrap_or_default();
        if let (Some(row), Value::Object(metrics)) = (row.as_object_mut(), metrics) {
            row.extend(metrics);
        }
        row
    };
    state.engine.graph().iter().map(row).collect()
}

/// A row for each sample of a metrics page.
fn rows(text: &str) -> Value {
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    samples.map(|(metric, value)| json!({"metric": metric, "value": value})).collect()
}

fn value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn samples_keep_their_labels() {
        let text = "# HELP a b\na{b=\"c d\"} 1\nx 2.5\n# EOF\n";
        let expected = serde_json::json!([{"metric": "a{b=\"c d\"}", "value": "1"}, {"metric": "x", "value": "2.5"}]);
        assert_eq!(super::rows(text), expected);
    }
}
