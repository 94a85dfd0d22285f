//! `/debug/pprof` (O08): profiles of the process for `go tool pprof`, with the paths of istiod.

use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query};
use axum::http::{Response, StatusCode, header};
use axum::response::{Html, IntoResponse};
use maud::html;
use sluice_profiling::{MAX_CPU_TIME, ProfileError};

use crate::answer::{self, PageResult, Parameters};
use crate::html;

/// The time of a CPU profile, if the request states none.
const DEFAULT_CPU_TIME: Duration = Duration::from_secs(30);

/// What each profile shows.
const PROFILES: [(&str, &str); 3] = [
    ("profile", "CPU time by function and thread (?seconds=30)"),
    ("heap", "memory in use by the function that allocated it"),
    ("cmdline", "the command line"),
];

/// The list of profiles. It links to none, because each takes time or needs a setting.
pub(crate) async fn index() -> Html<String> {
    let body = html! {
        p { "Read a profile with " code { "go tool pprof http://HOST:PORT/debug/pprof/NAME" } "." }
        table { @for (name, help) in PROFILES { tr { (html::cell(&name)) (html::cell(&help)) } } }
    };
    html::page("/debug/pprof/", &body)
}

/// A profile.
pub(crate) async fn profile(Path(name): Path<String>, Query(parameters): Query<Parameters>) -> PageResult {
    let seconds = parameters.get("seconds").filter(|seconds| !seconds.is_empty());
    let profile = match (name.as_str(), seconds) {
        ("cmdline", _) => return Ok(command_line()),
        ("profile", seconds) => {
            sluice_profiling::cpu_profile(
                cpu_time(seconds).map_err(|reason| answer::fail(StatusCode::BAD_REQUEST, &reason))?,
            )
            .await
        }
        ("heap", Some(_)) => {
            let reason =
                "a heap profile shows the present: leave out seconds, and compare two profiles with -diff_base";
            return Err(answer::fail(StatusCode::BAD_REQUEST, reason));
        }
        ("heap", None) => sluice_profiling::heap_profile().await,
        _ => {
            let names: Vec<&str> = PROFILES.iter().map(|(name, _)| *name).collect();
            let reason = format!("there is no profile {name:?}; there are {}", names.join(", "));
            return Err(answer::fail(StatusCode::NOT_FOUND, &reason));
        }
    };
    let profile = profile.map_err(|error| {
        let status = match error {
            ProfileError::Busy => StatusCode::TOO_MANY_REQUESTS,
            ProfileError::HeapNotSampled => StatusCode::NOT_IMPLEMENTED,
            ProfileError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        answer::fail(status, &error.to_string())
    })?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, profile).into_response())
}

fn cpu_time(seconds: Option<&String>) -> Result<Duration, String> {
    let Some(text) = seconds else { return Ok(DEFAULT_CPU_TIME) };
    let time = text.parse().ok().map(Duration::from_secs).filter(|time| !time.is_zero() && *time <= MAX_CPU_TIME);
    time.ok_or_else(|| format!("seconds={text:?} is no number from 1 to {}", MAX_CPU_TIME.as_secs()))
}

/// The program and its arguments, separated by NUL.
fn command_line() -> Response<Body> {
    let arguments: Vec<_> = std::env::args_os().map(|argument| argument.as_bytes().to_vec()).collect();
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, arguments.join(&0)).into_response()
}
