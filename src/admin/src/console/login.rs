//! `/console/login`: starts and ends the session of a browser that is not on the loopback.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse};
use bytes::Bytes;
use maud::{Markup, html};
use sluice_telemetry::unix_seconds;
use tracing::info;

use super::forms::{form_fields, is_from_own_page};
use super::{layout, with_security_headers};
use crate::AdminState;
use crate::access::{self, Refused, SESSION_COOKIE};
use crate::answer::Parameters;
use crate::sessions::{MAX_SESSION_SECONDS, Session};

/// The path of the page.
pub(super) const PATH: &str = "/console/login";

/// Adds the form to what a browser gets that has to authenticate.
pub(crate) async fn offer(request: Request, next: Next) -> Response<Body> {
    let is_page = request.method() == Method::GET && crate::html::is_preferred(request.headers());
    let wanted = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let response = next.run(request).await;
    if response.status() != StatusCode::UNAUTHORIZED || !is_page {
        return response;
    }
    with_security_headers((StatusCode::UNAUTHORIZED, page(&form(&wanted, None))).into_response()).await
}

/// The form, or who is signed in.
pub(super) async fn serve(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Query(parameters): Query<Parameters>,
    headers: HeaderMap,
) -> Html<String> {
    let next = parameters.get("next").map(String::as_str).unwrap_or_default();
    page(&match access::session(&state, &headers) {
        Some(session) => signed_in(&session),
        None if access::is_loopback(peer) => {
            html! { p { "Callers on the loopback see all pages, without a session." } }
        }
        None => form(next, None),
    })
}

fn page(content: &Markup) -> Html<String> {
    layout::page(PATH, "Session", false, content)
}

fn form(next: &str, failure: Option<&str>) -> Markup {
    html! {
        @if let Some(failure) = failure { p.bad role="alert" { (failure) } }
        p { "Callers from other machines need a token of a service account that may see all debug pages." }
        form.stacked method="post" action=(PATH) {
            input type="hidden" name="next" value=(next);
            label for="token" { "Token" }
            input #token type="password" name="token" required autocomplete="off" spellcheck="false";
            button type="submit" { "Sign in" }
        }
        p.soft {
            "The session ends when the token expires, and after " (MAX_SESSION_SECONDS / 60) " minutes at the latest. It is valid for this "
            "instance of the control plane."
        }
    }
}

fn signed_in(session: &Session) -> Markup {
    let expires = jiff::Timestamp::from_second(session.expires).map(|at| at.to_string()).unwrap_or_default();
    html! {
        p { "Signed in as " @for identity in &session.identities { code { (identity) } " " } "until " (expires) "." }
        form method="post" action="/console/logout" { button type="submit" { "Sign out" } }
    }
}

/// Starts a session for the token of the form.
pub(super) async fn log_in(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    if let Err(refused) = is_from_own_page(&headers) {
        return rejected(&state, peer, &refused);
    }
    let fields = form_fields(&body);
    let field = |name: &str| fields.get(name).map(|value| value.trim()).unwrap_or_default();
    let next = field("next");
    match start_session(&state, peer, field("token")).await {
        Ok(secret) => {
            // What the browser had before must not stay valid.
            access::session_secret(&headers).into_iter().for_each(|secret| state.sessions.end(secret));
            redirect(next_page(next), &cookie(&headers, &secret, MAX_SESSION_SECONDS))
        }
        Err((status, failure)) => (status, page(&form(next, Some(failure.trim())))).into_response(),
    }
}

/// Authenticates the caller by its token alone, and returns the secret of its session.
async fn start_session(state: &AdminState, peer: SocketAddr, token: &str) -> Result<String, (StatusCode, String)> {
    let token = token.strip_prefix("Bearer ").unwrap_or(token).trim();
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value =
        value.map_err(|_| (StatusCode::BAD_REQUEST, "the token has characters that no token has".to_owned()))?;
    value.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, value);
    let refuse = |refused: Refused| {
        refused.record(state, peer, PATH);
        (refused.status, refused.text.to_owned())
    };
    let caller = access::authenticate(state, peer, &headers).await.map_err(refuse)?;
    access::authorize(state, &caller.identities, "/console").map_err(refuse)?;
    let names: Vec<String> = caller.identities.iter().map(ToString::to_string).collect();
    let secret = state.sessions.start(caller.identities, caller.expiry, unix_seconds());
    let secret = secret.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    info!(%peer, caller = names.join(", "), "started a session of a browser");
    Ok(secret)
}

/// Ends the session.
pub(super) async fn log_out(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response<Body> {
    if let Err(refused) = is_from_own_page(&headers) {
        return rejected(&state, peer, &refused);
    }
    access::session_secret(&headers).into_iter().for_each(|secret| state.sessions.end(secret));
    redirect(PATH, &cookie(&headers, "", 0))
}

fn rejected(state: &AdminState, peer: SocketAddr, refused: &Refused) -> Response<Body> {
    refused.record(state, peer, PATH);
    layout::failed(refused.status, refused.text.trim())
}

/// A page of this server, and no other address.
fn next_page(next: &str) -> &str {
    let is_own = |prefix: &str| {
        next.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with('?'))
    };
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_plain && (is_own("/console") || is_own("/debug")) { next } else { "/console" }
}

/// The cookie with the secret of a session. Scripts cannot read it, and requests of other sites do not have it.
fn cookie(headers: &HeaderMap, secret: &str, seconds: i64) -> String {
    let secure = if access::is_over_tls(headers) { "; Secure" } else { "" };
    format!("{SESSION_COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
}

fn redirect(target: &str, cookie: &str) -> Response<Body> {
    (StatusCode::SEE_OTHER, [(header::LOCATION, target), (header::SET_COOKIE, cookie)]).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_leads_to_pages_of_this_server_only() {
        for next in ["/console", "/console/proxies?q=a%20b&page=2", "/debug/syncz", "/debug?pretty"] {
            assert_eq!(next_page(next), next);
        }
        for next in
            ["", "/", "//evil.example", "/consoles", "https://evil.example/console", "/console\r\nx: y", "/console\\a"]
        {
            assert_eq!(next_page(next), "/console", "{next}");
        }
    }

    #[test]
    fn cookie_is_secure_over_tls() {
        let check = |origin: &'static str, expect: bool| {
            let headers = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
            let cookie = cookie(&headers, "s", 60);
            assert!(cookie.contains("HttpOnly; SameSite=Strict; Max-Age=60"), "{cookie}");
            assert_eq!(cookie.ends_with("; Secure"), expect, "{cookie}");
        };
        check("https://mesh.example", true);
        check("http://mesh.example", false);
    }
}
