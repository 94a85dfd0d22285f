//! Sessions of browsers from outside the loopback (O09).

use axum::http::{Method, Response, StatusCode};

use super::debug::{DebugPages, REMOTE_PEER};

const OPERATOR: &str = "spiffe://cluster.local/ns/istio-system/sa/operator";
const HOST: (&str, &str) = ("host", "mesh.example:15014");
const OWN_ORIGIN: (&str, &str) = ("origin", "http://mesh.example:15014");
const HTML: (&str, &str) = ("accept", "text/html,*/*");

fn header<'a>(response: &'a Response<String>, name: &str) -> &'a str {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// A browser on another machine. It keeps the cookie of its session.
struct Browser {
    pages: DebugPages,
    cookie: String,
}

impl Browser {
    fn new() -> Self {
        Self { pages: DebugPages::new().with_authentication(), cookie: String::new() }
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Response<String> {
        let own = [HOST, HTML, ("cookie", &self.cookie)];
        self.pages.respond(method, REMOTE_PEER, path, &[&own, headers].concat(), body).await
    }

    async fn get(&self, path: &str) -> Response<String> {
        self.send(Method::GET, path, &[], "").await
    }

    /// Sends the form of the login page. A cookie of the response is kept.
    async fn log_in(&mut self, headers: &[(&str, &str)], token: &str, next: &str) -> Response<String> {
        let mut body = form_urlencoded::Serializer::new(String::new());
        let body = body.append_pair("token", token).append_pair("next", next).finish();
        let response = self.send(Method::POST, "/console/login", headers, &body).await;
        if let Some((cookie, _)) = header(&response, "set-cookie").split_once(';') {
            self.cookie = format!("theme=dark; {cookie}");
        }
        response
    }
}

#[tokio::test]
async fn token_gives_a_browser_a_session_until_it_is_ended() {
    let mut browser = Browser::new();
    let refused = browser.get("/console/proxies?q=web").await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert!(refused.body().contains("name=\"next\" value=\"/console/proxies?q=web\""), "{}", refused.body());
    assert!(!refused.body().contains("web.orchard"), "{}", refused.body());
    assert!(header(&refused, "content-security-policy").contains("default-src 'none'"));

    let accepted = browser.log_in(&[OWN_ORIGIN], OPERATOR, "/console/proxies?q=web").await;
    assert_eq!((accepted.status(), header(&accepted, "location")), (StatusCode::SEE_OTHER, "/console/proxies?q=web"));
    let cookie = header(&accepted, "set-cookie").to_owned();
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Max-Age=3600"), "{cookie}");
    assert!(!cookie.contains("operator"), "the cookie does not contain the token: {cookie}");
    for path in ["/console/proxies?q=web", "/debug/syncz"] {
        let page = browser.get(path).await;
        assert_eq!(page.status(), StatusCode::OK, "{path}");
        assert!(page.body().contains("web.orchard"), "{path}: {}", page.body());
    }
    let session = browser.get("/console/login").await;
    assert!(session.body().contains(OPERATOR) && session.body().contains("Sign out"), "{}", session.body());

    let ended = browser.send(Method::POST, "/console/logout", &[OWN_ORIGIN], "").await;
    assert_eq!(ended.status(), StatusCode::SEE_OTHER);
    assert!(header(&ended, "set-cookie").contains("sluice-session=; "), "{:?}", ended.headers());
    // The browser still sends what it had.
    assert_eq!(browser.get("/debug/syncz").await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn session_is_only_for_callers_that_see_everything() {
    let mut browser = Browser::new();
    for (token, status) in [
        ("nonsense", StatusCode::UNAUTHORIZED),
        ("", StatusCode::UNAUTHORIZED),
        ("spiffe://other.domain/ns/istio-system/sa/operator", StatusCode::FORBIDDEN),
        ("spiffe://cluster.local/ns/shop/sa/till", StatusCode::FORBIDDEN),
        ("line\nbreak", StatusCode::BAD_REQUEST),
    ] {
        let refused = browser.log_in(&[OWN_ORIGIN], token, "").await;
        assert_eq!((refused.status(), header(&refused, "set-cookie")), (status, ""), "{token}");
        assert!(refused.body().contains("role=\"alert\""), "{token}: {}", refused.body());
        assert!(token.is_empty() || !refused.body().contains(token), "the token is not shown: {}", refused.body());
    }
    assert_eq!(browser.pages.rejections("unauthenticated").await, Some(2));
    assert_eq!(browser.pages.rejections("forbidden").await, Some(2));
    browser.cookie = "sluice-session=00".to_owned();
    assert_eq!(browser.get("/console").await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn pages_of_other_origins_cannot_use_a_session() {
    let mut browser = Browser::new();
    let evil = ("origin", "http://evil.example");
    for headers in [vec![], vec![evil], vec![("origin", "null")], vec![("sec-fetch-site", "same-site")]] {
        assert_eq!(browser.log_in(&headers, OPERATOR, "").await.status(), StatusCode::FORBIDDEN, "{headers:?}");
    }
    let tls = browser.log_in(&[("origin", "https://mesh.example:15014")], OPERATOR, "//evil.example").await;
    assert_eq!((tls.status(), header(&tls, "location")), (StatusCode::SEE_OTHER, "/console"));
    assert!(header(&tls, "set-cookie").ends_with("; Secure"), "{:?}", tls.headers());

    // Another server on another port of the same host is the same site.
    let embedded = [("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")];
    assert_eq!(browser.send(Method::GET, "/debug/syncz", &embedded, "").await.status(), StatusCode::FORBIDDEN);
    let levels = async |headers: &[(&str, &str)]| {
        browser.send(Method::PUT, "/debug/log", headers, "default:none").await.status()
    };
    assert_eq!(levels(&[]).await, StatusCode::FORBIDDEN, "a change needs a page of this server");
    assert_eq!(levels(&[evil]).await, StatusCode::FORBIDDEN);
    assert_eq!(levels(&[OWN_ORIGIN]).await, StatusCode::OK);
    let disconnect = browser.get("/debug/force_disconnect?proxyID=web.orchard").await;
    assert_eq!(disconnect.status(), StatusCode::FORBIDDEN, "not even a link");
    // A tool that sends a token is not a browser with a session.
    let bearer = format!("Bearer {OPERATOR}");
    assert_eq!(levels(&[("authorization", &bearer)]).await, StatusCode::OK);
    let of_shop = [("authorization", "Bearer spiffe://cluster.local/ns/shop/sa/till")];
    let page = browser.send(Method::GET, "/debug/syncz", &of_shop, "").await;
    assert_eq!(page.status(), StatusCode::FORBIDDEN, "the token decides, not the session");
}
