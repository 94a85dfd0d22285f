//! `preview`: what a change would do, compared with what it does once it is applied.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::mesh::{Answer, AnswersFixture, RATINGS_HOST};

const HOST: &str = "ratings.shop.svc.cluster.local";

/// A file beside the mesh, which nothing reads.
fn file(directory: &tempfile::TempDir, text: &str) -> String {
    let path = directory.path().join("change.yaml");
    std::fs::write(&path, text).expect("written");
    path.to_string_lossy().into_owned()
}

fn route(subset: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: ratings, namespace: shop}}\n\
         spec:\n  hosts: [{HOST}]\n  http:\n  - route:\n    - destination: {{host: {HOST}, subset: {subset}}}\n"
    )
}

/// The changes by type and name.
fn changes(answer: &Value) -> BTreeMap<(String, String), Value> {
    let text = |change: &Value, field: &str| change[field].as_str().expect("a text").to_owned();
    let changes = answer["changes"].as_array().expect("changes").iter();
    changes.map(|change| ((text(change, "type"), text(change, "name")), change.clone())).collect()
}

async fn clusters(mesh: &AnswersFixture, pod: &str) -> Value {
    let (status, dump) =
        mesh.server.get(&format!("/debug/config_dump?proxyID={pod}.shop&types=cds,rds")).await.expect("a response");
    assert_eq!(status, 200, "{dump}");
    serde_json::from_str(&dump).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_route_is_shown_with_its_fields_proxies_and_bytes_and_nothing_is_applied() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let _limited = mesh.connect("limited-1", "limited").await;
    let before = clusters(&mesh, "cart-7f").await;
    let directory = tempfile::tempdir().expect("a directory");
    let path = file(&directory, &route("v2"));
    let answer = mesh.answer(&["preview", "-f", &path]).await;

    let object = &answer["objects"][0];
    assert_eq!(
        (object["object"].as_str(), object["change"].as_str()),
        (Some("VirtualService/shop/ratings"), Some("changed"))
    );
    assert_eq!((object["file"].as_str(), &object["line"]), (Some(path.as_str()), &1.into()));
    assert_eq!((&answer["findings"], &answer["isComplete"]), (&json!([]), &true.into()), "{answer}");
    let changes = changes(&answer);
    let table = &changes[&("rds".to_owned(), "80".to_owned())];
    let field = format!("virtualHosts[{RATINGS_HOST}].routes[0].route.cluster");
    let expect =
        json!([{"path": field, "old": format!("outbound|80|v1|{HOST}"), "new": format!("outbound|80|v2|{HOST}")}]);
    assert_eq!((&table["fields"], &table["change"]), (&expect, &"changed".into()), "{table}");
    assert_eq!(table["parts"], json!([RATINGS_HOST]));
    assert_eq!(answer["proxies"]["connected"], 2);
    assert_eq!(answer["proxies"]["names"], json!(["cart-7f.shop", "limited-1.shop"]), "{answer}");

    let after = clusters(&mesh, "cart-7f").await;
    assert_eq!(before, after, "nothing is applied");
    let history = mesh.answer(&["history", "--object", "VirtualService/shop/ratings"]).await;
    assert_eq!(history["changes"].as_array().map(Vec::len), Some(1), "{history}");
}

#[tokio::test(flavor = "multi_thread")]
async fn preview_equals_what_the_change_does() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let directory = tempfile::tempdir().expect("a directory");
    let new_service = "apiVersion: v1\nkind: Service\nmetadata: {name: extra, namespace: shop}\n\
                       spec: {clusterIP: 10.0.0.77, ports: [{name: http, port: 80}]}\n";
    let path = file(&directory, new_service);
    let answer = mesh.answer(&["preview", "-f", &path]).await;
    assert_eq!(answer["objects"][0]["change"], "created", "{answer}");
    let changes = changes(&answer);
    let name = "outbound|80||extra.shop.svc.cluster.local";
    let cluster = &changes[&("cds".to_owned(), name.to_owned())];
    assert_eq!((&cluster["change"], &cluster["proxies"]), (&"added".into(), &1.into()), "{cluster}");
    let table = &changes[&("rds".to_owned(), "80".to_owned())];
    assert_eq!(table["change"], "changed");

    let updates = cart.updates();
    std::fs::write(mesh.directory.path().join("extra.yaml"), new_service).expect("written");
    // Clusters and routes.
    cart.updated_after(updates + 1).await;
    let held = clusters(&mesh, "cart-7f").await;
    let held: Vec<&Value> = held["configs"].as_array().expect("resources").iter().collect();
    let added = held.iter().find(|resource| resource["name"] == name);
    assert!(added.is_some(), "the proxy has the cluster that the preview has announced");

    // The same file now changes nothing.
    let again = mesh.answer(&["preview", "-f", &path]).await;
    assert_eq!((&again["objects"][0]["change"], &again["changes"]), (&"unchanged".into(), &json!([])), "{again}");

    // Deletion, and back.
    let deleted = mesh.answer(&["preview", "-f", &path, "--delete"]).await;
    assert_eq!(deleted["objects"][0]["change"], "deleted", "{deleted}");
    let removed = &self::changes(&deleted)[&("cds".to_owned(), name.to_owned())];
    assert_eq!(removed["change"], "removed", "{removed}");
}

/// Number of threads of the server with this name.
fn threads(mesh: &AnswersFixture, name: &str) -> usize {
    let tasks = format!("/proc/{}/task", mesh.server.pid().expect("a process"));
    let tasks = std::fs::read_dir(tasks).expect("threads").filter_map(Result::ok);
    tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn previews_at_the_same_time_are_answered_one_after_the_other_and_leave_no_graph() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let directory = tempfile::tempdir().expect("a directory");
    let path = file(&directory, &route("v2"));
    let question = ["preview", "-f", path.as_str()];
    let (one, other) = tokio::join!(mesh.answer(&question), mesh.answer(&question));
    for answer in [&one, &other] {
        assert_eq!(answer["objects"][0]["change"], "changed", "{answer}");
    }
    assert_eq!(one["changes"], other["changes"]);
    let released = async {
        while threads(&mesh, "sluice-dataflow") > 1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), released).await.expect("the copies are released");
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_that_narrows_what_a_proxy_sees_removes_its_clusters() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let directory = tempfile::tempdir().expect("a directory");
    let sidecar = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: cart, namespace: shop}\n\
                   spec:\n  workloadSelector: {labels: {app: cart}}\n  egress: [{hosts: [\"./*\"]}]\n";
    let answer = mesh.answer(&["preview", "-f", &file(&directory, sidecar)]).await;
    let removed: Vec<String> = changes(&answer)
        .into_iter()
        .filter(|((kind, _), change)| kind == "cds" && change["change"] == "removed")
        .map(|((_, name), _)| name)
        .collect();
    assert_eq!(removed, ["outbound|80||teller.bank.svc.cluster.local"], "only services of other namespaces: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn findings_name_the_file_and_the_exit_code_tells_about_errors() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let directory = tempfile::tempdir().expect("a directory");
    let invalid = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: bad, namespace: shop}\n\
                   spec:\n  hosts: [ratings]\n  http:\n  - route: [{destination: {host: ratings}, weight: -1}]\n";
    let path = file(&directory, invalid);
    let Answer { code, out, errors } = mesh.ctl(&["preview", "-f", &path]).await;
    assert_eq!(code, 1, "{out}{errors}");
    let finding = out.lines().find(|line| line.contains("spec.http[0].route[0].weight"));
    assert!(
        finding.is_some_and(|line| line.starts_with(&format!("{path}:7: error: VirtualService/shop/bad"))),
        "{out}"
    );

    let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec: {}\n";
    let answer = mesh.answer(&["preview", "-f", &file(&directory, other)]).await;
    assert_eq!(answer["objects"][0]["change"], "ignored", "{answer}");
    assert_eq!(answer["resources"], json!([]));

    let empty = mesh.ctl(&["preview", "-f", &file(&directory, "# nothing\n")]).await;
    assert_eq!(empty.code, 2, "{}{}", empty.out, empty.errors);
    assert!(empty.errors.contains("has no objects"), "{}", empty.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn mesh_config_of_a_config_map_is_combined_as_the_control_plane_combines_it() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let directory = tempfile::tempdir().expect("a directory");
    let config_map = |name: &str, data: &str| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: istio-system}}\ndata:\n  mesh: '{data}'\n"
        );
        file(&directory, &text)
    };
    let path = config_map("other", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}");
    let other = mesh.answer(&["preview", "-f", &path]).await;
    let reason = other["objects"][0]["reason"].as_str().unwrap_or_default();
    assert_eq!((&other["objects"][0]["change"], &other["changes"]), (&"ignored".into(), &json!([])), "{other}");
    assert!(reason.contains("istio-system/istio"), "{reason}");

    // The settings of the fixture, and another one.
    let selectors = "discoverySelectors: [{matchLabels: {mesh: \"on\"}}]";
    let path = config_map("istio", &format!("{{{selectors}, outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}}}"));
    let answer = mesh.answer(&["preview", "-f", &path]).await;
    assert_eq!(answer["objects"][0]["change"], "changed", "{answer}");
    let announced: Vec<(String, String)> = changes(&answer).into_keys().collect();
    assert!(announced.iter().any(|(kind, _)| kind == "rds" || kind == "lds"), "{announced:?}");

    let updates = cart.updates();
    let objects = include_str!("objects.yaml").replacen(
        "  mesh: |\n",
        "  mesh: |\n    outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n",
        1,
    );
    std::fs::write(mesh.directory.path().join("objects.yaml"), objects).expect("written");
    cart.updated_after(updates).await;
    let applied = mesh.ctl(&["wait", "ConfigMap/istio-system/istio", "--for=applied"]).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.errors);
    let again = mesh.answer(&["preview", "-f", &path]).await;
    assert_eq!((&again["objects"][0]["change"], &again["changes"]), (&"unchanged".into(), &json!([])), "{again}");
    let deleted = mesh.answer(&["preview", "-f", &path, "--delete"]).await;
    assert_eq!(deleted["objects"][0]["change"], "deleted", "{deleted}");
    let reversed: Vec<(String, String)> = changes(&deleted).into_keys().collect();
    assert!(announced.iter().all(|change| reversed.contains(change)), "{announced:?} {reversed:?}");
    // An invalid mesh config is stored, and the last valid one stays.
    let path = config_map("istio", "connectTimeout: soon");
    let invalid = mesh.ctl(&["preview", "-f", &path, "-o", "json"]).await;
    assert_eq!(invalid.code, 1, "{}{}", invalid.out, invalid.errors);
    assert_eq!(invalid.json()["changes"], json!([]), "{}", invalid.out);
}
