//! Topics.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde_json::Value;

use crate::json;
use crate::page::{page, table};

/// The pages of a topic.
pub struct Topic {
    title: &'static str,
    about: &'static str,
    /// The path of its HTML page.
    page: String,
    router: Router,
}

impl Topic {
    /// A topic with routes of its own, whose HTML page is `/PREFIXz/`.
    pub(crate) fn new(prefix: &str, title: &'static str, about: &'static str, router: Router) -> Self {
        Self { title, about, page: format!("/{prefix}z/"), router }
    }

    /// A topic that shows a value: `/PREFIXj/` as JSON, `/PREFIXz/` as a table. An object is a table of its fields, and an array of
    /// objects has a row for each. `read` is called for each request, on a thread that may block.
    pub fn of_value(
        prefix: &str,
        title: &'static str,
        about: &'static str,
        read: impl Fn() -> Value + Clone + Send + Sync + 'static,
    ) -> Self {
        let (page_path, json_path) = (format!("/{prefix}z/"), format!("/{prefix}j/"));
        let (for_page, for_json) = (read.clone(), read);
        let as_page = async move || match blocking(for_page.clone()).await {
            Ok(value) => page(title, &format!("<p>{about}</p>{}", table(&value))).into_response(),
            Err(response) => response,
        };
        let as_json = async move || match blocking(for_json.clone()).await {
            Ok(value) => json(&value),
            Err(response) => response,
        };
        let router = Router::new()
            .route(&page_path, get(as_page))
            .route(page_path.trim_end_matches('/'), redirect(page_path.clone()))
            .route(&json_path, get(as_json))
            .route(json_path.trim_end_matches('/'), redirect(json_path.clone()));
        Self { title, about, page: page_path, router }
    }

    /// Adds routes below `/PREFIXj/`.
    #[must_use]
    pub(crate) fn with_routes(self, routes: Router) -> Self {
        Self { router: self.router.merge(routes), ..self }
    }

    pub(crate) fn title(&self) -> &'static str {
        self.title
    }

    pub(crate) fn about(&self) -> &'static str {
        self.about
    }

    pub(crate) fn page(&self) -> &str {
        &self.page
    }

    pub(crate) fn into_router(self) -> Router {
        self.router
    }
}

/// Redirects to a path permanently.
pub(crate) fn redirect<S: Clone + Send + Sync + 'static>(path: String) -> MethodRouter<S> {
    get(move || async move { (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, path)]).into_response() })
}

async fn blocking(read: impl FnOnce() -> Value + Send + 'static) -> Result<Value, Response> {
    tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| crate::fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the value cannot be read: {error}")))
}
