//! The images of containers.

use std::path::PathBuf;

/// The program of an image.
#[derive(Clone, Debug)]
pub struct Image {
    /// A part of the name of the image.
    pub name: &'static str,
    /// Its program.
    pub program: PathBuf,
    /// Whether the program reads the API of the cluster. Its last argument is then `--kubeconfig`.
    pub reads_cluster: bool,
    /// The user of its containers, if they state none.
    pub user: u32,
    /// The directory of its files. `kubectl exec` finds programs there.
    pub root: Option<PathBuf>,
}

impl Image {
    /// The value of `PATH`.
    pub(super) fn search_path(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        self.root.as_ref().map_or_else(|| path.clone(), |root| format!("{}:{path}", root.display()))
    }

    /// An argument. Programs have no root directory of their own, so the path of a file of the image is the one below its directory.
    pub(super) fn below_root(&self, argument: String) -> String {
        let Some(root) = &self.root else { return argument };
        match argument.split_once("=/") {
            Some((flag, path)) if root.join(path).exists() => format!("{flag}={}", root.join(path).display()),
            _ => argument,
        }
    }
}
