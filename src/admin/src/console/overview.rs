//! `/console`: the state of this instance in numbers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use axum::response::Html;
use maud::html;
use sluice_xds_protocol::SyncState;

use super::{blocking, layout};
use crate::AdminState;
use crate::version::BUILD;

/// What the streams of all proxies have in common.
#[derive(Default)]
struct StreamTotals {
    streams: usize,
    /// Streams that have rejected the last response of a type.
    rejecting: usize,
    /// Streams that have not acknowledged the last response of a type.
    waiting: usize,
    /// Age of the oldest response that is not acknowledged.
    oldest: Option<Duration>,
}

pub(super) async fn serve(State(state): State<Arc<AdminState>>) -> Response<Body> {
    blocking(state, render).await
}

fn stream_totals(state: &AdminState) -> StreamTotals {
    let now = Instant::now();
    let mut totals = StreamTotals::default();
    for stream in state.status.streams() {
        totals.streams += 1;
        let has = |wanted: SyncState| stream.types.values().any(|status| status.state() == wanted);
        totals.rejecting += usize::from(has(SyncState::Error));
        totals.waiting += usize::from(has(SyncState::Stale));
        let since = stream.types.values().filter_map(|status| status.unacked_since).min();
        totals.oldest = totals.oldest.max(since.map(|since| now.saturating_duration_since(since)));
    }
    totals
}

/// The age of the collection that an API server has not confirmed for the longest time.
fn oldest_watch(state: &AdminState) -> Option<f64> {
    let clusters = state.cluster_ids();
    let ages = clusters.iter().flat_map(|cluster| state.watches.of(cluster)).map(|watch| watch.age_seconds);
    ages.max_by(f64::total_cmp)
}

fn render(state: &AdminState) -> Html<String> {
    let (engine, totals, snapshot) = (state.engine.metrics(), stream_totals(state), state.engine.snapshot());
    let findings: usize = snapshot.iter(&state.handles.rejects).map(|(_, rejects)| rejects.len()).sum();
    let pending = state.readiness.pending();
    let seconds = |time: f64| format!("{time:.1} s");
    let tiles: Vec<(&str, String, String)> = vec![
        ("Connected streams", totals.streams.to_string(), String::new()),
        ("Streams with a rejected response", totals.rejecting.to_string(), String::new()),
        ("Streams that have not acknowledged", totals.waiting.to_string(), String::new()),
        (
            "Oldest unacknowledged response",
            totals.oldest.map_or_else(|| "none".to_owned(), |age| seconds(age.as_secs_f64())),
            String::new(),
        ),
        ("Findings", findings.to_string(), format!("and {} invalid files", state.reporter.problems().len())),
        (
            "Oldest watched collection",
            oldest_watch(state).map_or_else(|| "none".to_owned(), seconds),
            format!("{} failing", state.watches.failing().len()),
        ),
        ("Served epoch", state.status.served_epoch().to_string(), format!("of {}", snapshot.epoch().0)),
        ("Last epoch", milliseconds(engine.last_epoch), format!("longest {}", milliseconds(engine.longest_epoch))),
        ("Queued writes", engine.queued.to_string(), format!("{} in the last epoch", engine.last_batch)),
        ("Panics of closures", state.engine.panics().len().to_string(), String::new()),
        ("Clusters", state.cluster_ids().len().to_string(), String::new()),
    ];
    let content = html! {
        p {
            @if pending.is_empty() { (layout::mark("good", "Ready")) } @else {
                (layout::mark("bad", "Not ready"))
                @for reason in &pending { ": " (reason) }
            }
            span.soft {
                @if !state.options.pod_name.is_empty() { " · instance " (state.options.pod_name) }
                " · version " (BUILD.tag) " · cluster " (state.options.cluster)
            }
        }
        dl.tiles {
            @for (name, value, detail) in &tiles {
                div { dt { (name) } dd { (value) " " small { (detail) } } }
            }
        }
    };
    layout::page("/console", "Overview", true, &content)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
