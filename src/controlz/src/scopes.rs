//! The scopes of the log, which `istioctl admin log` reads and changes.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use sluice_telemetry::{LogControl, ScopeChange, ScopeLevel, ScopeState};
use tracing::info;

use crate::page::page as html_page;
use crate::topic::redirect;
use crate::{Page, Topic, fail, json};

/// The topic of the log's scopes.
#[must_use]
pub fn scopes(log: LogControl) -> Topic {
    let router = Router::new()
        .route("/scopez/", get(page))
        .route("/scopej", redirect("/scopej/".to_owned()))
        .route("/scopej/", get(list))
        .route("/scopej/{scope}", get(show).put(change))
        .with_state(log);
    Topic::new("scope", "Logging Scopes", "levels of the log by scope", router)
}

/// A scope as JSON.
#[derive(Serialize)]
struct ScopeJson {
    name: &'static str,
    description: &'static str,
    output_level: &'static str,
    stack_trace_level: &'static str,
    log_callers: bool,
}

impl From<ScopeState> for ScopeJson {
    fn from(scope: ScopeState) -> Self {
        let ScopeState { name, description, output_level, stack_trace_level, log_callers } = scope;
        let (output_level, stack_trace_level) = (output_level.name(), stack_trace_level.name());
        Self { name, description, output_level, stack_trace_level, log_callers }
    }
}

/// A change of a scope as JSON. istioctl leaves out what it does not change, and always sends the name, which is also part of
/// the path.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ChangeJson {
    output_level: String,
    stack_trace_level: String,
    log_callers: Option<bool>,
}

impl ChangeJson {
    /// The change, or the text of the error.
    fn parse(&self) -> Result<ScopeChange, String> {
        let level = |field: &str, text: &str| match text {
            "" => Ok(None),
            text => ScopeLevel::parse(text)
                .map(Some)
                .ok_or_else(|| format!("{field}: {text:?} is not a level: use none, error, warn, info or debug")),
        };
        Ok(ScopeChange {
            output_level: level("output_level", &self.output_level)?,
            stack_trace_level: level("stack_trace_level", &self.stack_trace_level)?,
            log_callers: self.log_callers,
        })
    }
}

async fn list(State(log): State<LogControl>) -> Response {
    json(&log.scopes().into_iter().map(ScopeJson::from).collect::<Vec<_>>())
}

async fn show(State(log): State<LogControl>, Path(name): Path<String>) -> Response {
    match log.scope(&name) {
        Ok(scope) => json(&ScopeJson::from(scope)),
        Err(unknown) => fail(StatusCode::BAD_REQUEST, &unknown.to_string()),
    }
}

async fn change(State(log): State<LogControl>, Path(name): Path<String>, body: Bytes) -> Response {
    let change = match serde_json::from_slice::<ChangeJson>(&body) {
        Ok(change) => change.parse(),
        Err(error) => Err(format!("unable to decode request: {error}")),
    };
    let changed = change.and_then(|change| log.change_scope(&name, &change).map_err(|unknown| unknown.to_string()));
    if let Err(reason) = changed {
        return fail(StatusCode::BAD_REQUEST, &reason);
    }
    info!(scope = name, change = %String::from_utf8_lossy(&body).trim(), "changed a scope of the log");
    StatusCode::ACCEPTED.into_response()
}

async fn page(State(log): State<LogControl>) -> Page {
    let row = |scope: ScopeState| {
        let ScopeJson { name, description, output_level, stack_trace_level, log_callers } = scope.into();
        format!(
            "<tr><td>{name}</td><td>{description}</td><td>{output_level}</td><td>{stack_trace_level}</td>\
             <td>{log_callers}</td></tr>"
        )
    };
    let rows: String = log.scopes().into_iter().map(row).collect();
    let head = "<tr><th>Scope</th><th>Lines about</th><th>Level</th><th>Stack trace level</th><th>Callers</th></tr>";
    let help = "<p><code>istioctl admin log --level SCOPE:LEVEL</code> changes a level.</p>";
    html_page("Logging Scopes", &format!("<table>{head}{rows}</table>{help}"))
}
