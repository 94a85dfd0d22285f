//! Turns of a target that is one function. Its input depends on the random numbers, and it returns violations.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::violation::Violation;

/// Runs turns until the deadline. A turn returns whether it reached the code under test, or a violation. A panic is a
/// violation. Targets measure the memory that their input takes. A finding is printed with its turn, which `--seed` and
/// `--turns` reproduce.
pub fn run(run: &Run, what: &str, mut turn: impl FnMut(&mut FuzzRng) -> Result<bool, Violation>) -> FuzzStatistics {
    let mut statistics = FuzzStatistics::default();
    let mut number = run.first_turn();
    while run.continues(number) {
        run.record_turn(number, what);
        let mut turn = || turn(&mut FuzzRng::new(run.seed, number));
        let result = catch_unwind(AssertUnwindSafe(&mut turn));
        statistics.turns += 1;
        match result {
            Ok(Ok(effective)) => statistics.effective += u64::from(effective),
            Ok(Err(finding)) => report(run, &mut statistics, number, &finding),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let message = text.unwrap_or_default();
                report(run, &mut statistics, number, &Violation { signature: format!("panic: {message}"), message });
            }
        }
        number += 1;
        run.progress(&statistics, number);
    }
    statistics
}

fn report(run: &Run, statistics: &mut FuzzStatistics, turn: u64, finding: &Violation) {
    if !statistics.count(&finding.signature) {
        return;
    }
    let name = format!("{}-{}-{turn}.txt", run.target, run.seed);
    let text = format!("{}\nturn {turn} of seed {}\n\n{}\n", finding.signature, run.seed, finding.message);
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&run.out)?;
        std::fs::File::create(run.out.join(&name))?.write_all(text.as_bytes())
    };
    let written = write().map_or_else(|error| error.to_string(), |()| run.out.join(&name).display().to_string());
    run.print(&format!("{} (turn {turn})\n    {}\n    {written}", finding.signature, finding.message));
}
