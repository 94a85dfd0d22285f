//! `/console/timeline`: the stages of recent changes, from the event of the source until proxies have acknowledged them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use axum::response::{Html, IntoResponse};
use maud::{Markup, html};
use sluice_engine::{EpochSummary, HistoryQuery};
use sluice_xds::EpochPush;

use super::{blocking, layout};
use crate::AdminState;
use crate::answers::{WrittenObject, changed_resources, time_ago, written};
use crate::epoch_times::EpochTimes;

/// Epochs on the page.
const MAX_EPOCHS: usize = 100;
/// Objects that are listed for each epoch.
const MAX_OBJECTS: usize = 3;
/// Size of the bar of an epoch in pixels.
const BAR_WIDTH: f64 = 240.0;
const BAR_HEIGHT: f64 = 14.0;

/// The stages in their order: class of the style sheet, title, heading of the column.
const STAGES: [(&str, &str, &str); 5] = [
    ("received", "received → parsed", "Parsed"),
    ("dataflow", "parsed → committed", "Committed"),
    ("queued", "committed → first sent", "First sent"),
    ("sending", "first sent → last sent", "Last sent"),
    ("waiting", "last sent → acknowledged", "Acknowledged"),
];

pub(super) async fn serve(State(state): State<Arc<AdminState>>) -> Response<Body> {
    blocking(state, |state| render(state).into_response()).await
}

/// A change with the time of each stage; `None` for stages that it has not reached.
struct StagedEpoch {
    epoch: u64,
    at: String,
    objects: Vec<WrittenObject>,
    stages: [Option<Duration>; STAGES.len()],
    /// Responses that were acknowledged, and that were sent; or why there are none.
    responses: Result<(usize, usize), &'static str>,
}

impl StagedEpoch {
    fn new(
        epoch: &EpochSummary,
        objects: Vec<WrittenObject>,
        push: Result<&EpochPush, &'static str>,
        now: SystemTime,
    ) -> Self {
        let times = EpochTimes::of(epoch, now);
        let received = times.parsed.duration_since(times.received).unwrap_or_default();
        let sent = push.ok().map(|push| {
            let queued = push.first_sent.saturating_duration_since(push.times.committed);
            (queued, push.last_sent.saturating_duration_since(push.first_sent))
        });
        let acknowledged = push.ok().and_then(|push| {
            push.last_acknowledged.map(|acknowledged| acknowledged.saturating_duration_since(push.last_sent))
        });
        Self {
            epoch: epoch.epoch.0,
            at: time_ago(epoch.age),
            objects,
            stages: [
                Some(received),
                Some(epoch.took),
                sent.map(|(queued, _)| queued),
                sent.map(|(_, sending)| sending),
                acknowledged,
            ],
            responses: push.map(|push| (push.acknowledged, push.sent)),
        }
    }

    fn total(&self) -> Duration {
        self.stages.iter().flatten().sum()
    }
}

fn render(state: &AdminState) -> Html<String> {
    let now = SystemTime::now();
    let pushes: BTreeMap<u64, EpochPush> =
        state.status.pushes().into_iter().map(|push| (push.times.source_epoch, push)).collect();
    let epochs = state.engine.history(HistoryQuery::recent(0));
    let changes = epochs.iter().rev().map(|epoch| (epoch, written(&epoch.writes)));
    let changes = changes.filter(|(_, objects)| !objects.is_empty()).take(MAX_EPOCHS);
    let staged: Vec<StagedEpoch> = changes
        .map(|(epoch, objects)| {
            let push = pushes.get(&epoch.epoch.0).ok_or_else(|| unsent_reason(state, epoch));
            StagedEpoch::new(epoch, objects, push, now)
        })
        .collect();
    let longest = staged.iter().map(StagedEpoch::total).max().unwrap_or_default();
    let rows: Vec<Markup> = staged.iter().map(|staged| row(staged, longest)).collect();
    let mut columns = vec!["Epoch", "At", "Objects", "Stages"];
    columns.extend(STAGES.map(|(_, _, heading)| heading));
    columns.push("Responses");
    let content = html! {
        p.soft {
            "Times in ms. " @for (class, title, _) in STAGES { span class={ "key " (class) } {} " " (title) ". " }
            "Responses: those that are acknowledged, of those that were sent. A response with the changes of several epochs counts for the first of them. Responses to new subscriptions do not count."
        }
        (layout::table("Stages of recent changes", &columns, &rows))
    };
    layout::page("/console/timeline", "Timeline", false, &content)
}

/// Why no response is known for an epoch.
fn unsent_reason(state: &AdminState, epoch: &EpochSummary) -> &'static str {
    match epoch.keys.omitted() || !changed_resources(&state.handles, &epoch.keys).is_empty() {
        true => "none for this epoch alone",
        false => "no resource changed",
    }
}

fn milliseconds(stage: Duration) -> f64 {
    stage.as_secs_f64() * 1e3
}

fn row(staged: &StagedEpoch, longest: Duration) -> Markup {
    html! {
        tr {
            td.number { (staged.epoch) }
            td.short { (staged.at) }
            td.objects {
                @for object in staged.objects.iter().take(MAX_OBJECTS) { div { (object.version.object) @if object.deleted { " (deleted)" } } }
                @if staged.objects.len() > MAX_OBJECTS { div.soft { "and " (staged.objects.len() - MAX_OBJECTS) " more" } }
            }
            td { (bar(staged, longest)) }
            @for stage in staged.stages { td.number { @if let Some(stage) = stage { (format!("{:.1}", milliseconds(stage))) } } }
            td.short {
                @match staged.responses {
                    Ok((acknowledged, sent)) => { (acknowledged) " of " (sent) }
                    Err(reason) => span.soft { (reason) }
                }
            }
        }
    }
}

/// The stages as a bar. All bars of the page have the same scale.
fn bar(staged: &StagedEpoch, longest: Duration) -> Markup {
    let scale = BAR_WIDTH / milliseconds(longest).max(0.001);
    let label = format!("{:.1} ms of {:.1} ms", milliseconds(staged.total()), milliseconds(longest));
    let mut left = 0.0;
    let mut parts = Vec::new();
    for ((class, ..), stage) in STAGES.iter().zip(staged.stages) {
        let width = milliseconds(stage.unwrap_or_default()) * scale;
        if width > 0.0 {
            parts.push((class, left, width.max(1.0)));
        }
        left += width;
    }
    html! {
        svg.bar role="img" aria-label=(label) width=(BAR_WIDTH) height=(BAR_HEIGHT) viewBox={ "0 0 " (BAR_WIDTH) " " (BAR_HEIGHT) } {
            @for (class, left, width) in parts {
                rect class=(class) x=(format!("{left:.1}")) y="0" width=(format!("{width:.1}")) height=(BAR_HEIGHT) {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sluice_engine::{ChangedKeys, Epoch, Origin, Write};
    use sluice_xds_protocol::ChangeTimes;

    use super::*;

    #[test]
    fn stages_follow_each_other() {
        let (now, start) = (SystemTime::now(), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let origin = Origin { received: Some(since_1970 - Duration::from_millis(1_010)), ..Origin::version("1") };
        let write = Write {
            collection: "raw_virtual_services".to_owned(),
            key: serde_json::json!({"cluster": "a", "namespace": "shop", "name": "cart"}),
            origin: Some(origin),
            deleted: false,
        };
        let epoch = EpochSummary {
            epoch: Epoch(7),
            age: Duration::from_secs(1),
            took: Duration::from_millis(4),
            writes: vec![write],
            write_count: 1,
            changed: Vec::new(),
            keys: ChangedKeys::default(),
        };
        let push = EpochPush {
            times: ChangeTimes { source_epoch: 7, source: start, parsed: start, committed: at(10) },
            sent: 2,
            first_sent: at(12),
            last_sent: at(17),
            acknowledged: 1,
            last_acknowledged: Some(at(25)),
        };
        let staged = StagedEpoch::new(&epoch, Vec::new(), Ok(&push), now);
        let millis = staged.stages.map(|stage| stage.map(|stage| stage.as_millis()));
        assert_eq!(millis, [Some(6), Some(4), Some(2), Some(5), Some(8)]);
        let text = row(&staged, Duration::from_millis(50)).into_string();
        assert!(text.contains("1 of 2") && text.contains("25.0 ms of 50.0 ms"), "{text}");
        assert_eq!(text.matches("<rect").count(), 5, "{text}");
        let unsent = StagedEpoch::new(&epoch, Vec::new(), Err("no resource changed"), now);
        assert_eq!(unsent.stages.iter().flatten().count(), 2);
        assert!(row(&unsent, Duration::ZERO).into_string().contains("no resource changed"));
    }
}
