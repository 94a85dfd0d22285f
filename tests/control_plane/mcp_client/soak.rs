//! Random changes of the objects of a source, whose server is killed again and again.
//!
//! No step depends on the speed of the machine: each waits as long as it observes something new.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::server::{Options, Sluiced};

use super::changes::RandomObjects;
use super::{Downstream, mutual, restartable_upstream, secure_address, state};

/// A wait fails when it has observed nothing new for this time.
const STALL_TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two messages of a wait.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two polls of a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Rounds of a run that is no soak.
const ROUNDS: usize = 6;
/// Changes of a round.
const CHANGES: usize = 25;
/// Changes while the server does not run.
const CHANGES_WITHOUT_SERVER: usize = 10;

/// The result of a poll.
enum Poll<T> {
    Ready(T),
    /// What is observed instead. What was not observed before is progress.
    Pending(String),
}

/// Polls until there is a result.
///
/// # Errors
/// There is none, and nothing new was observed for a long time.
async fn eventually<T>(what: &str, mut poll: impl AsyncFnMut() -> Poll<T>) -> Result<T> {
    let (start, mut progressed, mut message) = (Instant::now(), Instant::now(), Instant::now());
    let mut all_observed = BTreeSet::new();
    loop {
        let observed = match poll().await {
            Poll::Ready(result) => return Ok(result),
            Poll::Pending(observed) => observed,
        };
        if all_observed.insert(observed.clone()) {
            progressed = Instant::now();
        }
        ensure!(progressed.elapsed() < STALL_TIMEOUT, "{what}: nothing new for {STALL_TIMEOUT:?}:\n{observed}");
        if message.elapsed() > MESSAGE_INTERVAL {
            message = Instant::now();
            let text: String = observed.chars().take(200).collect();
            eprintln!("waiting for {:.0} s until {what}: {text}", start.elapsed().as_secs_f64());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Pending with the text of an error, which may be a timeout of the machine.
fn or_pending<T>(result: Result<T>) -> Poll<T> {
    result.map_or_else(|error| Poll::Pending(format!("{error:#}")), Poll::Ready)
}

/// Kills a server, and waits until the reader has noticed it.
async fn kill(server: &Sluiced, reader: &Downstream) -> Result<()> {
    server.kill().await?;
    eventually("the stream has ended", async || match reader.source().await {
        Ok(source) if source["status"] == "disconnected" => Poll::Ready(()),
        Ok(source) => Poll::Pending(source["status"].to_string()),
        Err(error) => Poll::Pending(format!("{error:#}")),
    })
    .await
}

/// Starts a server again that was killed.
async fn start_again(server: &Sluiced) -> Result<()> {
    eventually("the server is ready", async || {
        let started = or_pending(server.start_again().await);
        if matches!(started, Poll::Pending(_)) {
            // It may run although it was not ready in time.
            let _ = server.kill().await;
        }
        started
    })
    .await
}

/// The state of a new server with these directories of objects.
async fn fresh_state(directories: &[&Path]) -> Result<BTreeMap<String, Value>> {
    let all = tempfile::tempdir()?;
    for (number, directory) in directories.iter().enumerate() {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().context("a name")?.to_string_lossy().into_owned();
            std::fs::copy(&path, all.path().join(format!("{number}-{name}")))?;
        }
    }
    let options = Options::new(all.path());
    let server = eventually("a new server is ready", async || or_pending(Sluiced::start(&options).await)).await?;
    // Two equal states: a stream that a busy machine serves slowly may end before it has everything.
    let mut previous = None;
    eventually("the state of a new server is complete", async || match state(&server).await {
        Ok(state) if previous.as_ref() == Some(&state) => Poll::Ready(state),
        Ok(state) => {
            let observed = format!("{state:?}");
            previous = Some(state);
            Poll::Pending(observed)
        }
        Err(error) => Poll::Pending(format!("{error:#}")),
    })
    .await
}

/// The parts of two states that differ.
fn differences(found: &BTreeMap<String, Value>, expected: &BTreeMap<String, Value>) -> Vec<String> {
    let differs = expected.iter().filter(|(name, value)| found.get(*name) != Some(value));
    differs.map(|(name, value)| format!("{name}: {:?}\n    expected {value}", found.get(name))).collect()
}

/// Waits until a server has this state.
async fn becomes(server: &Sluiced, expected: &BTreeMap<String, Value>) -> Result<()> {
    eventually("the states are equal", async || match state(server).await {
        Ok(found) if found == *expected => Poll::Ready(()),
        Ok(found) => Poll::Pending(differences(&found, expected).join("\n")),
        Err(error) => Poll::Pending(format!("{error:#}")),
    })
    .await
}

/// Six rounds, and more until the time of a soak has passed. Each third round kills the server, and each third one compares.
#[tokio::test(flavor = "multi_thread")]
async fn random_changes_arrive_exactly_although_the_server_is_killed() -> Result<()> {
    let upstream = restartable_upstream().await?;
    let files = tempfile::tempdir()?;
    let tls = mutual(&upstream, files.path()).await?;
    let sources = json!([{"address": secure_address(&upstream)?, "tlsSettings": tls}]);
    let downstream = Downstream::start(&sources, &[]).await?;
    let mut objects = RandomObjects::new(&upstream.objects(), 20_261_126);
    let soak = std::env::var("SLUICE_SOAK_SECONDS").ok().map(|text| text.parse()).transpose()?;
    let (start, soak) = (Instant::now(), Duration::from_secs(soak.unwrap_or_default()));
    let pause = Duration::from_millis(if soak.is_zero() { 4 } else { 50 });
    let (mut round, mut kills, mut comparisons, mut objects_seen) = (0, 0, 0, 0);
    while round < ROUNDS || start.elapsed() < soak {
        for _ in 0..CHANGES {
            objects.change()?;
            tokio::time::sleep(pause).await;
        }
        match round % 3 {
            1 => {
                kill(&upstream.server, &downstream).await.with_context(|| format!("round {round}"))?;
                for _ in 0..CHANGES_WITHOUT_SERVER {
                    objects.change()?;
                }
                start_again(&upstream.server).await.with_context(|| format!("round {round}"))?;
                kills += 1;
            }
            2 => {
                let expected = fresh_state(&[&upstream.objects(), &downstream.objects()]).await?;
                becomes(&downstream.server, &expected).await.with_context(|| format!("round {round}"))?;
                comparisons += 1;
                objects_seen += expected["virtual_services"].as_array().context("records")?.len();
                let seconds = start.elapsed().as_secs_f64();
                eprintln!(
                    "{seconds:.0} s: {kills} times killed, {comparisons} equal states, {objects_seen} VirtualServices"
                );
            }
            _ => {}
        }
        round += 1;
    }
    ensure!(objects_seen > 0, "there were objects");
    Ok(())
}
