//! Files with kubeconfigs of remote clusters (S16).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sluice_model::{Redacted, Text};
use sluice_watch::{FollowGuard, follow_changes};
use tokio::sync::watch;
use tracing::warn;

use super::secrets::{ClusterSecret, ClusterSecrets};
use crate::kube::publish;

/// Ends of the names of files that are read.
const EXTENSIONS: [&str; 2] = ["yaml", "yml"];
/// Maximum number of directories between the root and a file.
const MAX_DEPTH: usize = 8;

/// Reads a directory, and publishes its kubeconfigs by path, now and after changes, until the guard is dropped.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn follow(root: &Path, sender: watch::Sender<ClusterSecrets>) -> io::Result<FollowGuard> {
    let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    let files = Mutex::new(KubeconfigFiles::default());
    let read = {
        let root = root.clone();
        move || {
            let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
            files.read(&root);
            publish(&sender, &files.secrets);
        }
    };
    read();
    follow_changes(&[root], is_kubeconfig, read)
}

fn is_kubeconfig(path: &Path) -> bool {
    path.extension().is_some_and(|end| EXTENSIONS.iter().any(|it| end == *it))
}

/// The last valid content of each file.
#[derive(Default)]
struct KubeconfigFiles {
    secrets: BTreeMap<Text, ClusterSecret>,
    /// Files that cannot be used, with the reason that has been logged.
    invalid: BTreeMap<Text, String>,
}

impl KubeconfigFiles {
    /// Reads all files. One that cannot be used keeps its last valid content.
    fn read(&mut self, root: &Path) {
        let mut paths = Vec::new();
        if let Err(error) = list(root, 0, &mut paths) {
            // A file may be there, so the clusters stay.
            self.report(root, &format!("cannot be listed: {error}"));
            return;
        }
        self.invalid.remove(&name(root));
        self.secrets.retain(|name, _| paths.iter().any(|path| self::name(path) == *name));
        self.invalid.retain(|name, _| paths.iter().any(|path| self::name(path) == *name));
        for path in paths {
            let content = fs::read(&path).map_err(|error| format!("cannot be read: {error}"));
            // A file is empty between its creation and the first write.
            if content.as_ref().is_ok_and(Vec::is_empty) {
                continue;
            }
            let parsed = content.and_then(|content| Ok((sluice_parse::kubeconfig_cluster(&content)?, content)));
            match parsed {
                Ok((id, content)) => {
                    let kubeconfig = content.into();
                    let kubeconfigs = [(id.into(), Some(Redacted(kubeconfig)))].into_iter().collect();
                    self.secrets.insert(name(&path), ClusterSecret { created: Text::default(), kubeconfigs });
                    self.invalid.remove(&name(&path));
                }
                Err(reason) => self.report(&path, &reason),
            }
        }
    }

    fn report(&mut self, path: &Path, reason: &str) {
        if self.invalid.insert(name(path), reason.to_owned()).as_deref() != Some(reason) {
            warn!(path = %path.display(), reason, "kubeconfig of a remote cluster is invalid, its last valid content stays");
        }
    }
}

fn name(path: &Path) -> Text {
    path.display().to_string().into()
}

/// The kubeconfigs in a directory and those below it, sorted. Hidden files are those of a volume that is replaced.
fn list(directory: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        if path.is_dir() {
            if depth < MAX_DEPTH {
                list(&path, depth + 1, paths)?;
            }
        } else if is_kubeconfig(&path) {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(cluster: &str) -> String {
        format!(
            "current-context: it\ncontexts: [{{name: it, context: {{cluster: {cluster}}}}}]\n\
             clusters: [{{name: {cluster}, cluster: {{server: https://east}}}}]\n"
        )
    }

    fn ids(files: &KubeconfigFiles) -> Vec<String> {
        files.secrets.values().flat_map(|secret| secret.kubeconfigs.keys().map(ToString::to_string)).collect()
    }

    #[test]
    fn clusters_are_named_by_their_kubeconfigs_and_invalid_files_keep_their_last_content() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).expect("written");
        std::fs::create_dir(root.path().join("more")).expect("made");
        write("a.yaml", &kubeconfig("east"));
        write("more/b.yml", &kubeconfig("west"));
        write("c.txt", &kubeconfig("other"));
        write(".d.yaml", &kubeconfig("hidden"));
        let mut files = KubeconfigFiles::default();
        files.read(root.path());
        assert_eq!(ids(&files), ["east", "west"]);
        for invalid in ["clusters: {", "", "contexts: []"] {
            write("a.yaml", invalid);
            files.read(root.path());
            assert_eq!(ids(&files), ["east", "west"], "{invalid}");
        }
        assert_eq!(files.invalid.len(), 1);
        write("a.yaml", &kubeconfig("north"));
        std::fs::remove_file(root.path().join("more/b.yml")).expect("removed");
        files.read(root.path());
        assert_eq!((ids(&files), files.invalid.len()), (vec!["north".to_owned()], 0));
        files.read(&root.path().join("none"));
        assert_eq!(ids(&files), ["north"], "the directory cannot be listed");
    }
}
