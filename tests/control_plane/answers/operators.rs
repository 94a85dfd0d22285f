//! `proxy-status`, `proxy-config`, `version`, `remote-clusters`, `internal-debug` and `admin log`.

use serde_json::Value;
use sluice_testkit::wait::until_async;

use super::mesh::{AnswersFixture, RATINGS_V1, run};

#[tokio::test(flavor = "multi_thread")]
async fn proxy_status_lists_proxies_with_the_state_of_each_type() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let short = mesh.ctl(&["proxy-status"]).await;
    assert_eq!(short.code, 0, "{}", short.errors);
    let lines: Vec<Vec<&str>> = short.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "CLUSTER", "ISTIOD", "VERSION", "SUBSCRIBED", "TYPES"]);
    assert_eq!((lines.len(), lines[1][0]), (2, "cart-7f.shop"), "{}", short.out);
    assert!(short.out.contains("(CDS,"), "{}", short.out);

    until_async("what the proxy has acknowledged is listed", async || {
        let verbose = mesh.ctl(&["ps", "-v", "1", "-n", "shop"]).await;
        (verbose.out.contains("SYNCED (") && verbose.out.contains("IGNORED")).then_some(())
    })
    .await;
    let other = mesh.ctl(&["ps", "-n", "bank"]).await;
    assert_eq!((other.code, other.out.lines().count()), (0, 1), "{}", other.out);
    assert_eq!(mesh.answer(&["ps"]).await[0]["proxy"], "cart-7f.shop");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_config_prints_what_the_control_plane_has_sent() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let server = format!("--server=http://{}", mesh.server.http);
    let config = async |arguments: &[&str]| {
        run(&[&["proxy-config"], arguments, &["--from", "control-plane", &server]].concat()).await
    };
    let clusters = config(&["cluster", "cart-7f.shop", "--subset", "v1", "-o", "json"]).await;
    assert_eq!(clusters.code, 0, "{}", clusters.errors);
    assert_eq!(clusters.json()[0]["name"], RATINGS_V1);
    let table = config(&["routes", "cart-7f", "-n", "shop"]).await;
    assert!(table.out.starts_with("NAME") && table.out.contains("ratings.shop"), "{}", table.out);
    let mistyped = config(&["cluster", "card-7f.shop"]).await;
    assert!(mistyped.code == 1 && mistyped.errors.contains("Did you mean \"cart-7f.shop\"?"), "{}", mistyped.errors);
    let unknown = config(&["cluster", "unknown.shop"]).await;
    assert_eq!(unknown.code, 1, "{}{}", unknown.out, unknown.errors);
    assert!(unknown.errors.contains("not connected"), "{}", unknown.errors);
    let kind = config(&["cluster", "job/cart.shop"]).await;
    assert_eq!(kind.code, 2, "{}", kind.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn difference_of_a_proxy_shows_what_envoy_does_not_have_yet() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let (status, dump) = mesh.server.get("/debug/config_dump?proxyID=cart-7f.shop").await.expect("an answer");
    assert_eq!(status, 200);
    let file = mesh.directory.path().join("dump.txt");
    std::fs::write(&file, dump).expect("written");
    let question = ["proxy-status", "cart-7f.shop", "--file", file.to_str().expect("UTF-8")];
    let same = mesh.ctl(&question).await;
    assert_eq!(
        (same.code, same.out.as_str()),
        (0, "Clusters Match\nListeners Match\nRoutes Match\n"),
        "{}",
        same.errors
    );

    let updates = cart.updates();
    mesh.route_to(2, "v2");
    cart.updated_after(updates).await;
    let waited = mesh.ctl(&["wait", "vs/shop/ratings", "--generation=2"]).await;
    assert_eq!(waited.code, 0, "{}{}", waited.out, waited.errors);
    let other = mesh.ctl(&question).await;
    for part in ["Clusters Match", "Routes Don't Match", "--- Istiod Routes", "outbound|80|v2|", "outbound|80|v1|"] {
        assert!(other.out.contains(part), "{part} is not in {}", other.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_clusters_and_pages_are_those_of_the_server() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let version = mesh.ctl(&["version"]).await;
    let expected = format!("control plane version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(version.out.contains(&expected) && version.out.contains("1 proxy"), "{}{}", version.out, version.errors);
    let client = run(&["version", "--remote=false", "-o", "json"]).await;
    assert_eq!(client.json()["clientVersion"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(client.json()["meshVersion"], Value::Null);

    let clusters = mesh.ctl(&["remote-clusters"]).await;
    assert!(clusters.out.starts_with("NAME") && clusters.out.contains("synced"), "{}{}", clusters.out, clusters.errors);
    let page = mesh.ctl(&["internal-debug", "config_dump?proxyID=unknown.shop"]).await;
    assert_eq!(page.code, 1, "{}{}", page.out, page.errors);
    let list = mesh.ctl(&["internal-debug", "list"]).await;
    assert!(list.json().to_string().contains("\"syncz\""), "{}", list.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_log_prints_and_changes_levels() {
    let mesh = AnswersFixture::start().await;
    let address = format!("--address=http://{}", mesh.server.controlz);
    let changed = run(&["admin", "log", &address, "--level", "ads:debug", "-o", "json"]).await;
    assert_eq!(changed.code, 0, "{}", changed.errors);
    let scopes = changed.json();
    let level = |name: &str| {
        let scopes = scopes.as_array().expect("scopes");
        scopes.iter().find(|scope| scope["name"] == name).map(|scope| scope["output_level"].clone())
    };
    assert_eq!(level("ads"), Some("debug".into()));
    let unknown = run(&["admin", "log", &address, "--level", "adz:debug"]).await;
    assert_eq!(unknown.code, 1, "{}", unknown.errors);
    assert!(unknown.errors.contains("did you mean \"ads\"?"), "{}", unknown.errors);
    let invalid = run(&["admin", "log", &address, "--level", "ads:loud"]).await;
    assert_eq!(invalid.code, 2, "{}", invalid.errors);
}
