//! The demo: a tea shop with real Envoys, whose traffic moves while a VirtualService is edited on disk.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use sluice_testkit::pods::app::{Call, Reply};
use sluice_testkit::pods::envoy::Protocol;
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::Network;
use sluice_testkit::pods::workload::{Beside, Speaks, Workload};

#[derive(Parser)]
#[command(about = "A sample mesh with real Envoys: watch traffic move as a VirtualService is edited")]
struct Args {
    /// Run unattended and end; without it the mesh stays up until Enter is pressed.
    #[arg(long)]
    once: bool,
    /// Show only the gateway, without pods: what is shown where network namespaces are not permitted.
    #[arg(long)]
    gateway_only: bool,
}

const COUNTER: &str = "10.96.40.10";
const MENU: &str = "10.96.40.11";
const KETTLE: &str = "10.96.40.12";

fn sample(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../manifests/demo", name].iter().collect()
}

fn say(text: &str) {
    // The terminal is the demo's output; a closed one ends it quietly.
    let _ = writeln!(std::io::stdout(), "{text}");
}

const FRONT_DOOR: Workload =
    Workload::new("front-door", "front-door", Beside::Gateway(Protocol::Delta, "front-door")).namespace("teashop");

const fn shop(name: &'static str, app: &'static str, version: &'static str, proxy: Beside) -> Workload {
    Workload::new(name, app, proxy).version(version).namespace("teashop")
}

const fn sidecar(name: &'static str, app: &'static str, version: &'static str, protocol: Protocol) -> Workload {
    shop(name, app, version, Beside::Sidecar(protocol))
}

const OBJECTS: [&str; 4] = ["services.yaml", "kettle-versions.yaml", "kettle-routes.yaml", "front-door.yaml"];

/// Requires mutual TLS, for which every pod needs a sidecar.
const MUTUAL_TLS: &str = "mutual-tls.yaml";

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let permitted = if args.gateway_only { Err(anyhow!("--gateway-only was given")) } else { Network::new().map(drop) };
    let mesh = match permitted {
        Ok(()) => whole_mesh().await?,
        Err(reason) => {
            say(&format!("Only the gateway part is shown, without sidecars: {reason:#}.\n"));
            gateway_only().await?
        }
    };
    for (name, pod) in mesh.pods() {
        if let Some(envoy) = &pod.envoy {
            let rejected = envoy.rejected().await?;
            ensure!(rejected.is_empty(), "the Envoy of {name} refused an update: {}", rejected.join(", "));
        }
    }
    say("No Envoy refused an update.");
    if !args.once {
        say(&format!("\nLook around: http://{}/debug   Enter ends the demo.", mesh.server.http));
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    }
    Ok(())
}

async fn whole_mesh() -> Result<Mesh> {
    say(
        "Starting sluiced on manifests/demo, and seven pods: each a network namespace with an application, an Envoy, and",
    );
    say("sluice-agent, which gets its certificate from sluiced. One has neither: nobody in the mesh knows it.");
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
        shop("stranger", "stranger", "v1", Beside::Nothing),
    ])
    .await
    .context("start the pods")?;
    say("Every Envoy is live.\n");
    through_the_mesh(&mesh).await?;
    who_is_who(&mesh).await?;
    through_the_gateway(&mesh).await?;
    canary(&mesh).await?;
    weights(&mesh).await?;
    Ok(mesh)
}

/// A gateway before plain backends; the VirtualService that is edited is the gateway's.
async fn gateway_only() -> Result<Mesh> {
    let mut mesh = Mesh::start_on_loopback(&OBJECTS.map(sample)).await.context("start the mesh")?;
    // The gateway listens on 8080 of every loopback address.
    let plain = |name, app, version| shop(name, app, version, Beside::Nothing).port("http", 9080, Speaks::Http);
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
    say("Editing the gateway's VirtualService on disk: /kettle goes to v2.");
    let text = std::fs::read_to_string(sample("front-door.yaml")).context("read front-door.yaml")?;
    let edited = text.replace("host: kettle, subset: v1", "host: kettle, subset: v2");
    ensure!(text != edited, "front-door.yaml sends /kettle to v1");
    let call = Call::get(vip(&mesh.pod("front-door").net.ip.to_string(), 8080), "tea.example.com").path("/kettle");
    let started = Instant::now();
    mesh.write("front-door.yaml", &edited)?;
    settle(&mesh, "counter", &call, "kettle v2").await?;
    say(&format!("  first changed answer after {:.1} ms\n", started.elapsed().as_secs_f64() * 1000.0));
    Ok(mesh)
}

/// Who answered, or an error that says what came instead.
fn who(reply: &Reply) -> Result<String> {
    match &reply.outcome {
        Ok(answer) if answer.status == 200 => Ok(answer.who()),
        Ok(answer) => bail!("status {}: {}", answer.status, answer.body),
        Err(error) => bail!("{error}"),
    }
}

/// Asks until the answer is from `expected`; configuration arrives in steps after an Envoy is live.
async fn settle(mesh: &Mesh, from: &str, call: &Call, expected: &str) -> Result<Reply> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let reply = mesh.pod(from).call(call.clone()).await?;
        if who(&reply).is_ok_and(|name| name == expected) {
            return Ok(reply);
        }
        ensure!(
            Instant::now() < deadline,
            "{from} asked {} and expected {expected}, but got {:?}",
            call.host,
            reply.outcome
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn through_the_mesh(mesh: &Mesh) -> Result<()> {
    say("Through the mesh (sidecar to sidecar):");
    for (from, address, host, expected) in [
        ("counter", MENU, "menu", "menu v1"),
        ("counter", KETTLE, "kettle", "kettle v1"),
        ("menu", KETTLE, "kettle.teashop.svc.cluster.local", "kettle v1"),
        ("kettle-v2", COUNTER, "counter.teashop", "counter v1"),
    ] {
        let reply = settle(mesh, from, &Call::get(vip(address, 80), host), expected).await?;
        say(&format!("  {from:9} → {host:32} {expected:10} {:5.1} ms", millis(&reply)));
    }
    say("");
    Ok(())
}

/// Each side of a call has proved who it is, and who cannot is not answered.
async fn who_is_who(mesh: &Mesh) -> Result<()> {
    say("Over mutual TLS, with certificates of sluiced:");
    let reply = settle(mesh, "counter", &Call::get(vip(KETTLE, 80), "kettle"), "kettle v1").await?;
    let seen = reply.outcome.map_err(anyhow::Error::msg)?.seen();
    let told = seen["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default();
    let client = told.split(';').find_map(|part| part.strip_prefix("URI=")).unwrap_or_default();
    ensure!(client == "spiffe://cluster.local/ns/teashop/sa/counter", "the kettle is told who called, but got {seen}");
    say(&format!("  the kettle is called by {client}"));
    let kettle = vip(&mesh.pod("kettle-v1").net.ip.to_string(), 8080);
    let reply = mesh.pod("stranger").call(Call::get(kettle, "kettle")).await?;
    ensure!(reply.outcome.is_err(), "plaintext is not answered, but got {:?}", reply.outcome);
    say("  a stranger that calls in plaintext is not answered\n");
    Ok(())
}

async fn through_the_gateway(mesh: &Mesh) -> Result<()> {
    say("Through the gateway (Host: tea.example.com):");
    let door = vip(&mesh.pod("front-door").net.ip.to_string(), 8080);
    for (path, expected) in [("/", "counter v1"), ("/menu", "menu v1"), ("/kettle", "kettle v1")] {
        let call = Call::get(door, "tea.example.com").path(path);
        let reply = settle(mesh, "counter", &call, expected).await?;
        say(&format!("  {path:44} {expected:10} {:5.1} ms", millis(&reply)));
    }
    let other = mesh.pod("counter").call(Call::get(door, "other.example.com")).await?;
    let status = other.outcome.as_ref().map(|answer| answer.status);
    ensure!(status == Ok(404), "a host no Gateway serves is not found, but got {status:?}");
    say("  other.example.com                            404, as it should\n");
    Ok(())
}

fn millis(reply: &Reply) -> f64 {
    Duration::from_micros(reply.elapsed_us).as_secs_f64() * 1000.0
}

/// What is measured of one edit, from just before the rename.
struct Moved {
    /// The first answer that shows the change.
    answer: Duration,
    /// The counter's Envoy has taken the routes.
    envoy: Duration,
}

/// Replaces the VirtualService by `file` and watches the counter's sidecar until `call` is answered by `expected`.
async fn edit(mesh: &Mesh, file: &str, call: &Call, expected: &str) -> Result<Moved> {
    let text = std::fs::read_to_string(sample(file)).with_context(|| format!("read {file}"))?;
    let pod = mesh.pod("counter");
    let envoy = pod.envoy.as_ref().context("the counter has an Envoy")?;
    let stat = "http.outbound_0.0.0.0_80;.rds.80.config_reload";
    let before = envoy.stat(stat).await?;
    let started = Instant::now();
    mesh.write("kettle-routes.yaml", &text)?;
    let answer = async {
        loop {
            let reply = pod.call(call.clone()).await?;
            if who(&reply)? == expected {
                return anyhow::Ok(started.elapsed());
            }
            ensure!(started.elapsed() < Duration::from_secs(10), "{file}: {expected} never answered");
        }
    };
    let taken = async {
        while envoy.stat(stat).await? == before {
            ensure!(started.elapsed() < Duration::from_secs(10), "{file}: Envoy never took new routes");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::Ok(started.elapsed())
    };
    let (answer, envoy) = tokio::try_join!(answer, taken)?;
    Ok(Moved { answer, envoy })
}

fn report(file: &str, moved: &Moved) {
    say(&format!(
        "  {file}: first changed answer after {:.1} ms; Envoy had taken the routes after {:.1} ms",
        moved.answer.as_secs_f64() * 1000.0,
        moved.envoy.as_secs_f64() * 1000.0,
    ));
}

async fn canary(mesh: &Mesh) -> Result<()> {
    say("Editing the VirtualService on disk: requests with `x-user: maya` go to kettle v2.");
    let plain = Call::get(vip(KETTLE, 80), "kettle");
    let maya = plain.clone().header("x-user", "maya");
    let moved = edit(mesh, "kettle-canary.yaml", &maya, "kettle v2").await?;
    report("kettle-canary.yaml", &moved);
    for (who_asks, call, expected) in [("maya", &maya, "kettle v2"), ("anybody else", &plain, "kettle v1")] {
        for _ in 0..10 {
            let answered = who(&mesh.pod("counter").call(call.clone()).await?)?;
            ensure!(answered == expected, "{who_asks} is answered by {expected}, but got {answered}");
        }
        say(&format!("  {who_asks:13} {expected}, ten times of ten"));
    }
    say("");
    Ok(())
}

async fn weights(mesh: &Mesh) -> Result<()> {
    say("Editing it again: 80 % to v1, 20 % to v3.");
    let call = Call::get(vip(KETTLE, 80), "kettle");
    let moved = edit(mesh, "kettle-weights.yaml", &call, "kettle v3").await?;
    report("kettle-weights.yaml", &moved);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..500 {
        *counts.entry(who(&mesh.pod("counter").call(call.clone()).await?)?).or_default() += 1;
    }
    for (name, count) in &counts {
        say(&format!("  {name:13} {count:3} of 500"));
    }
    let v3 = counts.get("kettle v3").copied().unwrap_or(0);
    ensure!(counts.len() == 2 && counts.contains_key("kettle v1"), "only v1 and v3 answer: {counts:?}");
    // Six standard deviations of 500 draws at 20 %.
    ensure!((46..=154).contains(&v3), "about 100 of 500 answers are from v3, but {v3} were");
    say("");
    Ok(())
}
