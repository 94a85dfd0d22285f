//! Whether the memory of a second graph is available: a preview must never end the control plane.

use std::fs;

/// Part of the memory of this process, in percent, that the second graph takes at most: if the change touches all records but the
/// inputs.
const SECOND_GRAPH_PERCENT: u64 = 80;

/// A second graph would not fit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "a preview needs up to {} MiB for a copy of what it changes, and {} MiB are available: raise the memory limit of the control \
     plane, or preview offline (--pod or --node)",
    .needed >> 20,
    .available >> 20
)]
pub(crate) struct TooLittleMemory {
    needed: u64,
    available: u64,
}

/// Fails if a second graph does not fit into the limit of the container, or into the memory of the machine. Without `/proc`, nothing
/// is known and nothing is refused.
pub(super) fn check() -> Result<(), TooLittleMemory> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let Some(used) = read("/proc/self/status").and_then(|text| kilobytes(&text, "RssAnon:")) else { return Ok(()) };
    let container = read("/sys/fs/cgroup/memory.max").zip(read("/sys/fs/cgroup/memory.stat"));
    let container = container.and_then(|(max, stat)| available_in_container(&max, &stat));
    let machine = read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemAvailable:"));
    decide(used, [container, machine].into_iter().flatten().min())
}

fn decide(used: u64, available: Option<u64>) -> Result<(), TooLittleMemory> {
    let needed = used * SECOND_GRAPH_PERCENT / 100;
    match available {
        Some(available) if available < needed => Err(TooLittleMemory { needed, available }),
        _ => Ok(()),
    }
}

/// A value in kB of a text such as `/proc/meminfo`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// What is left of a limit: page cache is given back, so that only anonymous memory and that of the kernel counts.
fn available_in_container(max: &str, stat: &str) -> Option<u64> {
    let max = max.trim().parse::<u64>().ok()?;
    let of = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    Some(max.saturating_sub(of("anon ")? + of("kernel ").unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_graph_has_to_fit_into_the_limit_of_the_container() {
        let stat = "anon 314572800\nfile 900000000\nkernel 10485760\n";
        assert_eq!(available_in_container("536870912\n", stat), Some((512 - 300 - 10) << 20));
        assert_eq!(available_in_container("max\n", stat), None, "no limit");
        let error = decide(300 << 20, Some(202 << 20)).expect_err("it does not fit").to_string();
        assert!(error.contains("needs up to 240 MiB") && error.contains("202 MiB are available"), "{error}");
        assert_eq!(decide(300 << 20, Some(240 << 20)), Ok(()));
        assert_eq!(decide(300 << 20, None), Ok(()));
    }

    #[test]
    fn memory_of_the_machine_is_read() {
        let text = "MemTotal:       8000 kB\nMemAvailable:   5000 kB\n";
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(5000 << 10));
        assert_eq!(kilobytes(text, "RssAnon:"), None);
    }
}
