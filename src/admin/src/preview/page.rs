//! The page `/debug/preview`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{Response, StatusCode};
use axum::routing::{MethodRouter, post};
use bytes::Bytes;

use super::{MAX_PREVIEW_BYTES, PreviewError, PreviewQuestion, preview};
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
    let graph = state.preview_graph.clone();
    let answered = tokio::task::spawn_blocking(move || preview(&state, &question)).await;
    tokio::spawn(graph.drop_unused());
    match answered {
        Ok(Ok(value)) => answer::json(&value, &parameters),
        Ok(Err(error)) => answer::fail(status(&error), &error.to_string()),
        Err(error) => answer::fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the preview failed: {error}")),
    }
}

fn question(parameters: &Parameters, body: &[u8]) -> Result<PreviewQuestion, String> {
    let delete = match parameters.get("delete").map(String::as_str) {
        None | Some("" | "false") => false,
        Some("true") => true,
        Some(other) => return Err(format!("delete={other:?} is not true or false")),
    };
    if body.len() > MAX_PREVIEW_BYTES {
        return Err(format!("the body is longer than {MAX_PREVIEW_BYTES} bytes"));
    }
    let text = std::str::from_utf8(body);
    let text = text.map_err(|error| format!("the body is not UTF-8 at byte {}", error.valid_up_to()))?;
    Ok(PreviewQuestion { text: text.to_owned(), delete })
}

fn status(error: &PreviewError) -> StatusCode {
    match error {
        PreviewError::BadRequest(_) => StatusCode::BAD_REQUEST,
        PreviewError::SecondGraph(SecondGraphError::Busy) => StatusCode::TOO_MANY_REQUESTS,
        PreviewError::NotReady | PreviewError::SecondGraph(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
