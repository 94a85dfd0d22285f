//! Debug pages in istiod's form (O08): `pages/recorded.json` has what istiod answered for the mesh of `istioctl/objects.yaml`
//! with the proxies of `istioctl/proxies.json`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::server::{Options, Sluiced, request};

const OBJECTS: &str = include_str!("istioctl/objects.yaml");
const PROXIES: &str = include_str!("istioctl/proxies.json");
const RECORDED: &str = include_str!("pages/recorded.json");
const WEB: &str = "web-v1-5b6c7d8e9f-aaaa1.shop";

/// A server with this mesh.
async fn start(directory: &Path, environment: &[(&str, &str)]) -> Result<Sluiced> {
    std::fs::write(directory.join("objects.yaml"), OBJECTS)?;
    let env = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Sluiced::start(&Options { env, ..Options::new(directory) }).await
}

/// Streams of both proxies that have got their clusters.
async fn connect_proxies(server: &Sluiced) -> Result<Vec<AdsStream>> {
    let proxies: Vec<Value> = serde_json::from_str(PROXIES)?;
    let mut streams = Vec::new();
    for row in &proxies {
        let identity = Identity::of_node(&row["node"])?;
        let mut stream = AdsStream::open(connect(server.grpc).await?, Protocol::Sotw, identity)?;
        stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
        let update = stream.next().await?.context("clusters")?;
        stream.ack(&update)?;
        streams.push(stream);
    }
    Ok(streams)
}

async fn page(server: &Sluiced, name: &str) -> Result<Value> {
    let (status, text) = server.get(&format!("/debug/{name}")).await?;
    ensure!(status == 200, "{name}: {status} {text}");
    serde_json::from_str(&text).with_context(|| format!("{name}: {text}"))
}

/// Removes what differs: times and versions, fields that are empty in both or that Sluice does not have, and those that the API
/// server adds.
fn comparable(value: &mut Value) {
    const DIFFERENT: [&str; 15] = [
        "creationTime",
        "creationTimestamp",
        "generation",
        "resourceVersion",
        "uid",
        "status",
        // The mesh of the test has one automatically allocated address.
        "autoAllocatedIPv6Address",
        // No collection has these of a service.
        "Aliases",
        "ClusterExternalPorts",
        "ObjectName",
        "PassthroughTargetPorts",
        "ResourceVersion",
        "Visibility",
        // No collection has these of an endpoint.
        "LegacyClusterPortKey",
        "SendUnhealthyEndpoints",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !DIFFERENT.contains(&name.as_str()));
            // The default of a ServiceEntry, which istiod repeats.
            if fields.get("ExportTo").is_some_and(|namespaces| namespaces.get("*").is_some()) {
                fields.insert("ExportTo".to_owned(), Value::Null);
            }
            // istiod adds an empty label, and lists the endpoints of a service in another order.
            if fields.get("topology.istio.io/network").is_some_and(|network| network == "") {
                fields.remove("topology.istio.io/network");
            }
            fields.values_mut().for_each(comparable);
        }
        Value::Array(items) => {
            items.iter_mut().for_each(comparable);
            items.sort_by_key(|item| item["EndpointPort"].as_u64());
        }
        _ => {}
    }
}

/// Objects are shown as they were written: with fields that have their default, and durations in their own form.
fn as_istiod_writes(objects: &mut Value) {
    for object in objects.as_array_mut().into_iter().flatten() {
        let is_default = |value: &Value| [json!("ALLOW"), json!("MESH_EXTERNAL")].contains(value);
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.retain(|name, value| !(["action", "location"].contains(&name.as_str()) && is_default(value)));
        }
        if let Some(duration) = object.pointer_mut("/spec/http/0/retries/perTryTimeout") {
            *duration = json!(if *duration == "500ms" { "0.500s" } else { "another duration" });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_the_form_and_the_content_of_istiod() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = start(directory.path(), &[]).await?;
    let _streams = connect_proxies(&server).await?;
    let recorded: BTreeMap<String, Value> = serde_json::from_str(RECORDED)?;
    let mut differences = Vec::new();
    for (name, mut expected) in recorded {
        let mut ours = page(&server, &name).await?;
        if name == "configz" {
            as_istiod_writes(&mut ours);
            let key = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
            for rows in [&mut ours, &mut expected].into_iter().filter_map(Value::as_array_mut) {
                rows.sort_by_key(key);
            }
        }
        if let Some(rows) = ours.as_array_mut() {
            // The Service of the API server differs from that of the recording.
            rows.retain(|row| row["hostname"] != "kubernetes.default.svc.cluster.local");
        }
        if name.starts_with("sidecarz") {
            // The same for the three lists of services. The version is that of the snapshot, and the listeners are an addition.
            let is_other = |row: &Value| row["hostname"] != "kubernetes.default.svc.cluster.local";
            for list in ["/services", "/egressListenerServices/0"] {
                ours.pointer_mut(list).and_then(Value::as_array_mut).context("services")?.retain(is_other);
            }
            ours["servicesByHostname"].as_object_mut().context("services")?.retain(|_, row| is_other(row));
            ours.as_object_mut().context("a page")?.remove("egressListeners");
            [&mut ours, &mut expected].into_iter().for_each(|page| page["version"] = json!(""));
        }
        // Policies are shown as they were written, too.
        for policy in [
            "/authorization_policies/namespace_to_policies/shop/0/spec",
            "/AuthorizationPolicies/namespace_to_policies/shop/0/spec",
        ] {
            if let Some(spec) = ours.pointer_mut(policy).and_then(Value::as_object_mut) {
                assert_eq!(spec.remove("action"), Some(json!("ALLOW")));
            }
        }
        comparable(&mut expected);
        comparable(&mut ours);
        if expected != ours {
            differences.push(format!("{name}:\n istiod  {expected}\n sluiced {ours}"));
        }
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n"));

    let one = page(&server, "configz?kind=virtualservice&namespace=store").await?;
    assert_eq!((one.as_array().map(Vec::len), &one[0]["metadata"]["name"]), (Some(1), &json!("pay")));
    assert_eq!(server.get("/debug/configz?kind=Nothing").await?.0, 400);

    let (status, text) = server.get("/debug/adsz?push=true").await?;
    assert!(status == 200 && text.starts_with("Pushed to 0 servers: 2 are connected"), "{text}");

    let reachable = page(&server, &format!("sidecarz?proxyID={WEB}")).await?;
    assert_eq!(reachable["egressListeners"][0]["listener"], json!({"hosts": ["*/*"]}));
    let routes = reachable["egressListeners"][0]["virtualServices"].as_array().context("VirtualServices")?;
    assert!(routes.iter().any(|route| route["name"] == "pay" && route["namespace"] == "store"), "{routes:?}");
    for name in ["sidecarz?proxyID=nosuch.shop", "telemetryz?proxyID=nosuch.shop"] {
        let (status, text) = server.get(&format!("/debug/{name}")).await?;
        assert_eq!(status, 404, "{name}");
        assert!(text.starts_with("Proxy not connected to this Pilot instance."), "{text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecarz_has_the_listeners_services_routes_and_rules_of_a_sidecar() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let sidecar = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: web, namespace: shop}\n\
        spec:\n  workloadSelector: {labels: {app: web}}\n  outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n  egress:\n  \
        - {port: {number: 7000, protocol: GRPC, name: grpc}, hosts: [./cart.shop.svc.cluster.local]}\n  \
        - {hosts: [store/pay.store.svc.cluster.local]}\n";
    std::fs::write(directory.path().join("sidecar.yaml"), sidecar)?;
    let server = start(directory.path(), &[]).await?;
    let _streams = connect_proxies(&server).await?;
    let scope = page(&server, &format!("sidecarz?proxyID={WEB}")).await?;
    let hosts = |list: &Value| -> Vec<String> {
        let rows = list.as_array().into_iter().flatten();
        rows.map(|row| row["hostname"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!((&scope["name"], &scope["namespace"]), (&json!("web"), &json!("shop")));
    assert_eq!(scope["outboundTrafficPolicy"], json!({"mode": "REGISTRY_ONLY"}));
    assert_eq!(scope["sidecar"]["workloadSelector"]["labels"]["app"], "web");
    let (cart, pay) = ("cart.shop.svc.cluster.local", "pay.store.svc.cluster.local");
    assert_eq!(hosts(&scope["egressListenerServices"][0]), [cart]);
    assert_eq!(
        scope["egressListenerServices"][0][0]["ports"].as_array().map(Vec::len),
        Some(1),
        "only the listener's port"
    );
    assert_eq!(hosts(&scope["egressListenerServices"][1]), [pay]);
    let services = hosts(&scope["services"]);
    assert!(services.contains(&cart.to_owned()) && services.contains(&pay.to_owned()), "{services:?}");
    assert!(!services.iter().any(|host| host.starts_with("db.")), "{services:?}");
    assert_eq!(scope["servicesByHostname"].as_object().map(|hosts| hosts.len()), Some(services.len()));
    assert_eq!(scope["egressListeners"][0]["listener"]["port"]["number"], 7000);
    assert_eq!(scope["egressListeners"][1]["virtualServices"][0]["name"], "pay");
    assert_eq!(scope["destinationRules"][pay][0]["from"], json!([{"Name": "pay", "Namespace": "store"}]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_appear_and_disappear_with_their_files() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = start(directory.path(), &[]).await?;
    let object =
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: extra, namespace: shop}\nspec: {}\n";
    let names = async || -> Result<Vec<String>> {
        let page = page(&server, "configz?kind=Sidecar").await?;
        let rows = page.as_array().into_iter().flatten();
        Ok(rows.map(|row| row["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect())
    };
    let files = [directory.path().join("a.yaml"), directory.path().join("b.yaml")];
    for file in &files {
        std::fs::write(file, object)?;
    }
    let reached = async |wanted: &[&str], duplicates: usize| -> Result<()> {
        for _ in 0..500 {
            let rejects = page(&server, "rejects").await?;
            if names().await? == wanted && rejects["duplicates"].as_array().map(Vec::len) == Some(duplicates) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("{:?}", (names().await?, page(&server, "rejects").await?))
    };
    reached(&["extra", "default"], 1).await?;
    let duplicate = &page(&server, "rejects").await?["duplicates"][0];
    assert_eq!(duplicate["files"].as_array().map(Vec::len), Some(2), "{duplicate}");
    assert!(duplicate["used"].as_str().is_some_and(|used| used.ends_with("b.yaml:1")), "{duplicate}");
    std::fs::remove_file(&files[1])?;
    reached(&["extra", "default"], 0).await?;
    std::fs::remove_file(&files[0])?;
    reached(&["default"], 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_get_tables_and_every_link_works() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = start(directory.path(), &[]).await?;
    let _streams = connect_proxies(&server).await?;
    let browser = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    let index = request(server.http, "GET", "/debug", &browser, "").await?.body;
    assert!(index.contains(&format!("<option value=\"{WEB}\">")), "{index}");
    let links: Vec<&str> = index.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(links.len() > 25, "{links:?}");
    for link in links {
        let response = request(server.http, "GET", link, &browser, "").await?;
        assert_eq!(response.status, 200, "{link}: {}", response.body);
    }
    for name in ["rejects", "collections"] {
        let response = request(server.http, "GET", &format!("/debug/{name}"), &browser, "").await?;
        assert!(response.header("content-type").is_some_and(|it| it.starts_with("text/html")), "{name}");
    }
    let table = request(server.http, "GET", "/debug/collections", &browser, "").await?.body;
    let row = "<td><a href=\"/debug/collections/services\">services</a></td><td class=\"number\">";
    assert!(table.contains(row), "{table}");
    let mut links = table.split("href=\"").map(|rest| rest.split('"').next().unwrap_or_default());
    let link = links.find(|link| link.contains("%2F")).context("a collection with a slash in its name")?;
    assert_eq!(server.get(link).await?.0, 200, "{link}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn force_disconnect_closes_a_stream_if_it_is_enabled() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = format!("/debug/force_disconnect?proxyID={WEB}");
    let server = start(directory.path(), &[]).await?;
    assert_eq!(server.get(&path).await?.0, 404);
    drop(server);
    let server = start(directory.path(), &[("UNSAFE_ENABLE_ADMIN_ENDPOINTS", "true")]).await?;
    let mut streams = connect_proxies(&server).await?;
    assert_eq!(server.get("/debug/force_disconnect").await?.0, 400);
    assert_eq!(server.get("/debug/force_disconnect?proxyID=nosuch.shop").await?.0, 404);
    let other_origin = [("sec-fetch-site", "cross-site")];
    assert_eq!(request(server.http, "GET", &path, &other_origin, "").await?.status, 403);
    assert_eq!(page(&server, "connections").await?["totalClients"], 2);
    assert_eq!(server.get(&path).await?, (200, "OK".to_owned()));
    let end = streams[0].next_within(Duration::from_secs(10)).await;
    assert!(!matches!(end, Ok(Some(_))), "the stream ends: {end:?}");
    for _ in 0..500 {
        if page(&server, "connections").await?["totalClients"] == 1 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("the proxy is still connected")
}

#[tokio::test(flavor = "multi_thread")]
async fn ambientz_has_workloads_services_and_policies() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let objects = include_str!("../cases/ambient/04-authz-l4-peerauth/input.yaml");
    std::fs::write(directory.path().join("objects.yaml"), objects)?;
    let env = vec![("PILOT_ENABLE_AMBIENT".to_owned(), "true".to_owned())];
    let server = Sluiced::start(&Options { env, ..Options::new(directory.path()) }).await?;
    let page = page(&server, "ambientz").await?;
    let names = |part: &str| -> Vec<&str> {
        let rows = page[part].as_array().into_iter().flatten();
        rows.filter_map(|row| row["name"].as_str()).collect()
    };
    assert_eq!(names("services"), ["coral", "crab"]);
    assert_eq!(names("workloads").len(), 3, "{page}");
    let policies = names("policies");
    assert!(policies.contains(&"global") && policies.contains(&"wl-http-deny"), "{policies:?}");
    assert!(page["policies"][0].get("@type").is_none(), "{page}");
    Ok(())
}
