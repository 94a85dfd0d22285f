//! Wrong answers.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use tokio::sync::watch;

use super::Shared;
use super::response::{status, text_response};

/// A wrong answer to a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WrongAnswer {
    /// A Status with this code.
    Status(u16),
    /// The 404 of a server that is not an API server.
    NoSuchPage,
    /// 200 with a page of HTML.
    Page,
    /// 200 with an empty JSON object.
    EmptyObject,
    /// None, until another answer is set.
    Nothing,
}

/// The wrong answer to a request for a resource, if there is one.
pub(super) async fn wrong_answer(shared: &Shared, resource: &str) -> Option<Response<Body>> {
    let released = shared.released.subscribe();
    let answer = {
        let wrong = &shared.state().faults.wrong;
        *wrong.get(resource).or_else(|| wrong.get("*"))?
    };
    Some(match answer {
        WrongAnswer::Status(code) => {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            status(code, "Fault", "a fault of the test")
        }
        WrongAnswer::NoSuchPage => text_response(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        WrongAnswer::Page => text_response(StatusCode::OK, "<html>welcome</html>".to_owned()),
        WrongAnswer::EmptyObject => text_response(StatusCode::OK, "{}".to_owned()),
        WrongAnswer::Nothing => nothing(released).await,
    })
}

async fn nothing(mut released: watch::Receiver<u64>) -> Response<Body> {
    // Ends with an error when the server ends.
    let _ = released.changed().await;
    status(StatusCode::SERVICE_UNAVAILABLE, "Fault", "a fault of the test")
}
