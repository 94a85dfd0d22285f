//! One run of a target: its bounds, its progress, its findings.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::failure;
use crate::mesh::{EpochChange, Violation};
use crate::seeds::CaseMesh;

/// Time after which a turn counts as not ending.
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
    /// When to stop.
    pub deadline: Instant,
    /// Number of turns; as many as there is time for if none.
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
    world: String,
    since: Instant,
    printed: Instant,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct FuzzStatistics {
    /// Turns made.
    pub turns: u64,
    /// Turns that changed something published: the rest was refused, or the same as before.
    pub effective: u64,
    /// The count of each finding.
    pub findings: BTreeMap<String, u64>,
}

impl FuzzStatistics {
    /// Counts a finding; true if it is the first of its kind.
    pub fn count(&mut self, signature: &str) -> bool {
        let count = self.findings.entry(signature.to_owned()).or_default();
        *count += 1;
        *count == 1
    }
}

impl Run {
    /// A run of `seconds`.
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
            now: Mutex::new(CurrentTurn { turn: 0, world: String::new(), since: now, printed: now }),
        }
    }

    pub(crate) fn first_turn(&self) -> u64 {
        self.turns.map_or(0, |(first, _)| first)
    }

    pub(crate) fn goes_on(&self, turn: u64) -> bool {
        let wanted = self.turns.is_none_or(|(first, count)| turn < first + count);
        wanted && Instant::now() < self.deadline && resident_kib() < MAX_MEMORY_KIB
    }

    /// Records the present turn in a file, for the case that the process is killed.
    pub(crate) fn note(&self, turn: u64, world: &str) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.turn = turn;
        now.since = Instant::now();
        if now.world != world {
            world.clone_into(&mut now.world);
        }
    }

    /// Watches the run from another thread, and ends the process when a turn does not end.
    pub fn watch(self: &std::sync::Arc<Self>) {
        let run = std::sync::Arc::downgrade(self);
        std::thread::spawn(move || {
            while let Some(run) = run.upgrade() {
                let now = run.now.lock().unwrap_or_else(PoisonError::into_inner);
                let (turn, world, since) = (now.turn, now.world.clone(), now.since);
                drop(now);
                if since.elapsed() > TURN_TIMEOUT + Duration::from_secs(run.minimise * 3) {
                    let line = format!("{}: turn {turn} of seed {} on {world} runs away", run.target, run.seed);
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
            let _ = writeln!(std::io::stderr(), "{line} ({})", now.world);
        }
    }

    pub(crate) fn failed(&self, turn: u64, finding: &Violation, world: &CaseMesh, change: &EpochChange, again: bool) {
        let name = format!("{}-{}-{turn}", self.target, self.seed);
        let written = failure::write(&self.out, &name, finding, world, change);
        let place = written.map_or_else(|error| format!("{error:#}"), |path| path.display().to_string());
        let again = if again { "" } else { " (not met again by itself)" };
        self.tell(&format!("{}{again}\n    {}\n    {place}", finding.signature, finding.message));
    }

    /// Prints a finding.
    pub(crate) fn tell(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{}: {text}", self.target);
    }
}

fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * 4
}
