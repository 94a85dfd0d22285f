//! A server with the objects of a case, which a test attacks while the case's first proxy is served.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::case::Case;
use super::run::{dump_first_proxy, first_panic};
use crate::ads::{Dump, Kind};
use crate::memory::MemoryWatch;
use crate::server::{Options, Sluiced};

/// A server with the objects of a case, and the resources of the case's first proxy before the attack.
pub struct CaseServer {
    /// The server.
    pub server: Sluiced,
    /// The case.
    pub case: Case,
    /// The resources that the first proxy received before the attack.
    pub before: Dump,
    /// The memory of the server since then.
    pub memory: MemoryWatch,
    log: PathBuf,
    _objects: TempDir,
}

impl CaseServer {
    /// Starts the server, and receives the resources of the first proxy.
    ///
    /// # Errors
    /// The server does not start, or the first proxy receives no clusters.
    pub async fn start(case: Case) -> Result<Self> {
        let objects = tempfile::tempdir()?;
        let (primary, _) = case.write_objects(objects.path())?;
        let log = objects.path().join("sluiced.log");
        let server = Sluiced::start(&Options { log: Some(log.clone()), ..Options::new(&primary) }).await?;
        let before = dump_first_proxy(&server, &case).await?;
        let has_clusters = before.get(&Kind::Cds).and_then(Option::as_ref).is_some_and(|clusters| !clusters.is_empty());
        ensure!(has_clusters, "the first proxy of {} receives no clusters", case.id());
        let memory = server.watch_memory()?;
        Ok(Self { server, case, before, memory, log, _objects: objects })
    }

    /// The resources that the first proxy receives now.
    ///
    /// # Errors
    /// The server rejects the stream.
    pub async fn dump(&self) -> Result<Dump> {
        dump_first_proxy(&self.server, &self.case).await
    }

    /// The server's log. The last lines may not be written yet.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).with_context(|| format!("read {}", self.log.display()))
    }

    /// The first line of the server's log that reports a panic. The last lines may not be written yet.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn first_panic(&self) -> Result<Option<String>> {
        first_panic(&self.log)
    }

    /// Stops the server and returns the first line of its log that reports a panic.
    ///
    /// # Errors
    /// The server does not stop within `limit`, or its log cannot be read.
    pub async fn stop(self, limit: Duration) -> Result<Option<String>> {
        self.server.stop(limit).await?;
        first_panic(&self.log)
    }
}
