//! Panics of the tasks and threads of a server, which its debug builds inject when files in a directory ask for that
//! (`sluice_tasks::faults`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::seq::SliceRandom as _;
use tempfile::TempDir;

use super::{FaultyMesh, TERMINATION_LIMIT};
use crate::server::{Server, ServerOptions};

/// The variable of the server's environment with the directory.
const DIRECTORY: &str = "SLUICE_TEST_FAULTS";
/// Number of tasks that are restarted at the same time.
const RESTARTED_TOGETHER: usize = 10;
/// The mesh changes for this time before panics.
const CHANGE_TIME: Duration = Duration::from_millis(50);
/// Time after the start of a server in which all its tasks have started.
const START_TIME: Duration = Duration::from_secs(1);
/// Longest wait for the panic of a task, which may wait for its own restart or for that of another task.
const PANIC_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two reads of the list of tasks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Requests for panics.
pub(super) struct Panics(TempDir);

/// A task or thread that runs.
struct Task {
    /// What follows when it panics.
    reaction: String,
    panics: usize,
}

impl Panics {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir().context("make a directory for requests")?))
    }

    /// The variable of the environment of the server.
    pub(super) fn environment(&self) -> (String, OsString) {
        (DIRECTORY.to_owned(), self.0.path().into())
    }

    /// Whether the server that runs accepts requests.
    pub(super) async fn are_possible(&self) -> Result<bool> {
        tokio::time::sleep(START_TIME).await;
        Ok(!self.tasks()?.is_empty())
    }

    /// Lets each task that is restarted panic, some at the same time, while the mesh changes. Returns the longest time from a
    /// request for panics until the tasks ran again.
    pub(super) async fn restart_each_task(&self, faulty: &mut FaultyMesh<'_>) -> Result<Duration> {
        let names = self.names("TaskRestarts")?;
        ensure!(!names.is_empty(), "no task is restarted");
        let before = faulty.mesh.fleet.traffic();
        let mut longest = Duration::ZERO;
        for names in names.chunks(RESTARTED_TOGETHER) {
            faulty.change_for(CHANGE_TIME).await?;
            self.request(names)?;
            let start = Instant::now();
            for name in names {
                // It has panicked, and runs again.
                while self.tasks()?.get(name).is_none_or(|task| task.panics == 0) {
                    ensure!(start.elapsed() < PANIC_TIMEOUT, "task {name} has not panicked and been restarted in time");
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
            longest = longest.max(start.elapsed());
        }
        let ended = faulty.mesh.fleet.traffic().since(&before).ended;
        ensure!(ended == 0, "{ended} streams ended because of the panics of tasks that are restarted");
        eprintln!("{} tasks have panicked and were restarted", names.len());
        Ok(longest)
    }

    /// Lets each task and thread whose panic ends the server panic, while the mesh changes, but at most `--terminations` of
    /// them, at random. The server is started again after each. Returns the longest time from a panic until the next server had
    /// configured all proxies.
    pub(super) async fn end_by_each_task(
        &self,
        faulty: &mut FaultyMesh<'_>,
        options: &ServerOptions,
    ) -> Result<Duration> {
        let tasks = self.names("TaskEndsProcess")?;
        let threads = self.names("ThreadEnds")?;
        ensure!(!tasks.is_empty() && !threads.is_empty(), "no task or thread ends the server");
        let tasks = tasks.into_iter().map(|name| (name, false));
        let mut all: Vec<(String, bool)> = tasks.chain(threads.into_iter().map(|name| (name, true))).collect();
        all.shuffle(&mut rand::rng());
        all.truncate(faulty.arguments.terminations);
        let mut longest = Duration::ZERO;
        for (name, is_thread) in &all {
            faulty.change_for(CHANGE_TIME).await?;
            if *is_thread {
                // It panics when it starts.
                faulty.mesh.server.terminate(TERMINATION_LIMIT).await?;
            }
            self.request(std::slice::from_ref(name))?;
            let requested = Instant::now();
            if *is_thread {
                faulty.mesh.server = Server::spawn(options)?;
            }
            let failed = faulty.mesh.server.wait_for_failure(TERMINATION_LIMIT).await;
            failed.with_context(|| format!("after a panic of {name}"))?;
            faulty.mesh.server = Server::start(options).await?.0;
            faulty.reach_server().await?;
            longest = longest.max(requested.elapsed());
        }
        eprintln!("{} tasks and threads have ended the server", all.len());
        Ok(longest)
    }

    /// The names of the tasks whose panic has this reaction.
    fn names(&self, reaction: &str) -> Result<Vec<String>> {
        let tasks = self.tasks()?.into_iter();
        Ok(tasks.filter(|(_, task)| task.reaction == reaction).map(|(name, _)| name).collect())
    }

    /// The tasks that run, by name; none until the server accepts requests.
    fn tasks(&self) -> Result<BTreeMap<String, Task>> {
        let path = self.0.path().join("tasks");
        if !path.exists() {
            return Ok(BTreeMap::new());
        }
        let text = std::fs::read_to_string(path).context("read the list of tasks")?;
        let tasks = text.lines().map(|line| {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut field = || fields.next().with_context(|| format!("a task has three fields: {line}"));
            let (name, reaction, panics) = (field()?, field()?, field()?);
            Ok((name, Task { reaction, panics: panics.parse()? }))
        });
        tasks.collect()
    }

    fn request(&self, names: &[String]) -> Result<()> {
        let incomplete = self.0.path().join("panics.incomplete");
        std::fs::write(&incomplete, names.join("\n")).context("write the request for a panic")?;
        std::fs::rename(incomplete, self.0.path().join("panics")).context("send the request for a panic")
    }
}
