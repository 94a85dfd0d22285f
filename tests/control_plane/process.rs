//! The binary as a child process.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time after which a process that does not end, or logs nothing that is expected, is a failure.
pub(crate) const GUARD: Duration = Duration::from_secs(30);

/// Starts the binary with every port closed unless an argument opens it.
pub(crate) fn start<A: AsRef<str>>(arguments: &[A], environment: &[(&str, &str)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sluiced"))
        .args(["--grpcAddr=", "--httpAddr=", "--monitoringAddr=", "--secureGRPCAddr=", "--httpsAddr="])
        .arg("--ctrlz_address=")
        .args(arguments.iter().map(AsRef::as_ref))
        .env_remove("KUBERNETES_SERVICE_HOST")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

/// Sends SIGTERM to a process.
pub(crate) fn terminate(pid: u32) {
    let killed = Command::new("kill").arg(pid.to_string()).status().expect("kill runs");
    assert!(killed.success(), "the process was running");
}

/// Waits until a process ends, and kills it after a time. Returns its exit code.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let deadline = Instant::now() + limit;
    while child.try_wait().expect("the child can be waited for").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("the child can be killed");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait().expect("the child ended").code()
}

/// A running process whose log is read. It is killed when this is dropped.
pub(crate) struct LoggedProcess {
    pub(crate) child: Child,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
}

impl LoggedProcess {
    pub(crate) fn start<A: AsRef<str>>(arguments: &[A]) -> Self {
        let mut child = start(arguments, &[]);
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        let send = move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).unwrap_or(());
        Self { child, lines, reader: Some(std::thread::spawn(send)) }
    }

    /// The next line of the log. `None` if there is none in time.
    pub(crate) fn line(&self) -> Option<String> {
        self.lines.recv_timeout(GUARD).ok()
    }

    /// The exit code after SIGTERM, and the rest of the log. A process that does not end is killed and has none.
    pub(crate) fn stop(mut self) -> (Option<i32>, String) {
        terminate(self.child.id());
        let code = wait(&mut self.child, GUARD);
        self.reader.take().expect("it is not stopped yet").join().expect("no panic");
        (code, self.lines.iter().map(|line| line + "\n").collect())
    }
}

impl Drop for LoggedProcess {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
