//! The configuration of the injector from mounted files (W02).

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_watch::{FollowGuard, LastReason, follow_changes};

use crate::InjectionConfiguration;
use crate::configuration::InjectionTexts;

/// The files of a directory.
const FILES: [&str; 2] = ["config", "values"];

/// Whether the directory contains a configuration. Otherwise the ConfigMap is used.
#[must_use]
pub fn has_configuration(directory: &Path) -> bool {
    directory.join(FILES[0]).exists()
}

/// Reads the directory, and follows its changes until the guard is dropped.
///
/// # Errors
/// The thread cannot be started.
pub fn follow_directory(directory: &Path, configuration: Arc<InjectionConfiguration>) -> io::Result<FollowGuard> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let mut failed = LastReason::default();
    read(&directory, &configuration, &mut failed);
    configuration.set_read();
    let files: Vec<PathBuf> = FILES.iter().map(|name| directory.join(name)).collect();
    let wanted = move |path: &Path| files.iter().any(|file| file == path);
    let watched = [directory.clone()];
    let failed = RefCell::new(failed);
    follow_changes(&watched, wanted, move || read(&directory, &configuration, &mut failed.borrow_mut()))
}

/// Reads the files. A reason why they cannot be read is reported once, because they are read again every few seconds.
fn read(directory: &Path, configuration: &InjectionConfiguration, failed: &mut LastReason) {
    let source = directory.display().to_string();
    let text = |name: &str| std::fs::read_to_string(directory.join(name)).map_err(|error| format!("{name}: {error}"));
    match (text("config"), text("values")) {
        (Ok(config), Ok(values)) => {
            failed.clear();
            configuration.set_texts(&source, InjectionTexts { config, values });
        }
        (Err(error), _) | (_, Err(error)) => {
            if failed.is_new(&error) {
                configuration.failed(&source, &error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use sluice_inject::InjectorSettings;

    use super::*;
    use crate::WebhookMetrics;

    #[test]
    fn changed_files_are_loaded() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).expect("written");
        assert!(!has_configuration(directory.path()));
        write("config", "policy: disabled");
        write("values", "{}");
        assert!(has_configuration(directory.path()));
        let configuration = InjectionConfiguration::new(InjectorSettings::default(), WebhookMetrics::default());
        let _guard = follow_directory(directory.path(), configuration.clone()).expect("a thread");
        let first = configuration.injector().expect("loaded before the thread starts");
        write("config", "policy: enabled");
        let deadline = Instant::now() + Duration::from_secs(20);
        while Arc::ptr_eq(&first, &configuration.injector().expect("one is loaded")) {
            assert!(Instant::now() < deadline, "the change is not loaded");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn files_that_cannot_be_read_are_reported_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let metrics = WebhookMetrics::default();
        let configuration = InjectionConfiguration::new(InjectorSettings::default(), metrics.clone());
        let mut failed = LastReason::default();
        let mut read = || {
            read(directory.path(), &configuration, &mut failed);
            metrics.config_errors.get()
        };
        assert_eq!([read(), read()], [1, 1]);
        std::fs::write(directory.path().join("config"), "policy: enabled").expect("written");
        assert_eq!([read(), read()], [2, 2], "another file is missing");
        std::fs::write(directory.path().join("values"), "{}").expect("written");
        assert_eq!(read(), 2);
        std::fs::remove_file(directory.path().join("config")).expect("removed");
        assert_eq!(read(), 3, "it fails again");
    }
}
