//! Random epochs: whatever happened before, the published state is that of a fresh graph with the same inputs.
//!
//! A turn is an epoch: a few changes of objects, proxies and other inputs. A number of turns share a mesh, which begins
//! without objects. At intervals everything that is published is compared with a graph that gets the present inputs at
//! once, in another order, and with the sum of the changes that the feed delivered. A difference is reduced to the epochs
//! and changes that it needs.

mod change_generator;
mod history;
mod input_change;
mod remote_cluster;
mod replica;
mod sequence;

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::Seeds;
use crate::violation::Violation;
use change_generator::ChangeGenerator;
use history::{GraphVariant, MeshHistory};

pub use input_change::InputChange;
pub use sequence::EpochSequence;

/// Number of epochs of one mesh.
const EPOCHS_PER_MESH: u64 = 240;
/// A comparison follows one in this number of epochs.
const COMPARISON_INTERVAL: usize = 40;

/// Applies random epochs until the deadline.
///
/// # Errors
/// A failure cannot be written.
pub fn run(run: &Run, seeds: &Seeds) -> Result<FuzzStatistics> {
    let mut statistics = FuzzStatistics::default();
    // A turn depends on the turns before it with the same mesh.
    let mut turn = run.first_turn() / EPOCHS_PER_MESH * EPOCHS_PER_MESH;
    while run.continues(turn) {
        let mut rng = FuzzRng::new(run.seed, u64::MAX - turn / EPOCHS_PER_MESH);
        let variant = GraphVariant::choose(&mut rng);
        let Some(mut generator) = ChangeGenerator::new(seeds, variant, &mut rng) else { break };
        let mut history = MeshHistory::start(variant);
        let mut sequence = EpochSequence { variant, epochs: Vec::new() };
        let end = turn + EPOCHS_PER_MESH;
        while turn < end && run.continues(turn) {
            run.record_turn(turn, generator.case());
            let mut rng = FuzzRng::new(run.seed, turn);
            let epoch = generator.epoch(&mut rng);
            let mut finding = history.apply(&epoch).err();
            sequence.epochs.push(epoch);
            turn += 1;
            if finding.is_none() && (rng.once_in(COMPARISON_INTERVAL) || turn == end) {
                finding = history.compare(&mut rng).err();
            }
            statistics.turns += 1;
            statistics.effective += u64::from(history.has_changed());
            if let Some(finding) = finding {
                report(run, &mut statistics, turn - 1, &finding, sequence)?;
                turn = end;
                break;
            }
            run.progress(&statistics, turn);
        }
    }
    Ok(statistics)
}

fn report(
    run: &Run,
    statistics: &mut FuzzStatistics,
    turn: u64,
    finding: &Violation,
    sequence: EpochSequence,
) -> Result<()> {
    if !statistics.count(&finding.signature) {
        return Ok(());
    }
    let deadline = Instant::now() + Duration::from_secs(run.minimise);
    let small = sequence.minimise(finding, deadline);
    let path = run.out.join(format!("{}-{}-{turn}.yaml", run.target, run.seed));
    let text = small.write(finding);
    std::fs::create_dir_all(&run.out)?;
    std::fs::write(&path, &text)?;
    run.print(&format!("{} (turn {turn})\n    {}\n    {}\n{text}", finding.signature, finding.message, path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_testkit::parity::case::root;

    use super::*;

    #[test]
    fn networks_with_a_remote_cluster_give_the_state_of_a_fresh_graph() {
        const EPOCHS: u64 = 120;
        let seeds = Seeds::read(&root()).expect("the cases");
        for mesh in 0..2 {
            let mut rng = FuzzRng::new(7, mesh);
            let variant = GraphVariant::Networks;
            let mut generator = ChangeGenerator::new(&seeds, variant, &mut rng).expect("a case");
            let mut history = MeshHistory::start(variant);
            let mut has_gateway = false;
            for turn in 0..EPOCHS {
                let epoch = generator.epoch(&mut rng);
                history.apply(&epoch).unwrap_or_else(|finding| panic!("{}: {finding:?}\n{epoch:#?}", generator.case()));
                has_gateway |= remote_cluster::has_gateway(&epoch);
                if turn % 30 == 29 {
                    history.compare(&mut rng).unwrap_or_else(|finding| panic!("{}: {finding:?}", generator.case()));
                }
            }
            assert!(has_gateway, "no Gateway of the remote cluster was written");
        }
    }
}
