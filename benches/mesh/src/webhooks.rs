//! Admission reviews at a rate, alone and while changes are pushed.

use std::cell::Cell;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{FuturesUnordered, StreamExt as _};
use http::{Method, Request, header};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Serialize;
use serde_json::{Value, json};
use sluice_tasks::DedicatedRuntime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::arguments::{Driver, MeasureOptions, WebhookArguments};
use crate::change::ChangeKind;
use crate::measured_mesh::{MeasuredMesh, Setup};
use crate::process::Process;
use crate::result::Machine;
use crate::server::SERVER_NAME;
use crate::shape::Shape;
use crate::statistics::percentile;

/// Reviews before those that are measured: connections are opened, and caches are filled.
const WARM_UP: Duration = Duration::from_secs(1);
/// The highest priority of a thread.
const HIGHEST_PRIORITY: i32 = -20;

/// A webhook.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Webhook {
    Inject,
    Validate,
}

/// The measurement of a webhook.
#[derive(Clone, Debug, Serialize)]
struct WebhookRow {
    webhook: Webhook,
    reviews: usize,
    /// Latencies from the moment at which a review is due until its response is read, in milliseconds.
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// Changes that were pushed to all proxies meanwhile.
    pushed: usize,
    server_cpu_seconds: f64,
}

/// The result of the command.
#[derive(Clone, Debug, Serialize)]
struct WebhookResult {
    machine: Machine,
    shape: Shape,
    proxies: usize,
    rate: u32,
    rows: Vec<WebhookRow>,
}

/// Measures both webhooks, each alone and while changes are pushed. Returns whether all latencies are within the limit.
pub(crate) async fn run(arguments: &WebhookArguments) -> Result<bool> {
    let setup = Setup::started(arguments.started.shape.shape()?, arguments.proxies, &arguments.started.sluiced);
    // With a directory, the authority of the server is in a file.
    let measure = MeasureOptions { driver: Driver::Directory, ..arguments.started.measure.clone() };
    let mut mesh = MeasuredMesh::open(&Setup { webhooks: true, ..setup }, &measure).await?;
    let options = mesh.server_options.as_ref().context("the server was started here")?;
    let threads = client_threads()?;
    // The client gets its threads where it is made.
    let connecting = connect(mesh.server.webhooks()?.to_string(), options.root_certificate());
    let client = threads.handle().spawn(connecting).await.context("the client has panicked")??;
    let process = mesh.server.process.clone().context("the server's process is known")?;
    let load = Load { client, process, rate: arguments.rate, duration: arguments.duration, threads };
    let mut rows = Vec::new();
    let mut round = 0;
    for webhook in [Webhook::Inject, Webhook::Validate] {
        load.run(webhook, WARM_UP).await?;
        rows.push(load.measure(webhook).await?);
        let finished = Cell::new(false);
        let pushing = async {
            let first = round;
            while !finished.get() {
                round += 1;
                mesh.brief_round(ChangeKind::VirtualService, round).await?;
            }
            anyhow::Ok(round - first)
        };
        let measuring = async {
            let measured = load.measure(webhook).await;
            finished.set(true);
            measured
        };
        let (row, pushed) = tokio::try_join!(measuring, pushing)?;
        rows.push(WebhookRow { pushed, ..row });
    }
    let result = WebhookResult {
        machine: Machine::this(),
        shape: mesh.objects.shape,
        proxies: mesh.group.len(),
        rate: arguments.rate,
        rows,
    };
    if let Some(path) = &arguments.started.json {
        let json = serde_json::to_vec_pretty(&result)?;
        std::fs::write(path, json).with_context(|| format!("write {}", path.display()))?;
    }
    println!("{}", table(&result, arguments.limit));
    mesh.fleet.disconnect().await;
    Ok(result.rows.iter().all(|row| row.p99_ms <= arguments.limit))
}

/// A client that trusts the root of the server.
async fn connect(address: String, root: PathBuf) -> Result<Client> {
    let kubeconfig: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{"name": "webhooks", "cluster": {
            "server": format!("https://{address}"), "certificate-authority": root, "tls-server-name": SERVER_NAME,
        }}],
        "contexts": [{"name": "webhooks", "context": {"cluster": "webhooks"}}],
        "current-context": "webhooks",
    }))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.context("read the root of the server")?).context("make a client of the webhooks")
}

/// Threads of the highest priority: the client does not wait for a CPU, as if it ran on another machine.
fn client_threads() -> Result<DedicatedRuntime> {
    DedicatedRuntime::new("reviews", raise_priority).context("start the threads of the client")
}

/// Gives the calling thread the highest priority. If that is not permitted, the measured latencies are higher, never lower.
fn raise_priority() {
    let _ = rustix::process::nice(HIGHEST_PRIORITY);
}

/// The moments at which reviews are due, each sent when it has come. The runtime's timers are late by up to 2 ms, a thread is not.
fn moments(rate: u32, duration: Duration) -> Result<UnboundedReceiver<Instant>> {
    let period = Duration::from_secs(1) / rate.max(1);
    let (sender, moments) = unbounded_channel();
    let start = Instant::now();
    let clock = move || {
        raise_priority();
        let due = (0..).map(|number| period * number).take_while(|offset| *offset < duration);
        for moment in due.map(|offset| start + offset) {
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            if sender.send(moment).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("review clock".to_owned()).spawn(clock).context("start the clock of the client")?;
    Ok(moments)
}

/// Reviews at a rate.
struct Load {
    client: Client,
    process: Process,
    rate: u32,
    duration: Duration,
    threads: DedicatedRuntime,
}

impl Load {
    async fn measure(&self, webhook: Webhook) -> Result<WebhookRow> {
        let before = self.process.cpu()?;
        let latencies = self.run(webhook, self.duration).await?;
        let server_cpu_seconds = self.process.cpu()? - before;
        let at = |share| percentile(&latencies, share);
        let (p50_ms, p90_ms, p99_ms, max_ms) = (at(0.5), at(0.9), at(0.99), at(1.0));
        let reviews = latencies.len();
        Ok(WebhookRow { webhook, reviews, p50_ms, p90_ms, p99_ms, max_ms, pushed: 0, server_cpu_seconds })
    }

    /// Sends reviews for a time. Returns the latencies in milliseconds, sorted.
    async fn run(&self, webhook: Webhook, duration: Duration) -> Result<Vec<f64>> {
        let reviews = latencies(self.client.clone(), webhook, self.rate, duration);
        self.threads.handle().spawn(reviews).await.context("the client has panicked")?
    }
}

/// Sends reviews for a time, each when it is due, whether or not earlier ones are answered. Returns the latencies in
/// milliseconds, sorted.
async fn latencies(client: Client, webhook: Webhook, rate: u32, duration: Duration) -> Result<Vec<f64>> {
    let mut moments = moments(rate, duration)?;
    let (mut pending, mut latencies) = (FuturesUnordered::new(), Vec::new());
    for number in 0.. {
        let due = loop {
            tokio::select! {
                due = moments.recv() => break due,
                Some(latency) = pending.next() => latencies.push(latency?),
            }
        };
        let Some(due) = due else { break };
        pending.push(review(&client, webhook, number, due));
    }
    while let Some(latency) = pending.next().await {
        latencies.push(latency?);
    }
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

/// Sends one review. Returns the milliseconds since it was due.
async fn review(client: &Client, webhook: Webhook, number: u128, due: Instant) -> Result<f64> {
    let (path, object) = match webhook {
        Webhook::Inject => ("/inject", pod(number)),
        Webhook::Validate => ("/validate", virtual_service(number)),
    };
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": number.to_string(), "operation": "CREATE", "namespace": "ns-0", "object": object},
    });
    let request = Request::builder().method(Method::POST).uri(path).header(header::CONTENT_TYPE, "application/json");
    let answer: Value = client.request(request.body(review.to_string().into_bytes())?).await?;
    let latency = due.elapsed().as_secs_f64() * 1000.0;
    let response = &answer["response"];
    let is_expected = response["allowed"] == true && response["patch"].is_string() == (webhook == Webhook::Inject);
    ensure!(is_expected, "unexpected response: {response}");
    Ok(latency)
}

/// A pod with two containers and probes.
fn pod(number: u128) -> Value {
    let container = |name: &str, port: u16| {
        json!({
            "name": name, "image": format!("example.com/{name}:1"),
            "ports": [{"containerPort": port}],
            "env": [{"name": "NUMBER", "value": number.to_string()}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": port}},
            "livenessProbe": {"tcpSocket": {"port": port}},
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "cart-", "labels": {"app": "cart", "version": "v1"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-5f7c", "uid": "u", "controller": true}],
        },
        "spec": {"serviceAccountName": "cart", "containers": [container("cart", 8080), container("cache", 6379)]},
    })
}

/// A VirtualService with ten routes.
fn virtual_service(number: u128) -> Value {
    let routes: Vec<Value> = (0..10)
        .map(|route| {
            json!({
                "match": [{"uri": {"prefix": format!("/{route}")}, "headers": {"user": {"regex": "a[0-9]+"}}}],
                "route": [
                    {"destination": {"host": "cart", "subset": "v1"}, "weight": 90},
                    {"destination": {"host": "cart", "subset": "v2"}, "weight": 10},
                ],
                "timeout": "5s", "retries": {"attempts": 3, "perTryTimeout": "1s"},
            })
        })
        .collect();
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": {"namespace": "ns-0", "name": format!("cart-{number}")},
        "spec": {"hosts": ["cart"], "http": routes},
    })
}

fn table(result: &WebhookResult, limit: f64) -> String {
    let mut text = format!(
        "{}, {} proxies, {} reviews/s; p99 limit {limit} ms\n\n\
         | webhook | changes pushed | reviews | p50 ms | p90 ms | p99 ms | max ms | server CPU s | |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        result.shape, result.proxies, result.rate
    );
    for row in &result.rows {
        let webhook = format!("{:?}", row.webhook).to_lowercase();
        let WebhookRow { reviews, p50_ms, p90_ms, p99_ms, max_ms, pushed, server_cpu_seconds, .. } = row;
        let verdict = if *p99_ms <= limit { "passed" } else { "**failed**" };
        text += &format!(
            "| {webhook} | {pushed} | {reviews} | {p50_ms:.2} | {p90_ms:.2} | {p99_ms:.2} | {max_ms:.1} | \
             {server_cpu_seconds:.2} | {verdict} |\n"
        );
    }
    text
}
