//! The process of a container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::{Image, fields};
use crate::pods::network::{PROXY_UID, PodNet};

/// Lines of a log in the message of a failed test.
const LOG_TAIL: usize = 20;

/// A running container.
pub(super) struct Container {
    pub(super) environment: BTreeMap<String, String>,
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

impl Container {
    /// Starts the only container of a pod, whose volumes are below a directory.
    pub(super) fn start(
        pod: &Value,
        image: &Image,
        net: &PodNet,
        directory: &Path,
        kubeconfig: Option<&Path>,
    ) -> Result<Self> {
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        for sysctl in spec["securityContext"]["sysctls"].as_array().into_iter().flatten() {
            net.set_kernel_parameter(super::text(&sysctl["name"])?, super::text(&sysctl["value"])?)?;
        }
        let environment = fields::environment(pod, &net.ip.to_string())?;
        let working_directory = container["workingDir"].as_str().unwrap_or("/").trim_start_matches('/');
        let log = directory.join("log");
        let output = std::fs::File::create(&log).context("make the log")?;
        give(&log)?;
        let mut command: Command = net.command(PROXY_UID, &image.program);
        for argument in container["args"].as_array().into_iter().flatten() {
            command.arg(fields::expand(super::text(argument)?, &environment));
        }
        if let Some(kubeconfig) = kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        let child = command
            .current_dir(directory.join(working_directory))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(environment.iter().map(|(name, value)| (name, below(directory, container, value))))
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("share the log")?)
            .stderr(output)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("start the program")?;
        let grace = Duration::from_secs(spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30));
        Ok(Self { environment, probe: probe(container)?, child, log, grace, deadline: None })
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
