//! Records a running engine: it reads the inputs at an interval, and writes what has changed.

use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use sluice_engine::{Engine, InputRecord, InputsSnapshot};
use sluice_graph::GraphOptions;

use crate::fingerprint::FingerprintKey;
use crate::format::{FORMAT_VERSION, Header, Line, RecordedWrite, StepEnd};

/// Interval at which the inputs are read. Writes of one interval are one step.
const READ_INTERVAL: Duration = Duration::from_millis(20);
/// The output is flushed at least this often, so that a reader notices that the writer is gone.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// The reason why a recording ends early.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The reader has left.
    #[error("the recording cannot be written: {0}")]
    Write(#[from] io::Error),
    /// The engine has stopped.
    #[error("the dataflow has stopped")]
    Stopped,
    /// There is no key for private content.
    #[error("the system has no randomness for the key of the recording")]
    NoRandomness,
}

/// A recording in progress.
pub struct Recorder<W: Write> {
    engine: Engine,
    out: GzEncoder<W>,
    begin: Instant,
    last: InputsSnapshot,
    key: FingerprintKey,
}

impl<W: Write> Recorder<W> {
    /// Writes the header and all current records.
    ///
    /// # Errors
    /// The engine has stopped, the writer fails, or there is no key for private content.
    pub fn start(engine: Engine, options: &GraphOptions, out: W) -> Result<Self, RecordError> {
        let key = FingerprintKey::generate().ok_or(RecordError::NoRandomness)?;
        let last = engine.inputs().ok_or(RecordError::Stopped)?;
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let header = Header {
            sluice_recording: FORMAT_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started,
            options: options.clone(),
        };
        let writes = last.writes();
        let out = GzEncoder::new(out, Compression::fast());
        let mut recorder = Self { engine, out, begin: Instant::now(), last, key };
        recorder.line(&header)?;
        recorder.step(&writes)?;
        Ok(recorder)
    }

    /// Records for this time, or until `is_ended`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn run(mut self, duration: Duration, is_ended: impl Fn() -> bool) -> Result<(), RecordError> {
        let mut flushed = Instant::now();
        while self.begin.elapsed() < duration && !is_ended() {
            std::thread::sleep(READ_INTERVAL.min(duration.saturating_sub(self.begin.elapsed())));
            let now = self.engine.inputs().ok_or(RecordError::Stopped)?;
            let is_due = flushed.elapsed() >= FLUSH_INTERVAL;
            if now.epoch() != self.last.epoch() || is_due {
                let writes = now.writes_since(&self.last);
                self.last = now;
                if !writes.is_empty() || is_due {
                    self.step(&writes)?;
                    flushed = Instant::now();
                }
            }
        }
        // The end of the recording, with its duration.
        self.step(&[])?;
        self.out.finish()?.flush()?;
        Ok(())
    }

    fn step(&mut self, writes: &[InputRecord]) -> Result<(), RecordError> {
        for write in writes {
            let origin = write.origin();
            self.line(&Line::Write(RecordedWrite {
                input: write.collection().to_owned(),
                key: write.key_json(),
                deleted: write.is_absent(),
                value: self.key.value_json(write).unwrap_or_default(),
                source: origin.map(|origin| origin.version.to_string()).unwrap_or_default(),
                generation: origin.and_then(|origin| origin.generation),
            }))?;
        }
        let end = StepEnd { at: self.begin.elapsed().as_secs_f64(), epoch: self.last.epoch().0 };
        self.line(&Line::End(end))?;
        self.out.flush()?;
        Ok(())
    }

    fn line(&mut self, line: &impl serde::Serialize) -> Result<(), RecordError> {
        serde_json::to_writer(&mut self.out, line).map_err(io::Error::from)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }
}
