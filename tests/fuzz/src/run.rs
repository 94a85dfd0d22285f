//! A run of a target: its limits, its progress, its findings.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::failure;
use crate::mesh::EpochChange;
use crate::seeds::CaseMesh;
use crate::violation::Violation;

/// Timeout of a turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(120);
/// Resident memory at which a run stops, in KiB.
const MAX_MEMORY_KIB: u64 = 4 << 20;

/// Settings of a run.
#[derive(Debug)]
pub struct Run {
    /// Name of the target.
    pub target: &'static str,
    /// Seed of all random choices.
    pub seed: u64,
    /// End of the run.
    pub deadline: Instant,
    /// The first turn and the number of turns; none runs until the deadline.
    pub turns: Option<(u64, u64)>,
    /// Longest time to minimise a failure, in seconds.
    pub minimise: u64,
    /// Directory for failures.
    pub out: PathBuf,
    /// Whether progress is printed.
    pub verbose: bool,
    now: Mutex<CurrentTurn>,
}

#[derive(Debug)]
struct CurrentTurn {
    turn: u64,
    case: String,
    since: Instant,
    printed: Instant,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct FuzzStatistics {
    /// Turns made.
    pub turns: u64,
    /// Turns that changed the published state. The others were rejected, or had no effect.
    pub effective: u64,
    /// The count of each finding.
    pub findings: BTreeMap<String, u64>,
}

impl FuzzStatistics {
    /// Counts a finding. Returns whether it is the first of its kind.
    pub fn count(&mut self, signature: &str) -> bool {
        let count = self.findings.entry(signature.to_owned()).or_default();
        *count += 1;
        *count == 1
    }
}

impl Run {
    /// A run of that many seconds.
    #[must_use]
    pub fn new(target: &'static str, seed: u64, seconds: u64, out: PathBuf) -> Self {
        let now = Instant::now();
        Self {
            target,
            seed,
            deadline: now + Duration::from_secs(seconds),
            turns: None,
            minimise: 45,
            out,
            verbose: false,
            now: Mutex::new(CurrentTurn { turn: 0, case: String::new(), since: now, printed: now }),
        }
    }

    pub(crate) fn first_turn(&self) -> u64 {
        self.turns.map_or(0, |(first, _)| first)
    }

    pub(crate) fn continues(&self, turn: u64) -> bool {
        let is_in_range = self.turns.is_none_or(|(first, count)| turn < first + count);
        let kib = resident_kib();
        if kib >= MAX_MEMORY_KIB {
            let line =
                format!("{}: stopped before turn {turn}: {kib} KiB of memory, limit {MAX_MEMORY_KIB}", self.target);
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        is_in_range && Instant::now() < self.deadline && kib < MAX_MEMORY_KIB
    }

    /// Records the present turn and its case, for the messages of `watch` and `progress`.
    pub(crate) fn record_turn(&self, turn: u64, case: &str) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.turn = turn;
        now.since = Instant::now();
        if now.case != case {
            case.clone_into(&mut now.case);
        }
    }

    /// Starts a thread that ends the process if a turn exceeds its timeout.
    pub fn watch(self: &std::sync::Arc<Self>) {
        let run = std::sync::Arc::downgrade(self);
        std::thread::spawn(move || {
            while let Some(run) = run.upgrade() {
                let now = run.now.lock().unwrap_or_else(PoisonError::into_inner);
                let (turn, case, since) = (now.turn, now.case.clone(), now.since);
                drop(now);
                if since.elapsed() > TURN_TIMEOUT + Duration::from_secs(run.minimise * 3) {
                    let line =
                        format!("{}: turn {turn} of seed {} on {case} exceeds its timeout", run.target, run.seed);
                    let _ = writeln!(std::io::stderr(), "{line}");
                    std::process::exit(1);
                }
                drop(run);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
    }

    pub(crate) fn progress(&self, statistics: &FuzzStatistics, turn: u64) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if self.verbose && now.printed.elapsed() > Duration::from_secs(10) {
            now.printed = Instant::now();
            let (findings, kib) = (statistics.findings.len(), resident_kib());
            let line = format!(
                "{}: turn {turn}, {} made, {} effective, {findings} findings, {kib} KiB",
                self.target, statistics.turns, statistics.effective
            );
            let _ = writeln!(std::io::stderr(), "{line} ({})", now.case);
        }
    }

    pub(crate) fn failed(
        &self,
        turn: u64,
        finding: &Violation,
        case: &CaseMesh,
        change: &EpochChange,
        reproduced: bool,
    ) {
        let name = format!("{}-{}-{turn}", self.target, self.seed);
        let written = failure::write(&self.out, &name, finding, case, change);
        let place = written.map_or_else(|error| format!("{error:#}"), |path| path.display().to_string());
        let reproduced = if reproduced { "" } else { " (not reproduced by this turn alone)" };
        self.print(&format!("{}{reproduced}\n    {}\n    {place}", finding.signature, finding.message));
    }

    /// Prints a finding.
    pub(crate) fn print(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{}: {text}", self.target);
    }
}

fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * 4
}
