//! The process: its ids and its host.

use std::fs;
use std::net::UdpSocket;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::Topic;
use crate::memory::status_kib;

/// Any address outside. No packet is sent to it.
const OUTSIDE: &str = "192.0.2.1:9";

/// The topic of the process. `goroutines` is the number of tasks, which is what comes closest here.
#[must_use]
pub fn process() -> Topic {
    Topic::of_value("proc", "Process Info", "ids, threads and directories of the process", || {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let numbers = |name: &str| numbers(&status, name);
        let (uids, gids) = (numbers("Uid"), numbers("Gid"));
        let first = |name: &str| numbers(name).first().copied().unwrap_or_default();
        json!({
            "egid": gids.get(1), "euid": uids.get(1), "gid": gids.first(), "uid": uids.first(),
            "groups": numbers("Groups"),
            "pid": std::process::id(), "ppid": first("PPid"),
            "threads": first("Threads"),
            "goroutines": Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks()),
            "hostname": hostname(),
            "tempdir": std::env::temp_dir(),
            "wd": std::env::current_dir().unwrap_or_default(),
        })
    })
}

/// The topic of signals. None is sent from here: what ends the process is for the owner of the pod.
#[must_use]
pub fn signals() -> Topic {
    Topic::of_value("signal", "Signals", "what the process does at a signal", || {
        let row = |signal: &str, effect: &str| json!({"signal": signal, "effect": effect});
        json!([
            row("SIGTERM", "stops within --shutdownDuration; a second one stops at once"),
            row("SIGINT", "the same"),
            row("SIGKILL", "stops at once"),
        ])
    })
}

/// What `/homej/` shows.
pub(crate) fn home() -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "ProcessName": std::env::args().next().unwrap_or_default(),
        "HeapSize": status_kib("RssAnon") << 10,
        "NumGC": 0,
        "CurrentTime": u64::try_from(now.as_nanos()).unwrap_or_default(),
        "Hostname": hostname(),
        "IP": own_address(),
    })
}

fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The address with which this host reaches others; empty if it reaches none.
fn own_address() -> String {
    let address = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect(OUTSIDE)?;
        socket.local_addr()
    });
    address.map(|address| address.ip().to_string()).unwrap_or_default()
}

/// The numbers of a line of `/proc/self/status`.
fn numbers(status: &str, name: &str) -> Vec<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_line_are_read() {
        let status = "Name:\tsluiced\nUid:\t1\t2\t3\t4\nGroups:\t\n";
        assert_eq!(numbers(status, "Uid"), [1, 2, 3, 4]);
        assert!(numbers(status, "Groups").is_empty() && numbers(status, "Ui").is_empty());
    }
}
