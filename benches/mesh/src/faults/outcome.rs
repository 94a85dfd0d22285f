//! What a fault did, and whether that is as expected.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::TERMINATION_LIMIT;
use crate::fault_kind::FaultKind;

/// The limits of a recovery.
pub(crate) struct RecoveryLimits {
    pub(crate) recovery: Duration,
    pub(crate) growth_mib: f64,
}

/// What was observed of a fault.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct FaultOutcome {
    pub(crate) fault: String,
    pub(crate) held_seconds: f64,
    /// Messages that proxies received during the fault, if the server could know of no change.
    pub(crate) messages_during: Option<u64>,
    /// Streams that ended, if the fault ends none.
    pub(crate) ended_streams: Option<u64>,
    /// Milliseconds from the end of the fault until the last proxy had all changes; none if it never had them.
    pub(crate) recovery_ms: Option<f64>,
    /// Milliseconds from the end of the server until the next one had configured all proxies, whose waits between attempts
    /// count, or from panics of tasks until these ran again: the longest of them.
    pub(crate) restart_ms: Option<f64>,
    /// Proxies that did not receive all changes, or that a fresh server did not configure.
    pub(crate) missed: usize,
    /// Resources that were compared with those of a fresh server, and those that differ.
    pub(crate) compared: usize,
    pub(crate) different: usize,
    pub(crate) differences: Vec<String>,
    pub(crate) memory_before_mib: f64,
    pub(crate) memory_after_mib: f64,
    /// Why the fault was not injected.
    pub(crate) skipped: Option<String>,
}

impl FaultOutcome {
    pub(crate) fn skipped(fault: FaultKind, reason: String) -> Self {
        Self { fault: fault.name(), skipped: Some(reason), ..Self::default() }
    }

    /// What is not as expected.
    pub(crate) fn problems(&self, limits: &RecoveryLimits) -> Vec<String> {
        if let Some(reason) = &self.skipped {
            return vec![format!("skipped: {reason}")];
        }
        let mut problems = Vec::new();
        let mut require = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        let limit_ms = limits.recovery.as_secs_f64() * 1000.0;
        require(self.missed == 0, format!("{} proxies did not recover", self.missed));
        require(
            self.recovery_ms.is_some_and(|recovery| recovery <= limit_ms),
            format!("the recovery took longer than {} s", limits.recovery.as_secs_f64()),
        );
        let restart_limit = limits.recovery + TERMINATION_LIMIT;
        require(
            self.restart_ms.is_none_or(|restart| restart <= restart_limit.as_secs_f64() * 1000.0),
            format!("a restart took longer than {} s", restart_limit.as_secs_f64()),
        );
        require(self.messages_during.unwrap_or_default() == 0, "messages were sent during the fault".to_owned());
        require(self.ended_streams.unwrap_or_default() == 0, "streams ended".to_owned());
        require(self.different == 0, format!("{} resources differ from a fresh server's", self.different));
        let growth = self.memory_after_mib - self.memory_before_mib;
        require(growth <= limits.growth_mib, format!("memory grew by {growth:.0} MiB"));
        problems
    }

    /// A row of the table.
    pub(crate) fn line(&self, limits: &RecoveryLimits) -> String {
        if let Some(reason) = &self.skipped {
            return format!("| {} | | | | | | | | **skipped: {reason}** |", self.fault);
        }
        let seconds = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{:.2}", ms / 1000.0));
        let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let problems = self.problems(limits);
        let verdict = if problems.is_empty() { "passed".to_owned() } else { format!("**{}**", problems.join(", ")) };
        format!(
            "| {} | {:.1} | {} | {} | {} | {} | {} of {} | {:.0} → {:.0} | {verdict} |",
            self.fault,
            self.held_seconds,
            count(self.messages_during),
            count(self.ended_streams),
            seconds(self.recovery_ms),
            seconds(self.restart_ms),
            self.different,
            self.compared,
            self.memory_before_mib,
            self.memory_after_mib,
        )
    }
}

/// The table of all faults.
pub(crate) fn table(outcomes: &[FaultOutcome], limits: &RecoveryLimits) -> String {
    let mut text =
        "| fault | held s | messages during | streams ended | recovery s | restart s | differences | memory MiB | |\n\
                    |---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for outcome in outcomes {
        let _ = writeln!(text, "{}", outcome.line(limits));
    }
    for outcome in outcomes {
        for difference in &outcome.differences {
            let _ = writeln!(text, "- {}: {difference}", outcome.fault);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_checked() {
        let limits = RecoveryLimits { recovery: Duration::from_secs(5), growth_mib: 64.0 };
        let good = FaultOutcome {
            messages_during: Some(0),
            ended_streams: Some(0),
            recovery_ms: Some(4999.0),
            restart_ms: Some(19_999.0),
            compared: 1,
            memory_after_mib: 64.0,
            ..FaultOutcome::default()
        };
        assert_eq!(good.problems(&limits), Vec::<String>::new());
        let bad = [
            FaultOutcome { messages_during: Some(1), ..good.clone() },
            FaultOutcome { ended_streams: Some(1), ..good.clone() },
            FaultOutcome { recovery_ms: Some(5001.0), ..good.clone() },
            FaultOutcome { recovery_ms: None, ..good.clone() },
            FaultOutcome { restart_ms: Some(20_001.0), ..good.clone() },
            FaultOutcome { missed: 1, ..good.clone() },
            FaultOutcome { different: 1, ..good.clone() },
            FaultOutcome { memory_after_mib: 65.0, ..good.clone() },
            FaultOutcome::skipped(FaultKind::ClockJumps, "the library does not exist".to_owned()),
        ];
        for outcome in bad {
            assert_eq!(outcome.problems(&limits).len(), 1, "{outcome:?}");
        }
    }
}
