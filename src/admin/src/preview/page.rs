//! The page `/debug/preview`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{Response, StatusCode};
use axum::routing::{MethodRouter, post};
use bytes::Bytes;

use super::{PreviewAnswer, PreviewError, PreviewQuestion, preview};
use crate::AdminState;
use crate::answer::{self, Parameters};
use crate::second_graph::SecondGraphError;

/// The handler of the page.
pub(crate) fn route() -> MethodRouter<Arc<AdminState>> {
    // The port limits the size of bodies, also of this one.
    post(preview_page).layer(DefaultBodyLimit::disable())
}

/// `POST /debug/preview`: the body has the objects as YAML or JSON documents. With `?delete=true` they are deleted.
async fn preview_page(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
    body: Bytes,
) -> Response<Body> {
    let question = match question(&parameters, &body) {
        Ok(question) => question,
        Err(error) => return answer::fail(StatusCode::BAD_REQUEST, &error),
    };
    match answered(state, question).await {
        Ok(value) => answer::json(&value, &parameters),
        Err((status, reason)) => answer::fail(status, &reason),
    }
}

/// Answers the question on a blocking thread, or says with a status why there is no answer.
pub(crate) async fn answered(
    state: Arc<AdminState>,
    question: PreviewQuestion,
) -> Result<PreviewAnswer, (StatusCode, String)> {
    let refused = |error: PreviewError| (status(&error), error.to_string());
    let turn = state.preview_turns.next().await.map_err(|error| refused(error.into()))?;
    let answered = tokio::task::spawn_blocking(move || preview(&state, &question, turn)).await;
    answered
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("the preview failed: {error}")))?
        .map_err(refused)
}

fn question(parameters: &Parameters, body: &[u8]) -> Result<PreviewQuestion, String> {
    let delete = match parameters.get("delete").map(String::as_str) {
        None | Some("" | "false") => false,
        Some("true") => true,
        Some(other) => return Err(format!("delete={other:?} is not true or false")),
    };
    let text = std::str::from_utf8(body);
    let text = text.map_err(|error| format!("the body is not UTF-8 at byte {}", error.valid_up_to()))?;
    PreviewQuestion::new(text.to_owned(), delete)
}

fn status(error: &PreviewError) -> StatusCode {
    match error {
        PreviewError::BadRequest(_) => StatusCode::BAD_REQUEST,
        PreviewError::SecondGraph(SecondGraphError::Busy) => StatusCode::TOO_MANY_REQUESTS,
        PreviewError::NotReady | PreviewError::SecondGraph(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
