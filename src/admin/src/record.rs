//! The page `/debug/record`: a recording of the inputs of the graph and of their changes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Response, StatusCode};
use sluice_recording::Recorder;
use tokio::sync::Semaphore;

use crate::answer::{self, Parameters};
use crate::{AdminState, answers};

/// How long a recording takes, by default and at most.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);
const MAX_DURATION: Duration = Duration::from_secs(3600);

/// Recordings in progress at a time: each holds a thread, and the records that have been replaced since its last step.
const MAX_RECORDINGS: usize = 2;
static RECORDINGS: Semaphore = Semaphore::const_new(MAX_RECORDINGS);

/// Streams a recording of `duration` as it is written.
pub(crate) async fn record_page(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let duration = match answers::duration(&parameters, "duration") {
        Ok(duration) => duration.unwrap_or(DEFAULT_DURATION),
        Err(error) => return answer::fail(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    if duration > MAX_DURATION {
        return answer::fail(StatusCode::BAD_REQUEST, "duration is longer than 1h");
    }
    let Ok(permit) = RECORDINGS.try_acquire() else {
        let reason = format!("{MAX_RECORDINGS} recordings are in progress; try again later");
        return answer::fail(StatusCode::TOO_MANY_REQUESTS, &reason);
    };
    answer::stream("application/gzip", move |sender| {
        let _permit = permit;
        let (engine, options) = (state.engine.clone(), state.graph.clone());
        let client = sender.clone();
        // gzip writes in small pieces.
        let out = io::BufWriter::with_capacity(answer::STREAM_CHUNK_BYTES, sender);
        let recorder = Recorder::start(engine, &options, out).map_err(io::Error::other)?;
        recorder.run(duration, || client.is_closed()).map_err(io::Error::other)
    })
}
