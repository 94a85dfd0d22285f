//! A client that behaves as istioctl does, for each command that talks to the control plane (I01 to I05, O12).
//!
//! `istioctl/recorded.json` has requests of istioctl over xDS, and what istiod answered. The mesh is `istioctl/objects.yaml`
//! with the connected proxies of `istioctl/proxies.json`, the first of which has rejected its listeners.

mod recorded;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_testkit::server::{Options, Sluiced, request};

/// A server with a log.
async fn start(directory: &tempfile::TempDir) -> Sluiced {
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).expect("created");
    Sluiced::start(&Options { log: Some(directory.path().join("log")), ..Options::new(&objects) })
        .await
        .expect("it starts")
}

/// A request through a port-forward, with the redirects that Go's client follows: the status and the body.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut path = path.to_owned();
    for _ in 0..3 {
        let response = request(address, "GET", &path, &[], "").await.expect("an answer");
        match response.header("location") {
            Some(location) if (300..400).contains(&response.status) => path = location.to_owned(),
            _ => return (response.status, response.body),
        }
    }
    panic!("{path}: too many redirects");
}

async fn put(server: &Sluiced, scope: &str, change: &Value) -> u16 {
    let body = change.to_string();
    let path = format!("/scopej/{scope}");
    request(server.controlz, "PUT", &path, &[], &body).await.expect("an answer").status
}

/// The level of each scope, in the order of the answer.
async fn levels(server: &Sluiced) -> Vec<(String, String)> {
    let (status, text) = get(server.controlz, "/scopej").await;
    assert_eq!(status, 200, "{text}");
    let scopes: Vec<Value> = serde_json::from_str(&text).expect("a list");
    let text =
        |scope: &Value, field: &str| scope[field].as_str().unwrap_or_else(|| panic!("{field} of {scope}")).to_owned();
    assert!(scopes.iter().all(|scope| !text(scope, "description").is_empty()));
    scopes.iter().map(|scope| (text(scope, "name"), text(scope, "output_level"))).collect()
}

/// Lines about a rejected request for a debug page, after one more of them.
async fn refused(server: &Sluiced, directory: &tempfile::TempDir) -> Vec<Value> {
    let origin = [("origin", "http://elsewhere.example")];
    let response = request(server.http, "GET", "/debug/syncz", &origin, "").await.expect("an answer");
    assert_eq!(response.status, 403);
    // Lines are written in their order: those before this one are written, too.
    assert_eq!(put(server, "validation", &json!({"output_level": "info"})).await, 202);
    let mut lines = Vec::new();
    for _ in 0..200 {
        let log = std::fs::read_to_string(directory.path().join("log")).expect("a log");
        lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
        if lines.last().is_some_and(|line| line["scope"] == "default" && line.to_string().contains("validation")) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    lines.retain(|line| {
        line["msg"].as_str().is_some_and(|text| text.starts_with("rejected a request for a debug page"))
    });
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_log_changes_what_is_logged() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory).await;
    let before = levels(&server).await;
    assert!(before.is_sorted() && before.contains(&("ads".to_owned(), "info".to_owned())), "{before:?}");

    assert_eq!(refused(&server, &directory).await.len(), 1, "a warning of scope admin");
    assert_eq!(put(&server, "admin", &json!({"name": "admin", "output_level": "error"})).await, 202);
    assert_eq!(refused(&server, &directory).await.len(), 1, "warnings are not logged");
    let change = json!({"name": "admin", "output_level": "warn", "stack_trace_level": "warn", "log_callers": true});
    assert_eq!(put(&server, "admin", &change).await, 202);
    let lines = refused(&server, &directory).await;
    let last = lines.last().expect("a line");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(last["caller"].as_str().is_some_and(|caller| caller.contains("access.rs:")), "{last}");
    assert!(last["stack"].as_str().is_some_and(|stack| stack.contains("sluice_admin::access")), "{last}");
    assert_eq!(lines[0]["stack"], Value::Null);
    let (_, text) = get(server.controlz, "/scopej/admin").await;
    let scope: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&scope["stack_trace_level"], &scope["log_callers"]), (&json!("warn"), &json!(true)), "{scope}");

    // `--reset` changes all scopes at once.
    let changes = before.iter().map(|(name, _)| {
        let (server, change) = (&server, json!({"name": name, "output_level": "debug", "stack_trace_level": "none"}));
        async move { put(server, name, &change).await }
    });
    assert!(futures::future::join_all(changes).await.iter().all(|status| *status == 202));
    let after = levels(&server).await;
    assert!(after.iter().all(|(_, level)| level == "debug"), "{after:?}");

    for (scope, body) in [("nosuch", "{}"), ("ads", "{"), ("ads", r#"{"output_level": "loud"}"#)] {
        let response =
            request(server.controlz, "PUT", &format!("/scopej/{scope}"), &[], body).await.expect("an answer");
        assert_eq!(response.status, 400, "{scope} {body}");
        assert!(!response.body.is_empty());
    }
    assert_eq!(levels(&server).await, after);
    let page = get(server.controlz, "/scopez/").await.1;
    assert!(page.contains("<td>ads</td>") && get(server.controlz, "/").await.1.contains("/scopez/"), "{page}");
    let origin = [("origin", "http://elsewhere.example")];
    let response = request(server.controlz, "PUT", "/scopej/ads", &origin, r#"{"output_level":"none"}"#).await;
    assert_eq!(response.expect("an answer").status, 403, "a web page cannot change levels");
}

#[tokio::test(flavor = "multi_thread")]
async fn version_and_remote_clusters_are_answered_at_the_paths_of_istioctl() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory).await;
    let (status, text) = get(server.monitoring, "//version").await;
    // istioctl takes the last two parts for the revision and the state of the build.
    let parts: Vec<&str> = text.rsplitn(3, '-').collect();
    assert_eq!((status, parts.len(), parts[2]), (200, 3, env!("CARGO_PKG_VERSION")), "{text:?}");
    let (status, text) = get(server.monitoring, "//debug/clusterz").await;
    let clusters: Vec<Value> = serde_json::from_str(&text).expect("a list");
    assert_eq!((status, &clusters[0]["id"], &clusters[0]["syncStatus"]), (200, &json!("Kubernetes"), &json!("synced")));
    assert_eq!(get(server.monitoring, "//debug//syncz?namespace=a").await, (200, "[]\n".to_owned()));
    let response = request(server.monitoring, "GET", "//elsewhere.example//", &[], "").await.expect("an answer");
    assert_eq!(response.header("location"), Some("/elsewhere.example"), "the redirect stays on this server");
    assert_eq!(get(server.monitoring, "/nothing").await.0, 404);
}
