//! Requests of istioctl over xDS that were recorded with istiod.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_proto::envoy::service::discovery::v3::DiscoveryRequest;
use sluice_proto::json::encode_any;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, Update, connect, follow};
use sluice_testkit::secure::ClientTls;
use tonic::Status;

use crate::identity::mesh::IdentityFixture;

const OBJECTS: &str = include_str!("objects.yaml");
const PROXIES: &str = include_str!("proxies.json");
const RECORDED: &str = include_str!("recorded.json");

/// Pages that istiod lists and Sluice does not, or not without `UNSAFE_ENABLE_ADMIN_ENDPOINTS`.
const MISSING_PAGES: [&str; 4] = ["adsz?push=true", "cachez?clear=true", "cachez?sizes=true", "force_disconnect"];

/// Pages that only Sluice has.
const OWN_PAGES: [&str; 15] = [
    "authorization",
    "collections",
    "config_sources",
    "describe",
    "epochs",
    "frontier",
    "history",
    "log",
    "panics",
    "preview",
    "record",
    "rejects",
    "wait",
    "why",
    "why_not",
];

/// Connects a proxy with its subscriptions. It rejects its listeners if `rejects`.
async fn proxy(mesh: &IdentityFixture, node: &Value, rejects: bool) -> Result<AdsStream> {
    let account = node["metadata"]["SERVICE_ACCOUNT"].as_str().context("an account")?;
    let token = mesh.token(&format!("system:serviceaccount:shop:{account}"));
    let channel = mesh.connect(&ClientTls::default()).await;
    let mut stream = AdsStream::open_with_token(channel, Protocol::Sotw, Identity::of_node(node)?, &token)?;
    let mut names: BTreeMap<Kind, BTreeSet<String>> = BTreeMap::new();
    let has_names = node["metadata"]["DNS_CAPTURE"] == "true";
    let wildcards = [Kind::Cds, Kind::Lds, Kind::Nds];
    for kind in wildcards.into_iter().filter(|kind| *kind != Kind::Nds || has_names) {
        let update = exchange(&mut stream, kind, &BTreeSet::new(), rejects && kind == Kind::Lds).await?;
        for (_, _, any) in &update.resources {
            let resource = encode_any(&any.type_url, &any.value);
            for referred in [Kind::Eds, Kind::Rds] {
                if follow::referring_kinds(referred).contains(&kind) {
                    follow::names(referred, &resource, names.entry(referred).or_default());
                }
            }
        }
    }
    for (kind, names) in names {
        exchange(&mut stream, kind, &names, false).await?;
    }
    Ok(stream)
}

/// Subscribes, waits for the response, and acknowledges or rejects it.
async fn exchange(stream: &mut AdsStream, kind: Kind, names: &BTreeSet<String>, rejects: bool) -> Result<Update> {
    let names: Vec<String> = names.iter().cloned().collect();
    stream.subscribe(kind.type_url(), &names, BTreeMap::new())?;
    let update = stream.next().await?.context("a response")?;
    ensure!(update.type_url == kind.type_url(), "{update:?}");
    match rejects {
        true => stream.nack(&update, "made-up refusal of one resource")?,
        false => stream.ack(&update)?,
    }
    Ok(update)
}

/// Sends a recorded request with its credentials.
async fn ask(mesh: &IdentityFixture, recorded: &Value) -> Result<Update> {
    let request = &recorded["request"];
    let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
    let identity = Identity::of_node(&request["node"])?;
    let node = identity.node.clone();
    let credentials = recorded["identity"].as_str().context("an identity")?;
    let stream = if recorded["port"] == "plaintext 15010" {
        AdsStream::open(connect(mesh.server.grpc).await?, Protocol::Sotw, identity)?
    } else {
        let channel = mesh.connect(&ClientTls::default()).await;
        let namespace = request["node"]["metadata"]["NAMESPACE"].as_str().context("a namespace")?;
        // One recorded account is not that of the node.
        let account = if recorded["name"] == "syncz-other-account" { "web" } else { "default" };
        let token = mesh.token(&format!("system:serviceaccount:{namespace}:{account}"));
        match credentials {
            "none" => AdsStream::open(channel, Protocol::Sotw, identity)?,
            "refused token" => AdsStream::open_with_token(channel, Protocol::Sotw, identity, "refused")?,
            _ => AdsStream::open_with_token(channel, Protocol::Sotw, identity, &token)?,
        }
    };
    let names = request["resourceNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    // The stream may already have ended with its status, which the next line reads.
    let _ = stream.send_sotw(DiscoveryRequest {
        node,
        type_url: text("typeUrl"),
        resource_names: names.map(str::to_owned).collect(),
        response_nonce: text("responseNonce"),
        ..DiscoveryRequest::default()
    });
    let mut stream = stream;
    stream.next().await?.context("a response")
}

/// What a response and a recorded one have in common: without nonces, times and the content of dumps.
fn comparable(type_url: &str, resource: &Value) -> Value {
    let mut value = resource.clone();
    if type_url.ends_with("ConfigDump") {
        return json!(type_url);
    }
    if let Some(configs) = value.get_mut("genericXdsConfigs").and_then(Value::as_array_mut) {
        for config in configs {
            let config = config.as_object_mut().expect("an object");
            config.remove("lastUpdated");
            if let Some(error) = config.get_mut("errorState").and_then(Value::as_object_mut) {
                error.remove("lastUpdateAttempt");
            }
        }
    }
    if let Some(configs) = value["configs"].as_array() {
        // Endpoints and names have parity cases of their own.
        let clusters: BTreeSet<&str> = configs.iter().filter_map(|config| config["clusterName"].as_str()).collect();
        let hosts: BTreeSet<&String> =
            configs.iter().filter_map(|config| config["table"].as_object()).flat_map(|table| table.keys()).collect();
        return json!({"clusters": clusters, "hosts": hosts});
    }
    if let Some(pages) = value.as_array_mut() {
        let differs = |page: &str| MISSING_PAGES.contains(&page) || OWN_PAGES.contains(&page);
        pages.retain(|page| page.as_str().is_none_or(|page| !differs(page)));
        pages.sort_by_key(|row| row["proxy"].to_string());
        // The reference counts the caller as a proxy.
        pages.retain(|row| row["proxy"] != "test-1.default");
        for row in pages.iter_mut().filter_map(Value::as_object_mut) {
            // Sluice has more fields in this page.
            row.retain(|field, _| !matches!(field.as_str(), "watches" | "oldestSeconds" | "resources"));
            for (field, value) in row.iter_mut() {
                if field.ends_with("_sent") || field.ends_with("_acked") {
                    *value = json!("NONCE");
                }
            }
        }
    }
    value
}

/// The comparable resources of a recorded response, and of ours.
fn resources(recorded: &Value, update: &Update) -> (Vec<Value>, Vec<Value>) {
    let of_type = |url: &str, value: &Value| comparable(url, value);
    let recorded = recorded["resources"].as_array().into_iter().flatten().map(|resource| {
        let url = resource["typeUrl"].as_str().unwrap_or_default();
        let fields = ["message", "json", "text"];
        of_type(
            url,
            fields.iter().map(|field| &resource[*field]).find(|value| !value.is_null()).unwrap_or(&Value::Null),
        )
    });
    let ours = update.resources.iter().map(|(_, _, any)| {
        let value = match any.type_url.starts_with("istio.io/") {
            false => encode_any(&any.type_url, &any.value),
            true => serde_json::from_slice(&any.value).unwrap_or_else(|_| json!(String::from_utf8_lossy(&any.value))),
        };
        of_type(&any.type_url, &value)
    });
    let (mut recorded, mut ours): (Vec<Value>, Vec<Value>) = (recorded.collect(), ours.collect());
    let is_client = |value: &Value| value["node"].is_object();
    for list in [&mut recorded, &mut ours] {
        if list.iter().all(is_client) {
            list.sort_by_key(|client| client["node"]["id"].to_string());
        }
    }
    (recorded, ours)
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_requests_get_the_answers_of_istiod() -> Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("objects.yaml"), OBJECTS)?;
    let mesh = IdentityFixture::start(&[&format!("--configDir={}", directory.path().display())]).await;
    let proxies: Vec<Value> = serde_json::from_str(PROXIES)?;
    let mut streams = Vec::new();
    for (number, row) in proxies.iter().enumerate() {
        let stream = proxy(&mesh, &row["node"], number == 0).await;
        streams.push(stream.with_context(|| format!("proxy {}", row["name"]))?);
    }
    let recorded: Vec<Value> = serde_json::from_str(RECORDED)?;
    let mut differences = Vec::new();
    for row in &recorded {
        let name = &row["name"];
        match (ask(&mesh, row).await, &row["error"]) {
            (Ok(update), Value::Null) => {
                let expected = &row["response"];
                let (theirs, ours) = resources(expected, &update);
                let identified = expected["hasIdentifier"] == true;
                if expected["typeUrl"] != update.type_url || identified == update.control_plane.is_empty() {
                    differences.push(format!("{name}: {update:?}"));
                }
                if theirs != ours {
                    differences.push(format!("{name}: istiod {} sluiced {}", json!(theirs), json!(ours)));
                }
            }
            (Err(error), expected) => {
                let code = error.downcast_ref::<Status>().map(|status| format!("{:?}", status.code()));
                if expected.as_str() != code.as_deref() {
                    differences.push(format!("{name}: istiod {expected} sluiced {error:#}"));
                }
            }
            (Ok(update), expected) => differences.push(format!("{name}: istiod {expected} sluiced {update:?}")),
        }
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}
