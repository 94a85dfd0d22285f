//! The demo: a sample mesh with real Envoys. It edits a VirtualService on disk and measures how soon traffic follows.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::BridgeNetwork;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

#[derive(Parser)]
#[command(about = "Runs a sample mesh with real Envoys and shows how traffic follows an edited VirtualService")]
struct Args {
    /// Exit after the tour. Without this flag, the mesh keeps running until Enter is pressed.
    #[arg(long)]
    once: bool,
    /// Run a gateway only, without pods in network namespaces. This is the default where network namespaces are not
    /// permitted.
    #[arg(long)]
    gateway_only: bool,
}

const COUNTER: &str = "10.96.40.10";
const MENU: &str = "10.96.40.11";
const KETTLE: &str = "10.96.40.12";

/// A file of the mesh at the start of the demo.
fn sample(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../manifests/demo", name].iter().collect()
}

/// A file that replaces one of the mesh.
fn replacement(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../manifests/demo-edits", name].iter().collect()
}

fn print(text: &str) {
    // A closed terminal is not an error.
    let _ = writeln!(std::io::stdout(), "{text}");
}

const FRONT_DOOR: Workload =
    Workload::new("front-door", "front-door", PodRole::Gateway(Protocol::Delta, "front-door")).namespace("teashop");

const fn shop(name: &'static str, app: &'static str, version: &'static str, proxy: PodRole) -> Workload {
    Workload::new(name, app, proxy).version(version).namespace("teashop")
}

const fn sidecar(name: &'static str, app: &'static str, version: &'static str, protocol: Protocol) -> Workload {
    shop(name, app, version, PodRole::Sidecar(protocol))
}

const OBJECTS: [&str; 4] = ["services.yaml", "kettle-versions.yaml", "kettle-routes.yaml", "front-door.yaml"];

/// Requires mutual TLS. The gateway-only demo leaves it out, because its pods have no sidecars.
const MUTUAL_TLS: &str = "mutual-tls.yaml";

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let permitted =
        if args.gateway_only { Err(anyhow!("--gateway-only was given")) } else { BridgeNetwork::new().map(drop) };
    let mesh = match permitted {
        Ok(()) => whole_mesh().await?,
        Err(reason) => {
            print(&format!("The demo runs a gateway only, without sidecars. Reason: {reason:#}.\n"));
            gateway_only().await?
        }
    };
    for (name, pod) in mesh.pods.iter() {
        if let Some(envoy) = &pod.envoy {
            let rejected = envoy.rejected().await?;
            ensure!(rejected.is_empty(), "the Envoy of {name} rejected an update: {}", rejected.join(", "));
        }
    }
    print("No Envoy rejected an update.");
    if !args.once {
        print_suggestions(&mesh);
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    }
    Ok(())
}

/// Prints a request to send, the directory to edit, and the pages to look at.
fn print_suggestions(mesh: &Mesh) {
    let gateway = mesh.pods.pod("front-door").net.ip;
    let directory = mesh.config_file("");
    let admin = mesh.server.http;
    let routes = mesh.config_file("front-door.yaml");
    let is_v1 = std::fs::read_to_string(&routes).is_ok_and(|text| text.contains("subset: v1"));
    let (from, to) = if is_v1 { ("v1", "v2") } else { ("v2", "v1") };
    let mut lines = vec![
        "\nThe mesh keeps running. Try this in another terminal:\n".to_owned(),
        "  1. Send a request through the gateway. The answer names the version that served it:".to_owned(),
        format!("       curl -s -H 'Host: tea.example.com' http://{gateway}:8080/kettle"),
        "  2. Edit an object. sluiced watches this directory and applies a change when the file is saved:".to_owned(),
        format!("       {}", directory.display()),
        format!("     For example, send /kettle to version {to}, then repeat the request:"),
        format!("       sed -i 's/subset: {from}/subset: {to}/' {}", routes.display()),
        "  3. Look at the control plane:".to_owned(),
    ];
    for (page, shows) in [
        ("/debug/syncz", "what each proxy was sent and has acknowledged"),
        ("/debug/config_dump?proxyID=front-door.teashop", "the configuration of the gateway"),
        ("/debug/epochs", "recent changes and their cost"),
        ("/debug/rejects", "objects that are invalid, with field and reason"),
        ("/debug", "all pages"),
    ] {
        lines.push(format!("      {:75} {shows}", format!("http://{admin}{page}")));
    }
    lines.push(format!("      {:75} the log", mesh.pods.file("sluiced.log").display()));
    lines.push("\nPress Enter to stop the demo.".to_owned());
    print(&lines.join("\n"));
}

async fn whole_mesh() -> Result<Mesh> {
    print(
        "Start: sluiced reads a copy of manifests/demo. Seven pods start, each in a network namespace of its own. Six have",
    );
    print("  an Envoy and sluice-agent, which gets a certificate from sluiced. The pod `stranger` has neither.");
    let objects = OBJECTS.iter().chain([&MUTUAL_TLS]);
    let mut mesh =
        Mesh::start(&objects.map(|name| sample(name)).collect::<Vec<_>>()).await.context("start the mesh")?;
    mesh.deploy(&[
        sidecar("counter", "counter", "v1", Protocol::Delta),
        sidecar("menu", "menu", "v1", Protocol::Sotw),
        sidecar("kettle-v1", "kettle", "v1", Protocol::Delta),
        sidecar("kettle-v2", "kettle", "v2", Protocol::Sotw),
        sidecar("kettle-v3", "kettle", "v3", Protocol::Delta),
        FRONT_DOOR,
        shop("stranger", "stranger", "v1", PodRole::NoProxy),
    ])
    .await
    .context("start the pods")?;
    print("  All Envoys are configured.\n");
    through_the_mesh(&mesh).await?;
    mutual_tls(&mesh).await?;
    through_the_gateway(&mesh).await?;
    canary(&mesh).await?;
    weights(&mesh).await?;
    Ok(mesh)
}

/// A gateway in front of backends without proxies. The demo edits the VirtualService of the gateway.
async fn gateway_only() -> Result<Mesh> {
    let mut mesh = Mesh::start_on_loopback(&OBJECTS.map(sample)).await.context("start the mesh")?;
    // The gateway listens on 8080 of every loopback address.
    let plain = |name, app, version| shop(name, app, version, PodRole::NoProxy).port("http", 9080, PortProtocol::Http);
    mesh.deploy(&[
        plain("counter", "counter", "v1"),
        plain("menu", "menu", "v1"),
        plain("kettle-v1", "kettle", "v1"),
        plain("kettle-v2", "kettle", "v2"),
        FRONT_DOOR,
    ])
    .await
    .context("start the gateway")?;
    through_the_gateway(&mesh).await?;
    print("Edit: front-door.yaml on disk now sends /kettle to v2.");
    let text = std::fs::read_to_string(sample("front-door.yaml")).context("read front-door.yaml")?;
    let edited = text.replace("host: kettle, subset: v1", "host: kettle, subset: v2");
    ensure!(text != edited, "front-door.yaml sends /kettle to v1");
    let call =
        AppRequest::get(vip(&mesh.pods.pod("front-door").net.ip.to_string(), 8080), "tea.example.com").path("/kettle");
    let started = Instant::now();
    mesh.write("front-door.yaml", &edited)?;
    settle(&mesh, "counter", &call, "kettle v2").await?;
    print(&format!("  first changed answer: {:.1} ms after the edit\n", started.elapsed().as_secs_f64() * 1000.0));
    Ok(mesh)
}

/// The workload that answered, or an error that says what was received instead.
fn responder(reply: &AppReply) -> Result<String> {
    match &reply.outcome {
        Ok(answer) if answer.status == 200 => Ok(answer.responder()),
        Ok(answer) => bail!("status {}: {}", answer.status, answer.body),
        Err(error) => bail!("{error}"),
    }
}

/// Repeats a request until `expected` answers: a starting Envoy receives its configuration in steps.
async fn settle(mesh: &Mesh, from: &str, call: &AppRequest, expected: &str) -> Result<AppReply> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let reply = mesh.pods.pod(from).call(call.clone()).await?;
        if responder(&reply).is_ok_and(|name| name == expected) {
            return Ok(reply);
        }
        ensure!(
            Instant::now() < deadline,
            "{from} called {} and expected {expected}, but got {:?}",
            call.host,
            reply.outcome
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn through_the_mesh(mesh: &Mesh) -> Result<()> {
    print("Traffic between sidecars: caller, host, and the workload that answers.");
    for (from, address, host, expected) in [
        ("counter", MENU, "menu", "menu v1"),
        ("counter", KETTLE, "kettle", "kettle v1"),
        ("menu", KETTLE, "kettle.teashop.svc.cluster.local", "kettle v1"),
        ("kettle-v2", COUNTER, "counter.teashop", "counter v1"),
    ] {
        let reply = settle(mesh, from, &AppRequest::get(vip(address, 80), host), expected).await?;
        print(&format!("  {from:9} → {host:32} {expected:10} {:5.1} ms", millis(&reply)));
    }
    print("");
    Ok(())
}

/// Shows that both sides of a call are authenticated, and that a client without a certificate is rejected.
async fn mutual_tls(mesh: &Mesh) -> Result<()> {
    print("Mutual TLS: mutual-tls.yaml requires it, and certificates come from sluiced.");
    let reply = settle(mesh, "counter", &AppRequest::get(vip(KETTLE, 80), "kettle"), "kettle v1").await?;
    let received = reply.outcome.map_err(anyhow::Error::msg)?.received_request();
    let header = received["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default();
    let client = header.split(';').find_map(|part| part.strip_prefix("URI=")).unwrap_or_default();
    ensure!(
        client == "spiffe://cluster.local/ns/teashop/sa/counter",
        "the kettle receives the identity of its caller, but got {received}"
    );
    print(&format!("  the kettle sees the caller {client}"));
    let kettle = vip(&mesh.pods.pod("kettle-v1").net.ip.to_string(), 8080);
    let reply = mesh.pods.pod("stranger").call(AppRequest::get(kettle, "kettle")).await?;
    ensure!(reply.outcome.is_err(), "plaintext is rejected, but got {:?}", reply.outcome);
    print("  the pod `stranger` calls in plaintext and is rejected\n");
    Ok(())
}

async fn through_the_gateway(mesh: &Mesh) -> Result<()> {
    print("Traffic through the gateway, with the header `Host: tea.example.com`:");
    let door = vip(&mesh.pods.pod("front-door").net.ip.to_string(), 8080);
    for (path, expected) in [("/", "counter v1"), ("/menu", "menu v1"), ("/kettle", "kettle v1")] {
        let call = AppRequest::get(door, "tea.example.com").path(path);
        let reply = settle(mesh, "counter", &call, expected).await?;
        print(&format!("  {path:44} {expected:10} {:5.1} ms", millis(&reply)));
    }
    let other = mesh.pods.pod("counter").call(AppRequest::get(door, "other.example.com")).await?;
    let status = other.outcome.as_ref().map(|answer| answer.status);
    ensure!(status == Ok(404), "a host that no Gateway declares gets status 404, but got {status:?}");
    print("  a host that no Gateway declares              status 404\n");
    Ok(())
}

fn millis(reply: &AppReply) -> f64 {
    Duration::from_micros(reply.elapsed_us).as_secs_f64() * 1000.0
}

/// How long an edit takes, measured from just before the file is renamed into place.
struct EditLatency {
    /// Until the first answer that shows the change.
    first_answer: Duration,
    /// Until the counter's Envoy has applied the routes.
    envoy_applied: Duration,
}

/// Replaces the VirtualService by `file` and repeats `call` from the counter until `expected` answers.
async fn edit(mesh: &Mesh, file: &str, call: &AppRequest, expected: &str) -> Result<EditLatency> {
    let text = std::fs::read_to_string(replacement(file)).with_context(|| format!("read {file}"))?;
    let pod = mesh.pods.pod("counter");
    let envoy = pod.envoy.as_ref().context("the counter has an Envoy")?;
    let stat = "http.outbound_0.0.0.0_80;.rds.80.config_reload";
    let before = envoy.stat(stat).await?;
    let started = Instant::now();
    mesh.write("kettle-routes.yaml", &text)?;
    let answer = async {
        loop {
            let reply = pod.call(call.clone()).await?;
            if responder(&reply)? == expected {
                return anyhow::Ok(started.elapsed());
            }
            ensure!(started.elapsed() < Duration::from_secs(10), "{file}: no answer of {expected} within 10 s");
        }
    };
    let applied = async {
        while envoy.stat(stat).await? == before {
            ensure!(started.elapsed() < Duration::from_secs(10), "{file}: Envoy applied no new routes within 10 s");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::Ok(started.elapsed())
    };
    let (first_answer, envoy_applied) = tokio::try_join!(answer, applied)?;
    Ok(EditLatency { first_answer, envoy_applied })
}

fn report(latency: &EditLatency) {
    print(&format!(
        "  first changed answer: {:.1} ms after the edit; routes applied by Envoy: {:.1} ms",
        latency.first_answer.as_secs_f64() * 1000.0,
        latency.envoy_applied.as_secs_f64() * 1000.0,
    ));
}

async fn canary(mesh: &Mesh) -> Result<()> {
    print(
        "Edit: kettle-canary.yaml replaces kettle-routes.yaml on disk. Requests with `x-user: maya` go to kettle v2.",
    );
    let plain = AppRequest::get(vip(KETTLE, 80), "kettle");
    let maya = plain.clone().header("x-user", "maya");
    report(&edit(mesh, "kettle-canary.yaml", &maya, "kettle v2").await?);
    for (user, call, expected) in [("maya", &maya, "kettle v2"), ("other users", &plain, "kettle v1")] {
        for _ in 0..10 {
            let answered = responder(&mesh.pods.pod("counter").call(call.clone()).await?)?;
            ensure!(answered == expected, "{user}: expected an answer of {expected}, but got {answered}");
        }
        print(&format!("  {user:13} {expected}: 10 of 10 requests"));
    }
    print("");
    Ok(())
}

async fn weights(mesh: &Mesh) -> Result<()> {
    print("Edit: kettle-weights.yaml replaces it. Of all other requests, 80 % go to v1 and 20 % to v3.");
    let call = AppRequest::get(vip(KETTLE, 80), "kettle");
    report(&edit(mesh, "kettle-weights.yaml", &call, "kettle v3").await?);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..500 {
        *counts.entry(responder(&mesh.pods.pod("counter").call(call.clone()).await?)?).or_default() += 1;
    }
    for (name, count) in &counts {
        print(&format!("  {name:13} {count:3} of 500 requests"));
    }
    let v3 = counts.get("kettle v3").copied().unwrap_or(0);
    ensure!(counts.len() == 2 && counts.contains_key("kettle v1"), "only v1 and v3 answer: {counts:?}");
    // Six standard deviations of 500 draws at 20 %.
    ensure!((46..=154).contains(&v3), "about 100 of 500 answers come from v3, but {v3} did");
    print("");
    Ok(())
}
