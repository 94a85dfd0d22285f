//! The pages `/debug/why`, `/debug/why_not`, `/debug/wait` and `/debug/history`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};

use super::AnswerError;
use super::authorization::{AuthorizationQuestion, authorization};
use super::describe::{DescribeQuestion, describe};
use super::history::{DEFAULT_EPOCHS, HistoryQuestion, history};
use super::names::ObjectName;
use super::wait::{Goal, Wait, WaitProgress, WaitQuestion};
use super::why::{WhyQuestion, why};
use super::why_not::{WhyNotQuestion, why_not};
use crate::AdminState;
use crate::answer::{self, Parameters};

/// A wait looks at the proxies again after this multiple of the time that the last look took, so that it takes a sixth of a CPU
/// at most while a look takes up to 20 ms, and after at least and at most these times.
const WAIT_PAUSE_FACTOR: u32 = 5;
const MIN_WAIT_PAUSE: Duration = Duration::from_millis(20);
const MAX_WAIT_PAUSE: Duration = Duration::from_millis(100);
/// One wait looks at the proxies at a time, so that many waits take no more than one CPU.
static WAIT_POLLS: Semaphore = Semaphore::const_new(1);
/// A wait writes a line at least this often, so that a client notices that the server is gone.
const WAIT_LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit of a wait, by default and at most.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Waits in progress at a time.
const MAX_WAITS: usize = 64;
static WAITS: Semaphore = Semaphore::const_new(MAX_WAITS);

/// A parameter, if it is set to something.
fn parameter<'a>(parameters: &'a Parameters, name: &str) -> Option<&'a str> {
    parameters.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

fn required(parameters: &Parameters, names: &[&str]) -> Result<Vec<String>, AnswerError> {
    let missing = |name: &&str| AnswerError::BadRequest(format!("parameter {name} is missing"));
    names.iter().map(|name| parameter(parameters, name).map(str::to_owned).ok_or_else(|| missing(name))).collect()
}

/// A time in seconds or in the form of Go: `90`, `90s`, `1h30m`.
pub(crate) fn duration(parameters: &Parameters, name: &str) -> Result<Option<Duration>, AnswerError> {
    let Some(text) = parameter(parameters, name) else { return Ok(None) };
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let parsed = seconds.or_else(|| text.parse::<jiff::SignedDuration>().ok().and_then(|it| it.try_into().ok()));
    let invalid = || AnswerError::BadRequest(format!("{name}={text:?} is not a duration such as 90s or 1h30m"));
    parsed.map(Some).ok_or_else(invalid)
}

fn number<T: std::str::FromStr>(parameters: &Parameters, name: &str) -> Result<Option<T>, AnswerError> {
    let Some(text) = parameter(parameters, name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| AnswerError::BadRequest(format!("{name}={text:?} is not a number")))
}

fn failed(error: &AnswerError) -> Response<Body> {
    let status = match error {
        AnswerError::BadRequest(_) => StatusCode::BAD_REQUEST,
        AnswerError::NotFound(_) => StatusCode::NOT_FOUND,
    };
    answer::fail(status, &error.to_string())
}

/// Computes an answer on a blocking thread, because it waits for the dataflow thread.
async fn answered<T: Serialize + Send + 'static>(
    state: Arc<AdminState>,
    parameters: &Parameters,
    ask: impl FnOnce(&AdminState) -> Result<T, AnswerError> + Send + 'static,
) -> Response<Body> {
    match tokio::task::spawn_blocking(move || ask(&state)).await {
        Ok(Ok(value)) => answer::json(&value, parameters),
        Ok(Err(error)) => failed(&error),
        Err(error) => answer::fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the answer failed: {error}")),
    }
}

fn question(parameters: &Parameters) -> Result<WhyQuestion, AnswerError> {
    let mut texts = required(parameters, &["proxy", "type", "name"])?.into_iter();
    let mut next = || texts.next().unwrap_or_default();
    let optional = |name| parameter(parameters, name).unwrap_or_default().to_owned();
    Ok(WhyQuestion {
        proxy: next(),
        kind: next(),
        name: next(),
        namespace: optional("namespace"),
        path: optional("path"),
    })
}

/// `/debug/why`.
pub(crate) async fn why_page(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    match question(&parameters) {
        Ok(question) => answered(state, &parameters, move |state| why(state, &question)).await,
        Err(error) => failed(&error),
    }
}

/// `/debug/why_not`.
pub(crate) async fn why_not_page(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    match question(&parameters) {
        Ok(WhyQuestion { proxy, namespace, kind, name, .. }) => {
            let question = WhyNotQuestion { proxy, namespace, kind, name };
            answered(state, &parameters, move |state| why_not(state, &question)).await
        }
        Err(error) => failed(&error),
    }
}

/// `/debug/describe`.
pub(crate) async fn describe_page(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let namespace = parameter(&parameters, "namespace").unwrap_or_default().to_owned();
    let question = match (parameter(&parameters, "pod"), parameter(&parameters, "service")) {
        (Some(name), None) => DescribeQuestion::Pod { name: name.to_owned(), namespace },
        (None, Some(name)) => DescribeQuestion::Service { name: name.to_owned(), namespace },
        _ => return failed(&AnswerError::BadRequest("one of the parameters pod and service is required".to_owned())),
    };
    answered(state, &parameters, move |state| describe(state, &question)).await
}

/// `/debug/authorization`.
pub(crate) async fn authorization_page(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    match AuthorizationQuestion::parse(&parameters) {
        Ok(question) => answered(state, &parameters, move |state| authorization(state, &question)).await,
        Err(error) => failed(&error),
    }
}

/// `/debug/history`.
pub(crate) async fn history_page(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let question = || {
        Ok(HistoryQuestion {
            object: parameter(&parameters, "object").map(str::to_owned),
            proxy: parameter(&parameters, "proxy").map(str::to_owned),
            namespace: parameter(&parameters, "namespace").unwrap_or_default().to_owned(),
            max_age: duration(&parameters, "since")?,
            limit: number(&parameters, "limit")?.unwrap_or(DEFAULT_EPOCHS),
        })
    };
    match question() {
        Ok(question) => answered(state, &parameters, move |state| history(state, &question)).await,
        Err(error) => failed(&error),
    }
}

fn wait_question(parameters: &Parameters) -> Result<WaitQuestion, AnswerError> {
    let object = required(parameters, &["object"])?.remove(0);
    let timeout = duration(parameters, "timeout")?.unwrap_or(DEFAULT_WAIT);
    if timeout > MAX_WAIT {
        return Err(AnswerError::BadRequest("timeout is longer than 1h".to_owned()));
    }
    Ok(WaitQuestion {
        object: ObjectName::parse(&object, parameter(parameters, "namespace").unwrap_or_default())?,
        version: parameter(parameters, "version").map(str::to_owned),
        generation: number(parameters, "generation")?,
        goal: Goal::parse(parameter(parameters, "for").unwrap_or("acked"))?,
        timeout,
    })
}

/// `/debug/wait`: one line of JSON for each change of the progress, until the wait ends.
pub(crate) async fn wait_page(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let question = match wait_question(&parameters) {
        Ok(question) => question,
        Err(error) => return failed(&error),
    };
    let Ok(permit) = WAITS.try_acquire() else {
        return answer::fail(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!("{MAX_WAITS} waits are in progress; try again later"),
        );
    };
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        follow(Wait::new(state, question), &sender).await;
        drop(permit);
    });
    let lines = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|line: Bytes| (Ok::<_, Infallible>(line), receiver))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Sends the progress until the wait ends or the client has left.
async fn follow(mut wait: Wait, sender: &mpsc::Sender<Bytes>) {
    let mut last: Option<(WaitProgress, Instant)> = None;
    loop {
        let Ok(turn) = WAIT_POLLS.acquire().await else { return };
        // The progress waits for the dataflow thread.
        let polled = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let progress = wait.poll();
            (wait, progress, start.elapsed())
        });
        let Ok((polled, progress, took)) = polled.await else { return };
        drop(turn);
        wait = polled;
        let is_final = progress.state.is_final();
        let is_due = last
            .as_ref()
            .is_none_or(|(last, at)| is_final || !last.is_like(&progress) || at.elapsed() >= WAIT_LINE_INTERVAL);
        if is_due {
            let mut line = serde_json::to_vec(&progress).unwrap_or_default();
            line.push(b'\n');
            if sender.send(line.into()).await.is_err() {
                return;
            }
            last = Some((progress, Instant::now()));
        }
        if is_final || sender.is_closed() {
            return;
        }
        tokio::time::sleep((took * WAIT_PAUSE_FACTOR).clamp(MIN_WAIT_PAUSE, MAX_WAIT_PAUSE)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_or_have_units() {
        let read = |text: &str| duration(&Parameters::from([("since".to_owned(), text.to_owned())]), "since");
        for (text, seconds) in [("90", 90.0), ("0.5", 0.5), ("90s", 90.0), ("1h30m", 5_400.0), ("250ms", 0.25)] {
            assert_eq!(read(text), Ok(Some(Duration::from_secs_f64(seconds))), "{text}");
        }
        assert_eq!(read(""), Ok(None));
        for text in ["soon", "-1", "-5s", "1e400"] {
            assert!(matches!(read(text), Err(AnswerError::BadRequest(_))), "{text}");
        }
    }
}
