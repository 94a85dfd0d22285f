//! The format of a log line: that of istiod, as text or JSON.

use std::backtrace::Backtrace;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::LogFormat;
use super::levels::scope_of;
use super::scopes::LineDetails;

/// Lines `TIME<tab>LEVEL<tab>SCOPE<tab>MESSAGE key=value ..`, or JSON objects.
///
/// Where the scope logs callers, `FILE:LINE` precedes the message. Where it logs stack traces, one follows the line.
pub(super) struct Lines {
    pub(super) format: LogFormat,
    pub(super) details: LineDetails,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG | Level::TRACE => "debug",
        };
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let scope = scope_of(event.metadata().target());
        let caller = self.details.logs_callers(scope).then(|| caller(event.metadata())).flatten();
        let has_stack_trace = *event.metadata().level() <= self.details.stack_trace_level(scope);
        let stack_trace = has_stack_trace.then(|| Backtrace::force_capture().to_string());
        let mut spans = Vec::new();
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(text) = span.extensions().get::<FormattedFields<N>>()
                && !text.is_empty()
            {
                spans.push(format!("{}{{{}}}", span.name(), text));
            }
        }
        if let Some(names) = names(self.format) {
            let level = if self.format == LogFormat::Stackdriver { severity(event.metadata().level()) } else { level };
            let mut object = Map::new();
            let spans = (!spans.is_empty()).then(|| spans.join(" "));
            let parts = [
                (names.level, Some(level.to_owned())),
                (names.time, Some(time)),
                (names.scope, Some(scope.to_owned())),
                (names.caller, caller),
                (names.message, Some(fields.message)),
                ("span", spans),
            ];
            for (name, value) in parts {
                object.extend(value.map(|value| (name.to_owned(), value.into())));
            }
            for (name, value) in fields.others {
                object.entry(name).or_insert(value);
            }
            object.extend(stack_trace.map(|stack_trace| (names.stack_trace.to_owned(), stack_trace.into())));
            return writeln!(writer, "{}", Value::Object(object));
        }
        write!(writer, "{time}\t{level}\t{scope}\t")?;
        if let Some(caller) = caller {
            write!(writer, "{caller}\t")?;
        }
        write!(writer, "{}", one_line(&fields.message))?;
        for (name, value) in &fields.others {
            match value {
                Value::String(text) if needs_quotes(text) => write!(writer, " {name}={text:?}")?,
                Value::String(text) => write!(writer, " {name}={text}")?,
                other => write!(writer, " {name}={other}")?,
            }
        }
        if !spans.is_empty() {
            write!(writer, "\t{}", spans.join(" "))?;
        }
        writeln!(writer)?;
        stack_trace.map_or(Ok(()), |stack_trace| writeln!(writer, "{}", stack_trace.trim_end()))
    }
}

/// The names of the parts of a line.
struct Names {
    level: &'static str,
    time: &'static str,
    scope: &'static str,
    caller: &'static str,
    message: &'static str,
    stack_trace: &'static str,
}

/// The names of the parts of a JSON object, as in istiod.
fn names(format: LogFormat) -> Option<Names> {
    match format {
        LogFormat::Text => None,
        LogFormat::Json => Some(Names {
            level: "level",
            time: "time",
            scope: "scope",
            caller: "caller",
            message: "msg",
            stack_trace: "stack",
        }),
        LogFormat::Stackdriver => Some(Names {
            level: "severity",
            time: "timestamp",
            scope: "logger",
            caller: "caller",
            message: "message",
            stack_trace: "stacktrace",
        }),
    }
}

/// The name of a level in Google Cloud Logging.
fn severity(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
    }
}

/// The position of the code that logs.
fn caller(metadata: &Metadata<'_>) -> Option<String> {
    Some(format!("{}:{}", metadata.file()?, metadata.line()?))
}

fn needs_quotes(text: &str) -> bool {
    text.is_empty() || text.chars().any(|c| c.is_whitespace() || c == '"' || c.is_control())
}

/// Escapes line breaks, so that a value from outside cannot forge a log line.
fn one_line(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r")
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(String, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        if field.name() != "message" {
            self.others.push((field.name().to_owned(), value));
        } else if let Value::String(text) = value {
            self.message = text;
        } else {
            self.message = value.to_string();
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // A `Debug` that fails leaves what it wrote.
        let _ = write!(text, "{value:?}");
        self.add(field, text.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value.to_string().into());
    }
}
