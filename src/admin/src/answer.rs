//! JSON responses.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;

/// Parameters of a query.
pub(crate) type Parameters = BTreeMap<String, String>;

/// A value as JSON, indented if the query has `pretty`.
pub(crate) fn json(value: &impl Serialize, parameters: &Parameters) -> Response<Body> {
    let text =
        if parameters.contains_key("pretty") { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    match text {
        Ok(mut text) => {
            text.push(b'\n');
            ([(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        Err(error) => fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the value cannot be encoded as JSON: {error}")),
    }
}

/// A response with an error status. The reason is its text.
pub(crate) fn fail(status: StatusCode, reason: &str) -> Response<Body> {
    (status, format!("{reason}\n")).into_response()
}
