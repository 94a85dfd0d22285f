//! Installs the plugin on the node: its executable, its kubeconfig, and its entry in the configuration of the primary plugin.
//! Keeps them there when others replace them, and removes them at the end.

mod conflist;
mod kubeconfig;

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use sluice_tasks::NamedThread;
use sluice_watch::{Due, Watch};
use tracing::{error, info, warn};

use crate::plugin::{KUBECONFIG, NAME, PluginConfig};
pub(crate) use kubeconfig::KubeconfigSettings;

/// Name of the thread that installs.
const INSTALL_THREAD: &str = "install-plugin";
/// Files are checked at least this often: not every file system reports changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Pause between two checks. Another program may replace the file at once, each time.
const CHECK_PAUSE: Duration = Duration::from_millis(200);

/// Where the plugin is installed.
#[derive(Clone, Debug)]
pub(crate) struct InstallSettings {
    /// Directory of the configuration of the container runtime.
    pub(crate) net_dir: PathBuf,
    /// Directory of the executables of plugins.
    pub(crate) bin_dir: PathBuf,
    /// Directory of the agent.
    pub(crate) run_dir: PathBuf,
    /// File of the primary plugin; empty for the first one in the directory.
    pub(crate) conf_name: String,
    /// Name of a file of its own with a copy of the configuration of the primary plugin; `None` changes the file of it.
    pub(crate) owned_file: Option<String>,
    /// The plugin is an entry in a chain. Otherwise it has a file of its own, which other software adds to pods.
    pub(crate) chained: bool,
    /// Mode of files that the installation creates.
    pub(crate) mode: u32,
    /// The entry.
    pub(crate) plugin: PluginConfig,
    /// Access of the plugin to the API server.
    pub(crate) kubeconfig: KubeconfigSettings,
}

/// The installation of the plugin.
pub(crate) struct Installer {
    settings: InstallSettings,
    ready: Arc<AtomicBool>,
    installed: Mutex<InstalledFiles>,
}

/// What is on the node. Its lock is held while files are written or removed.
#[derive(Default)]
struct InstalledFiles {
    /// The executable as it was written: it is large, and is compared by this.
    executable: Option<FileIdentity>,
    /// The agent ends: nothing is written any more.
    are_removed: bool,
}

/// Inode, length and time of modification.
type FileIdentity = (u64, u64, SystemTime);

impl Installer {
    /// Nothing is installed yet. `ready` says whether everything is in place.
    pub(crate) fn new(settings: InstallSettings, ready: Arc<AtomicBool>) -> Self {
        Self { settings, ready, installed: Mutex::default() }
    }

    fn installed(&self) -> MutexGuard<'_, InstalledFiles> {
        self.installed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that installs, and repairs until the watch is stopped. It runs again after a panic.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn start(self: &Arc<Self>, mut watch: Watch) -> io::Result<NamedThread> {
        let installer = Arc::clone(self);
        NamedThread::start_restarted(INSTALL_THREAD, move || installer.run(&mut watch))
    }

    /// Installs, and repairs until the watch is stopped.
    fn run(&self, watch: &mut Watch) {
        let _unready = UnreadyAfterPanic(&self.ready);
        let directories =
            [&self.settings.net_dir, &self.settings.bin_dir, &self.settings.kubeconfig.service_account_dir];
        let mut reported = String::new();
        loop {
            // Before the check, so that no change is missed. A directory may have been replaced.
            for directory in directories {
                if let Err(error) = watch.add_directory(directory) {
                    warn!(directory = %directory.display(), %error, "cannot watch");
                }
            }
            let result = self.install();
            if self.installed().are_removed {
                return;
            }
            match result {
                Ok(()) => reported.clear(),
                Err(error) => {
                    let text = format!("{error:#}");
                    if text != reported {
                        error!(error = text, "the plugin is not installed");
                        reported = text;
                    }
                }
            }
            let mut due = watch.next(Instant::now() + CHECK_INTERVAL);
            std::thread::sleep(CHECK_PAUSE);
            // One check is for all changes, those of the installation itself included.
            while !matches!(due, Due::Stop) && watch.has_more() {
                due = watch.next(Instant::now());
            }
            if matches!(due, Due::Stop) {
                return;
            }
        }
    }

    /// Writes what is missing or differs, and sets readiness.
    fn install(&self) -> Result<()> {
        let mut installed = self.installed();
        ensure!(!installed.are_removed, "the plugin is removed, because the agent ends");
        let result = self.write_files(&mut installed);
        self.ready.store(result.is_ok(), Ordering::Relaxed);
        result
    }

    fn write_files(&self, installed: &mut InstalledFiles) -> Result<()> {
        let InstallSettings { bin_dir, run_dir, kubeconfig, mode, .. } = &self.settings;
        install_executable(&bin_dir.join(NAME), &mut installed.executable)?;
        std::fs::create_dir_all(run_dir).with_context(|| run_dir.display().to_string())?;
        let text = kubeconfig.render().context("kubeconfig of the plugin")?;
        replace(&run_dir.join(KUBECONFIG), text.as_bytes(), kubeconfig.mode)?;
        let target = self.target()?;
        let text = match &target {
            Target::Own(_) => conflist::entry(&self.settings.plugin)?,
            Target::Chain { source, .. } => {
                let before = std::fs::read_to_string(source).with_context(|| source.display().to_string())?;
                conflist::with_entry(&before, &self.settings.plugin).with_context(|| source.display().to_string())?
            }
        };
        let path = target.path();
        let mode = std::fs::metadata(path).map_or(*mode, |metadata| metadata.permissions().mode());
        replace(path, text.as_bytes(), mode)?;
        if let Target::Chain { source, path } = &target
            && source.extension().is_some_and(|extension| extension == "conf")
            && self.settings.owned_file.is_none()
        {
            // A configuration of one plugin has become a list in the file beside it.
            std::fs::remove_file(source).with_context(|| source.display().to_string())?;
            info!(from = %source.display(), to = %path.display(), "configuration of the primary plugin is a list now");
        }
        Ok(())
    }

    /// The file to write.
    fn target(&self) -> Result<Target> {
        let InstallSettings { net_dir, conf_name, owned_file, chained, .. } = &self.settings;
        if !chained {
            let name = if conf_name.is_empty() { "YYY-istio-cni.conf" } else { conf_name };
            return Ok(Target::Own(net_dir.join(name)));
        }
        let source = conflist::primary(net_dir, conf_name, owned_file.as_deref())?;
        let path = match owned_file {
            Some(name) => net_dir.join(name),
            None => source.with_extension("conflist"),
        };
        Ok(Target::Chain { source, path })
    }

    /// Removes what [`install`](Self::install) has written. A check that is in progress ends first, and later ones write
    /// nothing.
    pub(crate) fn remove(&self) {
        let mut files = self.installed();
        files.are_removed = true;
        self.ready.store(false, Ordering::Relaxed);
        let InstallSettings { net_dir, bin_dir, run_dir, owned_file, chained, .. } = &self.settings;
        let removed = match (chained, owned_file) {
            (true, None) => self.remove_entry(),
            (true, Some(name)) => remove_file(&net_dir.join(name)),
            (false, _) => self.target().and_then(|target| remove_file(target.path())),
        };
        let others = [run_dir.join(KUBECONFIG), bin_dir.join(NAME)];
        let results = std::iter::once(removed).chain(others.iter().map(|path| remove_file(path)));
        for error in results.filter_map(Result::err) {
            error!(error = format!("{error:#}"), "the plugin is not removed");
        }
        info!("the plugin is removed");
    }

    fn remove_entry(&self) -> Result<()> {
        let path = self.target()?.path().to_owned();
        let before = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mode = std::fs::metadata(&path)?.permissions().mode();
        let text = conflist::without_entry(&before).with_context(|| path.display().to_string())?;
        replace(&path, text.as_bytes(), mode)
    }
}

/// After a panic, the node is not ready until the thread runs again and has checked the files.
struct UnreadyAfterPanic<'a>(&'a AtomicBool);

impl Drop for UnreadyAfterPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(false, Ordering::Relaxed);
        }
    }
}

enum Target {
    /// A file of the plugin alone.
    Own(PathBuf),
    /// A list, made of the configuration of the primary plugin.
    Chain { source: PathBuf, path: PathBuf },
}

impl Target {
    fn path(&self) -> &Path {
        match self {
            Self::Own(path) | Self::Chain { path, .. } => path,
        }
    }
}

fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context(path.display().to_string()),
        _ => Ok(()),
    }
}

/// Copies the running program, unless the file is the one that was `installed`.
fn install_executable(target: &Path, installed: &mut Option<FileIdentity>) -> Result<()> {
    if installed.is_none() || *installed != identity(target) {
        let own = std::fs::read("/proc/self/exe").context("read the program")?;
        replace(target, &own, 0o755)?;
        *installed = identity(target);
    }
    Ok(())
}

fn identity(path: &Path) -> Option<FileIdentity> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.modified().ok()?))
}

/// Replaces a file in one step, if its content or its mode differs.
fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let context = || path.display().to_string();
    let mode = mode & 0o777;
    let same_mode = std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o777 == mode);
    if same_mode && std::fs::read(path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    // Its name begins with a dot: container runtimes and watches ignore it.
    let mut file = tempfile::Builder::new().prefix(".istio-cni-").tempfile_in(directory).with_context(context)?;
    file.write_all(content).with_context(context)?;
    file.as_file().set_permissions(Permissions::from_mode(mode)).with_context(context)?;
    file.as_file().sync_all().with_context(context)?;
    file.persist(path).with_context(context)?;
    info!(file = %path.display(), "written");
    Ok(())
}

#[cfg(test)]
mod tests;
