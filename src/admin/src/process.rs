//! Metrics of this process, from `/proc`.

use std::fs;

/// The process metrics that Prometheus clients define.
pub(crate) struct Process {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: f64,
    pub(crate) virtual_bytes: f64,
    pub(crate) open_files: f64,
    pub(crate) max_files: f64,
    pub(crate) threads: f64,
    /// Limit of virtual memory; -1 if there is none.
    pub(crate) max_virtual: f64,
    /// Bytes that all interfaces of the network namespace have received and sent.
    pub(crate) received_bytes: f64,
    pub(crate) sent_bytes: f64,
}

/// Reads the values; `None` without `/proc`.
pub(crate) fn read() -> Option<Process> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program can contain spaces and brackets; the fields follow its last bracket.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<f64>().ok());
    // The kernel reports CPU time in hundredths of a second on every architecture.
    let cpu_seconds = (field(14)? + field(15)?) / 100.0;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<f64>().ok()
    };
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    let (received_bytes, sent_bytes) = network_bytes(&fs::read_to_string("/proc/self/net/dev").ok()?);
    #[expect(clippy::cast_precision_loss, reason = "a number of files")]
    let open_files = fs::read_dir("/proc/self/fd").ok()?.count() as f64;
    Some(Process {
        cpu_seconds,
        resident_bytes: kilobytes("VmRSS")? * 1024.0,
        virtual_bytes: kilobytes("VmSize")? * 1024.0,
        open_files,
        max_files: limit("Max open files").unwrap_or_default(),
        threads: field(20)?,
        // The text is `unlimited` otherwise.
        max_virtual: limit("Max address space").unwrap_or(-1.0),
        received_bytes,
        sent_bytes,
    })
}

/// The sums of received and sent bytes of a text such as `/proc/net/dev`.
fn network_bytes(text: &str) -> (f64, f64) {
    let counts = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_once(':')?.1.split_whitespace().collect();
        Some((fields.first()?.parse::<f64>().ok()?, fields.get(8)?.parse::<f64>().ok()?))
    });
    counts.fold((0.0, 0.0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn values_are_plausible() {
        let process = super::read().expect("there is /proc");
        assert!(process.resident_bytes > 1e5 && process.virtual_bytes >= process.resident_bytes);
        assert!(process.open_files >= 3.0 && process.threads >= 1.0 && process.max_files >= process.open_files);
        assert!(process.max_virtual != 0.0);
    }

    #[test]
    fn bytes_of_all_interfaces_are_added() {
        let text = "Inter-|   Receive   |  Transmit\n face |bytes packets\n    lo: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n\
                    eth0:7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n";
        assert_eq!(super::network_bytes(text), (107.0, 209.0));
    }
}
