//! Mutated xDS requests to a real server.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use sluice_proto::json::decode;
use sluice_testkit::ads::{AdsStream, Dump, Identity, Kind, Protocol, connect};
use sluice_testkit::parity::case::{Case, root};
use sluice_testkit::parity::case_server::CaseServer;
use sluice_testkit::server::Sluiced;

use crate::memory::grow_anywhere;
use crate::minimise::shrink;
use crate::mutate::mutate;
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::Seeds;
use crate::violation::Violation;

/// Number of streams between two checks of the server.
const ROUND: usize = 40;
/// Largest growth of the server's resident memory at its peak, in KiB.
const MAX_GROWTH_KIB: u64 = 300 * 1024;
/// Size of a node in which one place has grown.
const GROWN_NODE_BYTES: usize = 400 << 10;
/// The case that the server serves.
const CASE: &str = "virtualservice/01-user-header-canary";

/// One stream: its identity and its steps, as data, so that it can be replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSession {
    /// Whether it uses the delta protocol.
    pub delta: bool,
    /// The requests in JSON, and the answers to responses between them.
    pub steps: Vec<Step>,
}

/// A step of a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Sends a request.
    Send(Value),
    /// Acknowledges the next response, if there is one.
    Ack,
    /// Rejects the next response.
    Nack,
    /// Does not answer the next response.
    Ignore,
}

/// Mutates requests until the deadline.
///
/// # Errors
/// The test itself fails.
pub fn run(run: &Run, seeds: &Seeds) -> Result<FuzzStatistics> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let case = Case::read(&root().join(CASE))?;
        let nodes: Vec<Value> = seeds.cases.iter().flat_map(|case| case.nodes.clone()).collect();
        let mut statistics = FuzzStatistics::default();
        let mut turn = run.first_turn();
        let mut target = CaseServer::start(case.clone()).await?;
        while run.continues(turn) {
            let mut round = Vec::new();
            while round.len() < ROUND && run.continues(turn) {
                run.record_turn(turn, CASE);
                let session = session(&nodes, seeds, &mut FuzzRng::new(run.seed, turn));
                play(&target.server, &session).await;
                round.push(session);
                turn += 1;
                statistics.turns += 1;
            }
            if let Err(finding) = check(&target).await {
                if statistics.count(&finding.signature) {
                    let small = minimise(&case, round, &finding, Duration::from_secs(run.minimise)).await?;
                    write(run, turn, &finding, &small)?;
                }
                target = CaseServer::start(case.clone()).await?;
            }
            run.progress(&statistics, turn);
        }
        Ok(statistics)
    })
}

/// Checks that nothing has panicked, and that the server is ready, uses bounded memory, and serves the proxy as before.
async fn check(target: &CaseServer) -> Result<(), Violation> {
    let finding = |signature: &str, message: String| Violation { signature: signature.to_owned(), message };
    let panic = target.first_panic().map_err(|error| finding("the log cannot be read", format!("{error:#}")))?;
    if let Some(line) = panic {
        return Err(finding("the server panicked", line));
    }
    let started = Instant::now();
    let mut differing = Vec::new();
    // On a busy machine, a response may arrive after the client's timeout.
    for _ in 0..3 {
        let after = target.dump().await;
        let after = after.map_err(|error| finding("a proxy is no longer served", format!("{error:#}")))?;
        let differs = |kind: &&Kind| after.get(*kind) != target.before.get(*kind);
        differing = target
            .before
            .keys()
            .filter(differs)
            .map(|kind| describe_difference(*kind, &target.before, &after))
            .collect();
        if differing.is_empty() {
            break;
        }
    }
    if !differing.is_empty() {
        return Err(finding("a proxy receives other resources than before", differing.join("; ")));
    }
    if started.elapsed() > Duration::from_secs(20) {
        return Err(finding("a proxy waits too long", format!("{:?}", started.elapsed())));
    }
    let ready = target.server.get("/ready").await.map_or(0, |(status, _)| status);
    if ready != 200 {
        return Err(finding("the server is not ready", ready.to_string()));
    }
    let growth = target.memory.growth_kib();
    let growth = growth.map_err(|error| finding("the memory of the server cannot be read", format!("{error:#}")))?;
    if growth > MAX_GROWTH_KIB {
        return Err(finding("the memory of the server grows", format!("{growth} KiB")));
    }
    Ok(())
}

/// A short description of how the resources of a type differ.
fn describe_difference(kind: Kind, before: &Dump, after: &Dump) -> String {
    let count = |dump: &Dump| dump.get(&kind).map(|resources| resources.as_ref().map(Vec::len));
    format!("{}: {:?} and now {:?}", kind.name(), count(before), count(after))
}

/// Plays a session. The server may end it.
async fn play(server: &Sluiced, session: &RequestSession) {
    let protocol = if session.delta { Protocol::Delta } else { Protocol::Sotw };
    let Ok(channel) = connect(server.grpc).await else { return };
    let Ok(mut stream) = AdsStream::open(channel, protocol, Identity::default()) else { return };
    for step in &session.steps {
        let sent = match step {
            Step::Send(request) if session.delta => match decode::<DeltaDiscoveryRequest>(request) {
                Ok(request) => stream.send_delta(request.message),
                Err(_) => continue,
            },
            Step::Send(request) => match decode::<DiscoveryRequest>(request) {
                Ok(request) => stream.send_sotw(request.message),
                Err(_) => continue,
            },
            answer => match stream.next_within(Duration::from_millis(20)).await {
                Ok(Some(update)) if *answer == Step::Ack => stream.ack(&update),
                Ok(Some(update)) if *answer == Step::Nack => stream.nack(&update, "no"),
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            },
        };
        if sent.is_err() {
            return;
        }
    }
}

fn session(nodes: &[Value], seeds: &Seeds, rng: &mut FuzzRng) -> RequestSession {
    let delta = rng.once_in(2);
    let mut node = rng.choose(nodes).cloned().unwrap_or_default();
    if rng.once_in(2) {
        let times = 1 + rng.below(4);
        mutate(&mut node, "", seeds, rng, times);
    }
    if rng.once_in(8) {
        node = grow_anywhere(&node, GROWN_NODE_BYTES, rng);
    }
    let mut steps = Vec::new();
    for n in 0..=rng.below(14) {
        match rng.below(4) {
            0 if n > 0 => steps.push(Step::Ack),
            1 if n > 0 => {
                let answers = [Step::Nack, Step::Ignore];
                steps.push(answers[rng.below(2)].clone());
            }
            _ => {
                let mut request = request(delta, seeds, rng);
                if n == 0 || rng.once_in(10) {
                    request["node"] = node.clone();
                }
                if rng.once_in(3) {
                    let times = 1 + rng.below(3);
                    mutate(&mut request, "", seeds, rng, times);
                }
                steps.push(Step::Send(request));
            }
        }
    }
    RequestSession { delta, steps }
}

fn request(delta: bool, seeds: &Seeds, rng: &mut FuzzRng) -> Value {
    let url = match rng.below(12) {
        0 => "type.googleapis.com/none".to_owned(),
        1 => String::new(),
        _ => rng.choose(&Kind::ALL).map(|kind| kind.type_url().to_owned()).unwrap_or_default(),
    };
    let names = names(seeds, rng);
    let nonce = ["", "1", "x", "0000000000000000"][rng.below(4)];
    if delta {
        let held: BTreeMap<&String, &str> = names.iter().map(|name| (name, "0")).collect();
        let mut request = json!({ "typeUrl": url, "responseNonce": nonce });
        let part = ["resourceNamesSubscribe", "resourceNamesUnsubscribe"][rng.below(2)];
        request[part] = json!(names);
        if rng.once_in(3) {
            request["initialResourceVersions"] = json!(held);
        }
        request
    } else {
        json!({ "typeUrl": url, "resourceNames": names, "responseNonce": nonce, "versionInfo": nonce })
    }
}

fn names(seeds: &Seeds, rng: &mut FuzzRng) -> Vec<String> {
    let hosts = seeds.values.get("host").map(Vec::as_slice).unwrap_or_default();
    let times = if rng.once_in(20) { 3000 } else { rng.below(4) };
    let name = |n: usize, rng: &mut FuzzRng| {
        let host = rng.choose(hosts).and_then(Value::as_str).unwrap_or("x").to_owned();
        match rng.below(6) {
            0 => "*".to_owned(),
            1 => format!("outbound|{}||{host}", rng.below(70_000)),
            2 => format!("{host}:80"),
            3 => rng.below(70_000).to_string(),
            4 => {
                let most = if rng.once_in(50) { 5000 } else { 4 };
                "é\u{202e}|||".repeat(rng.below(most))
            }
            _ => format!("{host}{n}"),
        }
    };
    (0..times).map(|n| name(n, rng)).collect()
}

/// The sessions that are needed for the finding, as far as the time limit allows.
async fn minimise(
    case: &Case,
    mut round: Vec<RequestSession>,
    finding: &Violation,
    limit: Duration,
) -> Result<Vec<RequestSession>> {
    let deadline = Instant::now() + limit;
    let handle = tokio::runtime::Handle::current();
    let (case, signature) = (case.clone(), finding.signature.clone());
    // The minimisation is the same as for objects, which is not asynchronous.
    tokio::task::spawn_blocking(move || {
        shrink(&mut round, |rest| {
            let reproduced = async {
                let target = CaseServer::start(case.clone()).await?;
                for session in rest {
                    play(&target.server, session).await;
                }
                anyhow::Ok(check(&target).await.is_err_and(|found| found.signature == signature))
            };
            Instant::now() < deadline && handle.block_on(reproduced).unwrap_or_default()
        });
        round
    })
    .await
    .context("minimise the sessions")
}

fn write(run: &Run, turn: u64, finding: &Violation, sessions: &[RequestSession]) -> Result<()> {
    std::fs::create_dir_all(&run.out)?;
    let path: &Path = &run.out.join(format!("xds-{}-{turn}.yaml", run.seed));
    let mut text = format!("# {}\n# {}\n", finding.signature, finding.message);
    for session in sessions {
        let steps: Vec<Value> = session
            .steps
            .iter()
            .map(|step| match step {
                Step::Send(request) => json!({ "send": request }),
                other => json!(format!("{other:?}")),
            })
            .collect();
        text += &format!("---\n{}\n", json!({ "delta": session.delta, "steps": steps }));
    }
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    run.print(&format!("{}\n    {}\n    {}", finding.signature, finding.message, path.display()));
    Ok(())
}
