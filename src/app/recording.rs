//! A recording in place of all sources of objects (`--replayFile`).

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use futures::future::BoxFuture;
use sluice_config::{ClusterSource, Config};
use sluice_graph::GraphOptions;
use sluice_recording::{RecordingFileError, ReplaySpeed, ServedRecording, ServedReplay};
use sluice_sources::{CurrentMesh, MeshFiles, MeshOverride};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{App, AppError, options};

/// Why a page has no mesh config.
const NO_MESH_CONFIG: &str =
    "a recording has no text of the mesh config; /debug/collections/config_maps has its parsed form";

/// The opened source of objects.
pub(super) enum OpenedSource {
    /// The clusters of the configuration, and the files with mesh config and networks.
    Clusters(Box<MeshFiles>),
    /// A recording.
    Recording {
        /// Its path.
        path: PathBuf,
        /// The recording.
        recording: Box<ServedRecording>,
    },
}

impl OpenedSource {
    /// Opens the files that the process needs from its start. With a recording, `config` has the identity of the recorded control
    /// plane afterwards.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn open(config: &mut Config) -> Result<Self, AppError> {
        let ClusterSource::Recording(path) = &config.sources.local else {
            let sources = &config.sources;
            return Ok(Self::Clusters(Box::new(MeshFiles::open(&sources.mesh_config, &sources.networks)?)));
        };
        let path = path.clone();
        let recording = match ServedRecording::open(&path) {
            Ok(recording) => Box::new(recording),
            Err(error) => return Err(AppError::Recording { path, error: Box::new(error) }),
        };
        adopt(config, &recording.header().options);
        Ok(Self::Recording { path, recording })
    }

    /// Settings of the graph.
    pub(super) fn graph_options(&self, config: &Config) -> GraphOptions {
        match self {
            Self::Clusters(_) => options::graph_options(config),
            Self::Recording { recording, .. } => recording.graph_options(),
        }
    }
}

/// Makes the process the recorded control plane, with nothing to read from elsewhere.
fn adopt(config: &mut Config, recorded: &GraphOptions) {
    let (identity, features) = (&mut config.identity, &mut config.features);
    identity.cluster = recorded.cluster.clone();
    identity.namespace = recorded.system_namespace.clone();
    identity.revision = recorded.revision.clone();
    identity.domain = recorded.domain.clone();
    features.ambient = recorded.ambient.is_some();
    features.agentgateway = recorded.gateway_api.agentgateway;
    // Its configuration is no input of the graph, so it is not recorded.
    features.inject = false;
    // The recording has the addresses.
    features.resolve_gateway_names = false;
}

impl App {
    /// Writes the state at the beginning of a recording. Returns the condition that remote clusters have been read: there are none.
    pub(super) async fn read_recording(
        &mut self,
        path: PathBuf,
        recording: ServedRecording,
    ) -> Result<BoxFuture<'static, ()>, AppError> {
        // Each is set once, because the sources start once.
        let _ = self.admin.mesh_config.set(Box::new(|| Err(NO_MESH_CONFIG.to_owned())));
        let mesh = MeshOverride::new(options::mesh_config_map(&self.config.identity), None)
            .with_environment(self.config.sources.variable);
        let _ = self.admin.current_mesh.set(CurrentMesh::from(mesh));
        self.pending.injection.take();
        let (version, started) = (recording.header().version.clone(), recording.header().started);
        let (engine, inputs) = (self.graph.engine.clone(), self.graph.handles.inputs.clone());
        let beginning = tokio::task::spawn_blocking(move || recording.begin(&engine, &inputs));
        let beginning = beginning.await.map_err(AppError::runtime("read the recording"))?;
        let replay = beginning.map_err(|error| AppError::Recording { path, error: Box::new(error) })?;
        let length = replay.length();
        info!(
            version,
            started_unix_seconds = started,
            changes = length.changes,
            seconds = length.seconds,
            "serving the state at the beginning of a recording"
        );
        self.replay = Some(replay);
        Ok(Box::pin(std::future::ready(())))
    }

    /// Starts the changes of a recording, if there is one.
    pub(super) fn replay_changes(&mut self) {
        let Some(replay) = self.replay.take() else { return };
        let replaying = replay_changes(replay, self.config.sources.replay_speed, self.tasks.stop());
        self.tasks.spawn_fallible("recording", replaying);
    }
}

/// Writes each step of a recording when it is due. The last state stays until the process stops.
async fn replay_changes(replay: ServedReplay, speed: ReplaySpeed, stop: CancellationToken) -> anyhow::Result<()> {
    let begin = Instant::now();
    let (mut replay, mut next) = blocking(replay, ServedReplay::next_step).await?;
    while let Some(step) = next {
        let due = speed.time_of(replay.seconds_until(&step));
        tokio::select! {
            () = tokio::time::sleep(due.saturating_sub(begin.elapsed())) => {}
            () = stop.cancelled() => return Ok(()),
        }
        (replay, next) = blocking(replay, move |replay| {
            let seconds = replay.seconds_until(&step);
            let writes = replay.apply(step)?;
            if writes > 0 {
                debug!(seconds, writes, "replayed a step of the recording");
            }
            replay.next_step()
        })
        .await?;
    }
    info!(changes = replay.length().changes, "the recording has ended; its last state stays");
    stop.cancelled().await;
    Ok(())
}

/// Reads or writes on a thread that may block.
async fn blocking<T: Send + 'static>(
    mut replay: ServedReplay,
    run: impl FnOnce(&mut ServedReplay) -> Result<T, RecordingFileError> + Send + 'static,
) -> anyhow::Result<(ServedReplay, T)> {
    let running = tokio::task::spawn_blocking(move || {
        let result = run(&mut replay).context("replay the recording")?;
        anyhow::Ok((replay, result))
    });
    running.await.context("replay the recording")?
}
