//! Tasks that run in each of some clusters.

use std::collections::BTreeMap;

use kube::Client;
use sluice_model::Text;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The running tasks of clusters, each with the client of its cluster.
#[derive(Default)]
pub struct ClusterTasks(BTreeMap<Text, RunningTasks>);

struct RunningTasks {
    /// Number of their client.
    number: u64,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl ClusterTasks {
    /// Ends the tasks of clusters that are not wanted, and of those whose client is another one.
    pub async fn end_outdated(&mut self, wanted: &BTreeMap<&Text, &(u64, Client)>) {
        let is_outdated =
            |id: &Text, running: &RunningTasks| wanted.get(id).is_none_or(|(number, _)| *number != running.number);
        let outdated: Vec<Text> =
            self.0.iter().filter(|(id, running)| is_outdated(id, running)).map(|(id, _)| id.clone()).collect();
        for id in outdated {
            if let Some(running) = self.0.remove(&id) {
                running.end().await;
            }
        }
    }

    /// Starts those of wanted clusters without any. They have to end when the token that `start` gets is cancelled, which is a
    /// child of `stop`.
    pub fn start_missing(
        &mut self,
        wanted: &BTreeMap<&Text, &(u64, Client)>,
        stop: &CancellationToken,
        start: impl Fn(&Text, &Client, &CancellationToken) -> Vec<JoinHandle<()>>,
    ) {
        for (id, (number, client)) in wanted {
            self.0.entry((*id).clone()).or_insert_with(|| {
                let stop = stop.child_token();
                let tasks = start(id, client, &stop);
                RunningTasks { number: *number, stop, tasks }
            });
        }
    }

    /// Ends all.
    pub async fn end(self) {
        for running in self.0.into_values() {
            running.end().await;
        }
    }
}

impl RunningTasks {
    async fn end(self) {
        self.stop.cancel();
        // Others can start once they have ended.
        for task in self.tasks {
            let _ = task.await;
        }
    }
}
