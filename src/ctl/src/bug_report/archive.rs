//! The archive of a report: a gzipped tar file of bounded size, in which everything is redacted.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde_json::Value;

use super::redaction::{redact_fields, redacted_text};

/// The directory in the archive that has everything, as in reports of istioctl.
const ROOT: &str = "bug-report";
/// The largest size of one file.
const MAX_FILE_BYTES: usize = 64 << 20;
/// Stands at the end of a file that is cut.
const CUT: &str = "\n[the rest is left out: the file is too large]\n";

/// An archive that is written. Its file has its name only once it is complete.
pub(super) struct Archive {
    path: PathBuf,
    partial: PathBuf,
    tar: tar::Builder<GzEncoder<File>>,
    /// What may still be added.
    free_bytes: u64,
    started: Timestamp,
    /// What is missing, and why.
    notes: Vec<String>,
    count: usize,
}

impl Archive {
    /// Creates the file. It can be read by its owner only.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn create(path: &Path, max_bytes: u64, started: Timestamp) -> io::Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // That of an earlier report keeps its mode.
        match std::fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = options.open(&partial)?;
        Ok(Self {
            path: path.to_owned(),
            partial: partial.into(),
            tar: tar::Builder::new(GzEncoder::new(file, Compression::default())),
            free_bytes: max_bytes,
            started,
            notes: Vec::new(),
            count: 0,
        })
    }

    /// Adds a text.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub(super) fn add_text(&mut self, name: &str, text: &str) -> io::Result<()> {
        let mut text = redacted_text(text);
        if text.len() > MAX_FILE_BYTES {
            text.truncate(text.floor_char_boundary(MAX_FILE_BYTES));
            text.push_str(CUT);
            self.note(name, "only its first 64 MiB are included");
        }
        self.append(name, text.as_bytes())
    }

    /// Adds a text that may be a JSON value, whose fields are then redacted by their names.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub(super) fn add_answer(&mut self, name: &str, answer: &[u8]) -> io::Result<()> {
        match serde_json::from_slice(answer) {
            Ok(value) => self.add_json(name, value),
            Err(_) => self.add_text(name, &String::from_utf8_lossy(answer)),
        }
    }

    /// Adds a JSON value.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub(super) fn add_json(&mut self, name: &str, mut value: Value) -> io::Result<()> {
        redact_fields(&mut value);
        self.add_text(name, &serde_json::to_string_pretty(&value)?)
    }

    /// Adds bytes that are redacted already.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub(super) fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        if size > self.free_bytes {
            self.note(name, "left out: the archive has the size of --max-size");
            return Ok(());
        }
        self.free_bytes -= size;
        self.count += 1;
        let mut header = tar::Header::new_gnu();
        header.set_size(size);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.started.as_second()).unwrap_or_default());
        header.set_cksum();
        self.tar.append_data(&mut header, format!("{ROOT}/{name}"), bytes)
    }

    /// Notes what is missing.
    pub(super) fn note(&mut self, subject: &str, reason: &str) {
        self.notes.push(format!("{subject}: {}", redacted_text(reason)));
    }

    /// How many files there are, and how many notes.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.count, self.notes.len())
    }

    /// Adds the summary, and gives the file its name.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub(super) fn finish(mut self, description: &str) -> io::Result<PathBuf> {
        let missing = match self.notes.is_empty() {
            true => "Nothing is missing.\n".to_owned(),
            false => format!("Missing:\n{}\n", self.notes.join("\n")),
        };
        // The summary has to be there, whatever the size of the rest.
        self.free_bytes = u64::MAX;
        self.append("summary.txt", format!("{description}\n{missing}").as_bytes())?;
        self.tar.into_inner()?.finish()?.sync_all()?;
        std::fs::rename(&self.partial, &self.path)?;
        Ok(self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use serde_json::json;

    use super::*;

    fn files(path: &Path) -> Vec<(String, String)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(path).expect("open")));
        let entries = archive.entries().expect("entries").map(|entry| {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a path").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("a text");
            (name, text)
        });
        entries.collect()
    }

    #[test]
    fn files_are_redacted_bounded_and_listed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bug-report.tar.gz");
        let mut archive = Archive::create(&path, 200, Timestamp::UNIX_EPOCH).expect("created");
        archive.add_json("a.json", json!({"password": "s3cret"})).expect("added");
        archive.add_answer("b.txt", b"no JSON").expect("added");
        archive.add_text("large.txt", &"x".repeat(300)).expect("left out");
        archive.note("pod", "not reached: Bearer 0123456789abcdef0");
        assert_eq!(archive.counts(), (2, 2));
        assert!(!path.exists(), "it is not complete");
        let path = archive.finish("A report.\n").expect("written");
        let files = files(&path);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["bug-report/a.json", "bug-report/b.txt", "bug-report/summary.txt"]);
        assert_eq!(files[0].1, "{\n  \"password\": \"[redacted]\"\n}");
        let expected = "A report.\n\nMissing:\nlarge.txt: left out: the archive has the size of --max-size\n\
                        pod: not reached: Bearer [redacted]\n";
        assert_eq!(files[2].1, expected);
    }
}
