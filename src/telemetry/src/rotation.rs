//! A log file that is renamed when it is full.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// The time in the name of a renamed file.
const TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.6f";

/// A log file, and which renamed ones are kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogRotation {
    /// The file.
    pub path: PathBuf,
    /// Size at which it is full.
    pub max_bytes: u64,
    /// Age at which a renamed file is deleted.
    pub max_age: Option<Duration>,
    /// Number of renamed files that are kept.
    pub max_backups: Option<usize>,
}

/// The open file.
pub(crate) struct RotatedFile {
    rotation: LogRotation,
    file: File,
    bytes: u64,
}

/// Opens a log file for lines at its end. Its directory is created if it does not exist.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

impl RotatedFile {
    pub(crate) fn open(rotation: LogRotation) -> io::Result<Self> {
        let file = open(&rotation.path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { rotation, file, bytes })
    }

    /// Renames the file, and begins a new one.
    fn rotate(&mut self) -> io::Result<()> {
        let now = Timestamp::now();
        match fs::rename(&self.rotation.path, self.backup(now)) {
            // It was renamed before, and the new file could not be opened.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.file = open(&self.rotation.path)?;
        self.bytes = 0;
        // Files that cannot be deleted are tried again with the next rotation.
        let _ = self.delete_old(now);
        Ok(())
    }

    /// The parts of the name before and after the time.
    fn name_parts(&self) -> (String, String) {
        let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let extension = part(self.rotation.path.extension());
        let suffix = if extension.is_empty() { String::new() } else { format!(".{extension}") };
        (format!("{}-", part(self.rotation.path.file_stem())), suffix)
    }

    fn backup(&self, time: Timestamp) -> PathBuf {
        let (prefix, suffix) = self.name_parts();
        self.rotation.path.with_file_name(format!("{prefix}{}{suffix}", time.strftime(TIME_FORMAT)))
    }

    /// The renamed files, the latest first.
    fn backups(&self) -> io::Result<Vec<(Timestamp, PathBuf)>> {
        let (prefix, suffix) = self.name_parts();
        let directory = self.rotation.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let mut backups = Vec::new();
        for entry in fs::read_dir(directory.unwrap_or(Path::new(".")))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let time = name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(&suffix));
            let time = time.and_then(|time| DateTime::strptime(TIME_FORMAT, time).ok());
            if let Some(time) = time.and_then(|time| TimeZone::UTC.to_timestamp(time).ok()) {
                backups.push((time, path));
            }
        }
        backups.sort_by(|a, b| b.cmp(a));
        Ok(backups)
    }

    fn delete_old(&self, now: Timestamp) -> io::Result<()> {
        let max_age = self.rotation.max_age.map(|age| SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX));
        for (index, (time, path)) in self.backups()?.into_iter().enumerate() {
            let is_surplus = self.rotation.max_backups.is_some_and(|count| index >= count);
            if is_surplus || max_age.is_some_and(|age| now.duration_since(time) > age) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// The length of the lines that fit, if one does.
fn fitting(bytes: &[u8], free: u64) -> Option<usize> {
    let free = usize::try_from(free).unwrap_or(usize::MAX);
    if bytes.len() <= free {
        return Some(bytes.len());
    }
    bytes[..free].iter().rposition(|byte| *byte == b'\n').map(|end| end + 1)
}

impl Write for RotatedFile {
    /// Writes the lines that fit into the file, or one line if none does.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut length = fitting(bytes, self.rotation.max_bytes.saturating_sub(self.bytes));
        // A file that cannot be renamed grows.
        if length.is_none() && self.bytes > 0 && self.rotate().is_ok() {
            length = fitting(bytes, self.rotation.max_bytes);
        }
        let first_line = || bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        let written = self.file.write(&bytes[..length.unwrap_or_else(first_line)])?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_file_is_renamed_and_old_ones_are_deleted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("logs/sluiced.log");
        let aged = directory.path().join("logs/sluiced-2020-01-01T00-00-00.000000.log");
        let other = directory.path().join("logs/sluiced-notes.log");
        let rotation = LogRotation {
            path: path.clone(),
            max_bytes: 10,
            max_age: Some(Duration::from_secs(3600)),
            max_backups: Some(2),
        };
        let mut file = RotatedFile::open(rotation.clone()).expect("opened");
        for file in [&aged, &other] {
            fs::write(file, "").expect("written");
        }
        file.write_all(b"one\ntwo\nthree\na line that is longer than a file\nfour\n").expect("written");
        file.write_all(b"five\n").expect("written");
        let backups = file.backups().expect("listed");
        let contents: Vec<_> = backups.iter().map(|(_, path)| fs::read_to_string(path).expect("read")).collect();
        assert_eq!(contents, ["a line that is longer than a file\n", "three\n"], "the first is one too many");
        assert_eq!(fs::read_to_string(&path).expect("read"), "four\nfive\n");
        assert!(!aged.exists() && other.exists());

        // The file was renamed, and no new one could be opened: the next rotation opens it.
        fs::rename(&path, directory.path().join("logs/sluiced-2100-01-01T00-00-00.000000.log")).expect("renamed");
        file.write_all(b"six\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("it is opened again"), "six\n");
        file.write_all(b"7\n").expect("written");

        // A restart continues the file.
        drop(file);
        let mut file = RotatedFile::open(rotation).expect("opened");
        file.write_all(b"eight\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "eight\n");
        let backups: Vec<_> = file.backups().expect("listed").into_iter().map(|(_, path)| path).collect();
        let contents: Vec<_> = backups.iter().map(|path| fs::read_to_string(path).expect("read")).collect();
        assert_eq!(contents, ["four\nfive\n", "six\n7\n"]);
    }
}
