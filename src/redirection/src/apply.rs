//! Runs `nft` and `ip` in the network namespace of the calling thread.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A failed change of rules or routes.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The program cannot be started.
    #[error("{program}: {error}")]
    Start {
        /// The program.
        program: &'static str,
        /// The reason.
        error: io::Error,
    },
    /// The program reports a failure.
    #[error("{command}: {message}")]
    Failed {
        /// The command line.
        command: String,
        /// What the program wrote to standard error.
        message: String,
    },
}

impl ApplyError {
    fn has_message(&self, texts: &[&str]) -> bool {
        match self {
            Self::Start { .. } => false,
            Self::Failed { message, .. } => texts.iter().any(|text| message.contains(text)),
        }
    }
}

/// Runs commands of nftables as one transaction.
///
/// # Errors
/// `nft` is missing or rejects the commands. Nothing has changed then.
pub fn nft(commands: &str) -> Result<(), ApplyError> {
    run("nft", &["-f", "-"], commands).map(drop)
}

/// Removes a table, if it exists.
///
/// # Errors
/// `nft` fails.
pub fn remove_table(table: &str) -> Result<(), ApplyError> {
    nft(&crate::ruleset::removal(table))
}

/// Whether a table exists.
///
/// # Errors
/// `nft` fails.
pub fn has_table(table: &str) -> Result<bool, ApplyError> {
    let tables = run("nft", &["list", "tables"], "")?;
    let tables = String::from_utf8_lossy(&tables.stdout);
    Ok(tables.lines().any(|line| line.rsplit(' ').next() == Some(table)))
}

/// Packets with a mark are routed to the loopback interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MarkRoute {
    pub(crate) mark: u32,
    pub(crate) mask: Option<u32>,
    pub(crate) preference: Option<u32>,
    pub(crate) table: u32,
}

impl MarkRoute {
    /// Adds the rule and its route; what exists stays.
    pub(crate) fn add(self, ipv6: bool) -> Result<(), ApplyError> {
        for family in self.families(ipv6) {
            let (rule, route) = (self.rule("add"), self.route("replace"));
            match ip(family, &rule) {
                Err(error) if !error.has_message(&["File exists"]) => return Err(error),
                _ => {}
            }
            ip(family, &route)?;
        }
        Ok(())
    }

    /// Removes both from both families, if they exist.
    pub(crate) fn remove(self) -> Result<(), ApplyError> {
        const ABSENT: [&str; 4] = ["No such file", "No such process", "not supported", "does not exist"];
        for family in self.families(Path::new("/proc/sys/net/ipv6").exists()) {
            for arguments in [self.rule("del"), self.route("del")] {
                match ip(family, &arguments) {
                    Err(error) if !error.has_message(&ABSENT) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// `-4`, and `-6` unless the loopback interface has no IPv6, as in pods of IPv4 clusters.
    fn families(self, ipv6: bool) -> impl Iterator<Item = &'static str> {
        let disabled = std::fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6");
        let has_ipv6 = ipv6 && disabled.is_ok_and(|value| value.trim() == "0");
        ["-4", "-6"].into_iter().filter(move |family| *family == "-4" || has_ipv6)
    }

    fn rule(self, action: &str) -> String {
        let mask = self.mask.map(|mask| format!("/{mask:#x}")).unwrap_or_default();
        let preference = self.preference.map(|preference| format!(" pref {preference}")).unwrap_or_default();
        format!("rule {action} fwmark {:#x}{mask}{preference} lookup {}", self.mark, self.table)
    }

    fn route(self, action: &str) -> String {
        format!("route {action} local default dev lo table {}", self.table)
    }
}

fn ip(family: &str, arguments: &str) -> Result<Output, ApplyError> {
    let arguments: Vec<_> = std::iter::once(family).chain(arguments.split(' ')).collect();
    run("ip", &arguments, "")
}

/// A chain of iptables and the jump to it: table, built-in chain, chain.
pub(crate) type IptablesChain = (&'static str, &'static str, &'static str);

/// Removes chains of iptables, if they exist, and the program does.
pub(crate) fn remove_iptables(chains: &[IptablesChain]) {
    for (program, list) in [("iptables-nft", "ip"), ("ip6tables-nft", "ip6")] {
        // Listing by `nft` shows whether there is anything to remove, without loading modules of the kernel.
        let tables = run("nft", &["list", "tables"], "").map(|output| output.stdout).unwrap_or_default();
        let tables = String::from_utf8_lossy(&tables).into_owned();
        let present = |table: &str| tables.lines().any(|line| line == format!("table {list} {table}"));
        for (table, built_in, chain) in chains.iter().filter(|(table, ..)| present(table)) {
            for arguments in [["-D", built_in, "-j", chain].as_slice(), &["-F", chain], &["-X", chain]] {
                // Fails if another version did not create the chain.
                let _ = run(program, &[["-w", "-t", table].as_slice(), arguments].concat(), "");
            }
        }
    }
}

fn run(program: &'static str, arguments: &[&str], input: &str) -> Result<Output, ApplyError> {
    let start = |error| ApplyError::Start { program, error };
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early reports why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(start)?;
    if output.status.success() {
        return Ok(output);
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ApplyError::Failed { command: format!("{program} {}", arguments.join(" ")), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_and_route_have_the_arguments_of_ip() {
        let route = MarkRoute { mark: 0x111, mask: Some(0xfff), preference: Some(32764), table: 100 };
        assert_eq!(route.rule("add"), "rule add fwmark 0x111/0xfff pref 32764 lookup 100");
        assert_eq!(route.route("replace"), "route replace local default dev lo table 100");
        let plain = MarkRoute { mark: 1337, mask: None, preference: None, table: 133 };
        assert_eq!(plain.rule("del"), "rule del fwmark 0x539 lookup 133");
    }

    #[test]
    fn missing_program_is_named() {
        let error = run("no-such-program", &[], "").expect_err("missing").to_string();
        assert!(error.starts_with("no-such-program: No such file"), "{error}");
    }
}
