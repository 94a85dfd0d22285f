//! The HTTP ports of the real binary: readiness, debug pages, metrics.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_testkit::server::{Options, Sluiced, get};

async fn start(directory: &Path) -> Sluiced {
    std::fs::write(
        directory.join("a.yaml"),
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
         spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: broken, namespace: shop}\nspec: {hosts: 7}\n",
    )
    .expect("written");
    std::fs::write(directory.join("bad.yaml"), "a: [\n").expect("written");
    Sluiced::start(&Options::new(directory)).await.expect("sluiced starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn debug_pages_show_the_state() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let page = async |path: &str| {
        let (status, text) = server.get(path).await.expect("an answer");
        assert_eq!(status, 200, "{path}: {text}");
        text
    };
    let json = async |path: &str| -> Value { serde_json::from_str(&page(path).await).expect("JSON") };

    let index = page("/debug").await;
    for name in json("/debug/list").await.as_array().expect("a list") {
        let name = name.as_str().expect("text");
        assert!(index.contains(&format!("/debug/{name}")), "{name} is on the index page");
        let needed = [
            "authorization",
            "config_dump",
            "describe",
            "ecdsz",
            "edsz",
            "frontier",
            "ndsz",
            "preview",
            "record",
            "sidecarz",
            "wait",
            "why",
            "why_not",
        ];
        if !needed.contains(&name) {
            page(&format!("/debug/{name}")).await;
        }
    }
    assert_eq!(json("/debug/registryz").await[0]["hostname"], "web.shop.svc.cluster.local");
    assert!(page("/debug/registryz?pretty").await.lines().count() > 10);
    let rejects = json("/debug/rejects").await;
    assert_eq!(rejects["objects"][0]["kind"], "VirtualService", "{rejects}");
    assert!(rejects["files"].as_object().expect("files").keys().any(|file| file.ends_with("bad.yaml")), "{rejects}");

    let collections = json("/debug/collections").await;
    let names: Vec<_> = collections.as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect();
    assert!(names.contains(&"services"), "{names:?}");
    let dump = json("/debug/collections/services").await;
    let key = dump["records"][0]["key"].to_string().replace('"', "%22").replace('{', "%7B").replace('}', "%7D");
    let why = json(&format!("/debug/collections/services?key={key}")).await;
    assert!(why["why"].to_string().contains("a.yaml:1"), "the explanation has the file and the line: {why}");
    let kinds = json("/debug/resourcesz").await;
    for (group, version, kind) in [
        ("networking.istio.io", "v1", "Gateway"),
        ("gateway.networking.k8s.io", "v1", "Gateway"),
        ("extensions.istio.io", "v1alpha1", "WasmPlugin"),
        ("networking.k8s.io", "v1", "Ingress"),
    ] {
        let row = json!({"group": group, "version": version, "kind": kind});
        assert!(kinds.as_array().expect("a list").contains(&row), "{row} in {kinds}");
    }
    assert_eq!((json("/debug/cachez").await, json("/debug/mcsz").await), (json!({}), Value::Null));
    let krtz = json("/debug/krtz").await;
    assert!(krtz.as_array().expect("a list").iter().all(|row| row["state"]["synced"] == true), "{krtz}");

    for (path, expect) in [
        ("/debug/collections/nothing", 404),
        ("/debug/config_dump", 400),
        ("/debug/sidecarz", 400),
        ("/debug/force_disconnect?proxyID=a.b", 404),
        ("/debug/config_dump?proxyID=absent.nowhere", 404),
        ("/debug/ndsz", 400),
        ("/debug/ndsz?proxyID=absent.nowhere", 404),
        ("/debug/frontier", 400),
        ("/debug/why?proxy=a.b&type=cds", 400),
        ("/debug/why?proxy=a.b&type=cds&name=c", 404),
        ("/debug/why_not?proxy=a.b&type=host&name=c", 404),
        ("/debug/wait?object=vs/a", 400),
        ("/debug/history?since=soon", 400),
        ("/debug/preview", 405),
        ("/debug/record?duration=2h", 400),
        ("/nothing", 404),
    ] {
        assert_eq!(server.get(path).await.expect("an answer").0, expect, "{path}");
    }
    assert_eq!(server.stop(Duration::from_secs(10)).await.expect("it stops"), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_their_documented_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let (status, text) = get(server.monitoring, "/metrics").await.expect("an answer");
    assert_eq!(status, 200);
    for line in [
        "# TYPE pilot_k8s_reg_events counter",
        "pilot_k8s_reg_events{type=\"Services\",event=\"add\"} 1",
        "# TYPE pilot_xds_send_time histogram",
        "# TYPE process_resident_memory_bytes gauge",
        "sluice_collection_records{collection=\"services\"} 1.0",
        "# TYPE istiod_uptime_seconds gauge",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let (status, version) = get(server.monitoring, "/version").await.expect("an answer");
    assert_eq!((status, version.trim()), (200, concat!(env!("CARGO_PKG_VERSION"), "-unknown-unknown")));
    // The port serves debug pages too, for the loopback and for authenticated callers.
    assert_eq!(get(server.monitoring, "/debug/syncz").await.expect("an answer").0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn subcommand_request_prints_a_debug_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path()).await;
    let address = format!("--httpAddr={}", server.http);
    let request = async |method: &str, path: &str| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_sluiced"));
        let output = command.args(["request", method, path, &address]).output().await.expect("the command runs");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, page) = request("GET", "/debug/registryz").await;
    assert_eq!(code, Some(0));
    let page: Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(page[0]["hostname"], "web.shop.svc.cluster.local");
    assert_eq!(request("get", "no-such-page").await.0, Some(1));
}
