//! The process of a container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::{Image, fields};
use crate::pods::network::{PROXY_UID, PodNet};

/// Lines of a log in the message of a failed test.
const LOG_TAIL: usize = 20;

/// Namespace and name of a pod, and name of a container.
pub(super) type ContainerKey = (String, String, String);

/// A running container.
pub(super) struct Container {
    pub(super) name: String,
    pub(super) environment: BTreeMap<String, String>,
    /// What precedes a command that runs in it.
    pub(super) entry: Vec<String>,
    /// Port and path of its readiness probe.
    pub(super) probe: Option<(u16, String)>,
    child: Child,
    log: PathBuf,
    grace: Duration,
    /// When it is killed.
    deadline: Option<Instant>,
}

impl Drop for Container {
    /// The processes that it has started end with it.
    fn drop(&mut self) {
        if let Ok(id) = self.id() {
            let _ = killpg(id, Signal::SIGKILL);
        }
    }
}

/// The pod of containers.
#[derive(Clone, Copy)]
pub(super) struct PodContext<'p> {
    pub(super) pod: &'p Value,
    pub(super) net: &'p PodNet,
    /// The directory of its volumes.
    pub(super) directory: &'p Path,
}

impl Container {
    /// Starts a container of a pod.
    pub(super) fn start(
        context: PodContext<'_>,
        container: &Value,
        image: &Image,
        kubeconfig: Option<&Path>,
    ) -> Result<Self> {
        let PodContext { pod, net, directory } = context;
        let name = super::text(&container["name"])?.to_owned();
        let environment = fields::environment(pod, container, &net.ip.to_string())?;
        let working_directory = container["workingDir"].as_str().unwrap_or("/").trim_start_matches('/');
        let log = directory.join(format!("log-{name}"));
        let output = std::fs::File::create(&log).context("make the log")?;
        give(&log)?;
        let settings = [&container["securityContext"], &pod["spec"]["securityContext"]];
        let user = settings.into_iter().find_map(|it| it["runAsUser"].as_u64()).map(u32::try_from).transpose();
        let user = user.context("runAsUser is the id of a user")?.unwrap_or(image.user);
        let mut variables = vec![("PATH".to_owned(), image.search_path())];
        variables.extend(environment.iter().map(|(name, value)| (name.clone(), below(directory, container, value))));
        let assigned = variables.iter().map(|(name, value)| format!("{name}={value}"));
        let entry =
            net.entry(user, None).into_iter().chain(["env".to_owned(), "-i".to_owned()]).chain(assigned).collect();
        let mut words = net.entry(user, Some(super::key(pod)?.1));
        words.push(image.program.display().to_string());
        let (first, others) = words.split_first().context("a command has a program")?;
        let mut command = Command::new(first);
        command.args(others);
        for argument in container["args"].as_array().into_iter().flatten() {
            command.arg(image.below_root(fields::expand(super::text(argument)?, &environment)));
        }
        if let Some(kubeconfig) = kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        let child = command
            .current_dir(directory.join(working_directory))
            .env_clear()
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("share the log")?)
            .stderr(output)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("start the program")?;
        let grace = Duration::from_secs(pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30));
        Ok(Self { name, environment, entry, probe: probe(container)?, child, log, grace, deadline: None })
    }

    /// Waits until an init container has succeeded.
    pub(super) async fn succeed(mut self) -> Result<()> {
        let status = self.child.wait().await.context("wait for the end")?;
        ensure!(status.success(), "it ends with {status}: {}", self.log());
        Ok(())
    }

    fn id(&self) -> Result<Pid> {
        let id = self.child.id().context("the container runs")?;
        Ok(Pid::from_raw(i32::try_from(id).context("a process id")?))
    }

    /// Begins its grace period.
    pub(super) fn terminate(&mut self) -> Result<()> {
        self.deadline = Some(Instant::now() + self.grace);
        kill(self.id()?, Signal::SIGTERM).context("signal the container")
    }

    /// Its exit code, once it has ended. It is killed after its grace period.
    pub(super) fn end(&mut self) -> Result<Option<Option<i32>>> {
        let end = self.child.try_wait().context("read the exit status")?;
        if end.is_none() && self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            killpg(self.id()?, Signal::SIGKILL).context("kill the container")?;
        }
        Ok(end.map(|status| status.code()))
    }

    pub(super) fn log_file(&self) -> &Path {
        &self.log
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(super) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n")
    }
}

/// The value of a variable. Programs have no root directory of their own, so a path of a volume is the one below the directory of
/// the pod.
fn below(directory: &Path, container: &Value, value: &str) -> String {
    let mut mounts = container["volumeMounts"].as_array().into_iter().flatten();
    match mounts.any(|mount| mount["mountPath"].as_str().is_some_and(|path| Path::new(value).starts_with(path))) {
        true => directory.join(value.trim_start_matches('/')).display().to_string(),
        false => value.to_owned(),
    }
}

fn probe(container: &Value) -> Result<Option<(u16, String)>> {
    let probe = &container["readinessProbe"];
    if probe.is_null() {
        return Ok(None);
    }
    let get = &probe["httpGet"];
    let port = get["port"].as_u64().and_then(|port| u16::try_from(port).ok());
    let (Some(port), Some(path)) = (port, get["path"].as_str()) else {
        bail!("readinessProbe: only httpGet with a port number is supported: {probe}")
    };
    Ok(Some((port, path.to_owned())))
}

/// Gives a file to the user of containers.
pub(super) fn give(path: &Path) -> Result<()> {
    std::os::unix::fs::chown(path, Some(PROXY_UID), Some(PROXY_UID))
        .with_context(|| format!("change the owner of {}", path.display()))
}
