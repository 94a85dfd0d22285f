//! `manifest translate`: an installation as releases of helm.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sluice_install::{Capabilities, HelmRelease, Renderings};

use super::{Done, Streams, read};
use crate::EXIT_OK;
use crate::install_args::TranslateArgs;

const README: &str = "README.md";
const SCRIPT_MODE: u32 = 0o755;
const PRIVATE_DIRECTORY_MODE: u32 = 0o700;

/// Writes values and scripts of all releases.
pub(super) fn run(args: &TranslateArgs, streams: &mut Streams<'_>) -> Done {
    let (installation, charts) = read(&args.source, streams.errors)?;
    let capabilities = Capabilities::of_version(&args.kube_version);
    let releases = installation.helm_releases(&charts, &capabilities)?;
    let directory = directory(args.output.as_deref())?;
    for release in &releases {
        let values = values_file(release);
        write(&directory, &values, &release.values)?;
        let script = script_file(release);
        write(&directory, &script, &release.script(&values))?;
        fs::set_permissions(directory.join(script), fs::Permissions::from_mode(SCRIPT_MODE))?;
        let files = rendering_files(release);
        match &release.renderings {
            Some(Renderings { helm, installation }) => {
                write(&directory, &files[0], helm)?;
                write(&directory, &files[1], installation)?;
            }
            // Those of an earlier translation no longer apply.
            None => files.iter().try_for_each(|file| remove(&directory.join(file)))?,
        }
    }
    write(&directory, README, &readme(&releases))?;
    writeln!(streams.out, "The translation is in {}. Its {README} has the next steps.", directory.display())?;
    Ok(EXIT_OK)
}

/// The directory of the flag, or a new one that only the user can read.
fn directory(flag: Option<&Path>) -> io::Result<PathBuf> {
    let at = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if let Some(path) = flag {
        fs::create_dir_all(path).map_err(|error| at(path, error))?;
        return Ok(path.to_owned());
    }
    let path = std::env::temp_dir().join(format!("sluicectl-translate-{}", std::process::id()));
    DirBuilder::new().mode(PRIVATE_DIRECTORY_MODE).create(&path).map_err(|error| at(&path, error))?;
    Ok(path)
}

fn write(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = directory.join(name);
    fs::write(&path, text).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

// Gateways of two namespaces may have the same name.
fn stem(release: &HelmRelease) -> String {
    format!("{}.{}", release.name, release.namespace)
}

fn values_file(release: &HelmRelease) -> String {
    format!("{}-values.yaml", stem(release))
}

fn script_file(release: &HelmRelease) -> String {
    format!("install-{}.sh", stem(release))
}

/// The names of the files with what helm renders, and what the installation applies.
fn rendering_files(release: &HelmRelease) -> [String; 2] {
    ["helm", "sluicectl"].map(|by| format!("diff-{}-{by}.yaml", stem(release)))
}

fn readme(releases: &[HelmRelease]) -> String {
    let mut text = "\
# From sluicectl to helm

`sluicectl manifest translate` has written these files. It has changed nothing in a cluster. Each script changes the cluster: helm
takes over the objects of a component, and installs its release. Arguments of a script are passed on to helm. Run the scripts in this
order, with the charts of this version in `CHARTS` (`manifests/charts`, or `target/manifests/charts` with the CRDs):
"
    .to_owned();
    for release in releases {
        let title = release.component.title();
        let (values, script) = (values_file(release), script_file(release));
        text.push_str(&format!("\n- {title}, release `{}`: `{script}` with the values in `{values}`.\n", release.name));
        if release.renderings.is_some() {
            let [helm, installed] = rendering_files(release);
            text.push_str(&format!(
                "  Settings of `k8s` have no counterpart in values, and will be lost: `diff {installed} {helm}` shows them.\n"
            ));
        }
    }
    text
}
