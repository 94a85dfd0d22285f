//! Reads a recording step by step.

use std::io::{self, BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;

use crate::format::{FORMAT_VERSION, Header, Line, RecordedWrite, StepEnd};

/// Longest line in bytes: the JSON of one record.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// The reason why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read, or is not gzip.
    #[error("the recording cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A line is not one of a recording.
    #[error("line {line}: {error}")]
    Line {
        /// Its number.
        line: usize,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// The recording has another format.
    #[error("the recording has format {0}, and this version reads format {FORMAT_VERSION}")]
    Version(u32),
    /// The first line is not a header.
    #[error("the file is not a recording: {0}")]
    NoHeader(serde_json::Error),
}

/// A recording that is being read.
pub struct RecordingReader<R: Read> {
    lines: BufReader<MultiGzDecoder<R>>,
    line: usize,
    header: Header,
    is_cut: bool,
}

/// The writes of one step.
#[derive(Clone, Debug)]
pub struct RecordedStep {
    /// The writes, in the order of inputs and keys.
    pub writes: Vec<RecordedWrite>,
    /// When it ends.
    pub end: StepEnd,
}

impl<R: Read> RecordingReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// The file is not a recording of this format.
    pub fn open(file: R) -> Result<Self, ReadError> {
        let mut lines = BufReader::new(MultiGzDecoder::new(file));
        let mut text = Vec::new();
        lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut text)?;
        #[derive(serde::Deserialize)]
        struct Version {
            #[serde(rename = "sluiceRecording")]
            version: u32,
        }
        let Version { version } = serde_json::from_slice(&text).map_err(ReadError::NoHeader)?;
        if version != FORMAT_VERSION {
            return Err(ReadError::Version(version));
        }
        let header = serde_json::from_slice(&text).map_err(ReadError::NoHeader)?;
        Ok(Self { lines, line: 1, header, is_cut: false })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether the file has no end, because the recording was interrupted. It is known once all steps are read.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The next step; `None` at the end. A step that is not complete is left out.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not one of a recording.
    pub fn next_step(&mut self) -> Result<Option<RecordedStep>, ReadError> {
        let mut writes = Vec::new();
        loop {
            let mut text = Vec::new();
            match self.lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut text) {
                Ok(_) => {}
                // Without the end that gzip writes, the recording was interrupted, possibly after a whole step.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.is_cut = true;
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
            if text.last() != Some(&b'\n') {
                self.is_cut |= !writes.is_empty() || !text.is_empty();
                return Ok(None);
            }
            self.line += 1;
            match serde_json::from_slice(&text).map_err(|error| ReadError::Line { line: self.line, error })? {
                Line::Write(write) => writes.push(write),
                Line::End(end) => return Ok(Some(RecordedStep { writes, end })),
            }
        }
    }
}
