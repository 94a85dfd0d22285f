//! ControlZ: pages about the process, by topic, in the form that `istioctl admin log` and `istioctl dashboard controlz` read
//! (O12).
//!
//! A topic with the prefix `x` has an HTML page `/xz/` and JSON below `/xj/`. The routers have no access control: the port
//! that serves them has.

mod environment;
mod memory;
mod page;
mod process;
mod scopes;
mod topic;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;

pub use environment::{arguments, environment};
pub use memory::memory;
pub use process::{process, signals};
pub use scopes::scopes;
pub use topic::Topic;

/// All pages: the list of the topics at `/` with the process as JSON at `/homej/`, and those of the topics.
pub fn router(topics: Vec<Topic>) -> Router {
    let mut topics = topics;
    topics.sort_by_key(Topic::title);
    let links: String = topics
        .iter()
        .map(|topic| format!("<li><a href=\"{}\">{}</a>: {}</li>", topic.page(), topic.title(), topic.about()))
        .collect();
    let home = page::page("ControlZ", &format!("<ul>{links}</ul>"));
    let router = Router::new()
        .route("/", get(async move || home.clone()))
        .route("/homej/", get(async || json(&process::home())))
        .fallback(async || (StatusCode::NOT_FOUND, page::page("Page Not Found", "<p>There is no such page.</p>")));
    topics.into_iter().fold(router, |router, topic| router.merge(topic.into_router()))
}

/// A value as indented JSON.
fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec_pretty(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the value cannot be encoded as JSON: {error}")),
    }
}

/// An error status with the reason as text.
fn fail(status: StatusCode, reason: &str) -> Response {
    (status, format!("{reason}\n")).into_response()
}

/// A page of HTML.
type Page = Html<String>;
