//! A change that is traced, and its spans.

use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};

/// Objects that a trace names.
const MAX_OBJECTS: usize = 20;
/// Proxies that have a span of their own: those that acknowledged last.
const MAX_PROXIES: usize = 20;

/// The id of a sampled trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TraceId(pub(crate) opentelemetry::TraceId);

/// A change, from the moment at which a source received it until proxies have acknowledged it.
#[derive(Clone, Debug)]
pub struct ChangeTrace {
    /// The id of the trace.
    pub id: TraceId,
    /// The epoch that it belongs to.
    pub epoch: u64,
    /// The objects that were written in the epoch.
    pub objects: Vec<ChangedObject>,
    /// Changed resources, by the short name of their type.
    pub resources: Vec<(&'static str, usize)>,
    /// When the first object of the epoch was received.
    pub received: SystemTime,
    /// When its objects were parsed and the epoch began.
    pub parsed: SystemTime,
    /// When the epoch ended.
    pub committed: SystemTime,
    /// When following it ended.
    pub ended: SystemTime,
    /// The number of proxies that it concerns.
    pub concerned: usize,
    /// Those that acknowledged it.
    pub acknowledged: Vec<AcknowledgedProxy>,
    /// How it ended.
    pub outcome: TraceOutcome,
}

/// An object that was written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChangedObject {
    /// `KIND/NAMESPACE/NAME`.
    pub object: String,
    /// Its resourceVersion, or `FILE:LINE`.
    pub version: String,
    /// Whether it was deleted.
    pub deleted: bool,
}

/// A proxy that acknowledged a change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AcknowledgedProxy {
    /// `pod.namespace`.
    pub proxy: String,
    /// When its last response was sent, if that is known.
    pub sent: Option<SystemTime>,
    /// When it acknowledged the last changed resource.
    pub acknowledged: SystemTime,
}

/// How a trace ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TraceOutcome {
    /// All proxies acknowledged the change.
    Acknowledged,
    /// Some did not in time; the text names them.
    Incomplete(String),
}

impl ChangeTrace {
    /// The spans: the change, its stages, and the proxies that acknowledged last.
    pub(crate) fn spans(&self, scope: &InstrumentationScope) -> Vec<SpanData> {
        let spans = Spans { trace: self.id, scope, ids: RandomIdGenerator::default() };
        let acknowledged = self.acknowledged.iter().map(|proxy| proxy.acknowledged).max();
        let end = match self.outcome {
            TraceOutcome::Acknowledged => acknowledged.unwrap_or(self.committed),
            TraceOutcome::Incomplete(_) => self.ended,
        };
        let end = end.max(self.committed);
        let mut change = spans.span(SpanId::INVALID, self.name(), (self.received, end), self.attributes());
        if let TraceOutcome::Incomplete(reason) = &self.outcome {
            change.status = Status::error(reason.clone());
        }
        let of = change.span_context.span_id();
        let mut all = vec![
            spans.span(of, "parse".to_owned(), (self.received, self.parsed), Vec::new()),
            spans.span(of, "compute".to_owned(), (self.parsed, self.committed), Vec::new()),
        ];
        if self.concerned > 0 {
            let serving = spans.span(of, "serve".to_owned(), (self.committed, end), Vec::new());
            let parent = serving.span_context.span_id();
            all.push(serving);
            all.extend(self.last_proxies().into_iter().map(|proxy| self.proxy_span(&spans, parent, proxy)));
        }
        all.insert(0, change);
        all
    }

    /// A name with the kind only, so that traces can be grouped by it.
    fn name(&self) -> String {
        let kind = |object: &ChangedObject| object.object.split('/').next().unwrap_or_default().to_owned();
        match self.objects.as_slice() {
            [] => "change".to_owned(),
            [first, others @ ..] if others.iter().all(|other| kind(other) == kind(first)) => {
                format!("change {}", kind(first))
            }
            _ => "change of several kinds".to_owned(),
        }
    }

    fn attributes(&self) -> Vec<KeyValue> {
        let texts = |text: fn(&ChangedObject) -> String| {
            let texts: Vec<StringValue> =
                self.objects.iter().take(MAX_OBJECTS).map(|object| text(object).into()).collect();
            Value::Array(Array::String(texts))
        };
        let mut attributes = vec![
            KeyValue::new("sluice.epoch", count(usize::try_from(self.epoch).unwrap_or(usize::MAX))),
            KeyValue::new("sluice.objects", texts(|object| object.object.clone())),
            KeyValue::new("sluice.object.versions", texts(|object| object.version.clone())),
            KeyValue::new("sluice.object.count", count(self.objects.len())),
            KeyValue::new("sluice.proxies.concerned", count(self.concerned)),
            KeyValue::new("sluice.proxies.acknowledged", count(self.acknowledged.len())),
        ];
        if self.objects.iter().any(|object| object.deleted) {
            let deleted = self.objects.iter().filter(|object| object.deleted).take(MAX_OBJECTS);
            let deleted = deleted.map(|object| StringValue::from(object.object.clone())).collect();
            attributes.push(KeyValue::new("sluice.objects.deleted", Value::Array(Array::String(deleted))));
        }
        let resources = self.resources.iter();
        attributes.extend(resources.map(|(kind, of)| KeyValue::new(format!("sluice.resources.{kind}"), count(*of))));
        attributes
    }

    /// The proxies that acknowledged last, the last one first.
    fn last_proxies(&self) -> Vec<&AcknowledgedProxy> {
        let mut proxies: Vec<_> = self.acknowledged.iter().collect();
        proxies.sort_by(|one, other| (other.acknowledged, &one.proxy).cmp(&(one.acknowledged, &other.proxy)));
        proxies.truncate(MAX_PROXIES);
        proxies
    }

    fn proxy_span(&self, spans: &Spans<'_>, parent: SpanId, proxy: &AcknowledgedProxy) -> SpanData {
        let attributes = vec![KeyValue::new("sluice.proxy", proxy.proxy.clone())];
        let mut span = spans.span(parent, "acknowledge".to_owned(), (self.committed, proxy.acknowledged), attributes);
        if let Some(sent) = proxy.sent {
            let event = opentelemetry::trace::Event::new("sent", sent.max(self.committed), Vec::new(), 0);
            span.events.events.push(event);
        }
        span
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Makes the spans of a trace.
struct Spans<'a> {
    trace: TraceId,
    scope: &'a InstrumentationScope,
    ids: RandomIdGenerator,
}

impl Spans<'_> {
    fn span(
        &self,
        parent: SpanId,
        name: String,
        (start, end): (SystemTime, SystemTime),
        attributes: Vec<KeyValue>,
    ) -> SpanData {
        let flags = TraceFlags::SAMPLED;
        SpanData {
            span_context: SpanContext::new(self.trace.0, self.ids.new_span_id(), flags, false, TraceState::default()),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: start,
            // The clock of the system may be set back meanwhile.
            end_time: end.max(start),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}
