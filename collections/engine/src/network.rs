//! The operator network: which operator runs when.
//!
//! In an epoch each operator runs at most once, after the operators it reads, and only if an update reaches it.
//! Operators that no update reaches cost nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use differential_dataflow::consolidation::consolidate_updates;
use smallvec::SmallVec;

use crate::update::{EpochLogic, Time, Update};

/// The updates of one operator, as an input of other operators.
#[derive(Clone)]
pub(crate) struct UpdateStream(usize);

/// An entry of the network for updates from outside.
pub(crate) struct NetworkInput(usize);

struct Operator {
    logic: EpochLogic,
    /// Updates that wait for each input.
    inputs: Vec<Vec<Update>>,
    /// (operator, number of its input)
    readers: Vec<(usize, usize)>,
    waiting: bool,
}

/// All operators. An operator is added after those it reads, so the order of adding is a valid order of execution.
#[derive(Default)]
pub(crate) struct OperatorNetwork {
    operators: Vec<Operator>,
    ready: BinaryHeap<Reverse<usize>>,
}

impl OperatorNetwork {
    /// Adds an operator. Its output is consolidated: updates that cancel out are dropped.
    pub(crate) fn add(&mut self, inputs: Vec<UpdateStream>, logic: EpochLogic) -> UpdateStream {
        let number = self.operators.len();
        for (input, UpdateStream(writer)) in inputs.iter().enumerate() {
            self.operators[*writer].readers.push((number, input));
        }
        let inputs = vec![Vec::new(); inputs.len()];
        self.operators.push(Operator { logic, inputs, readers: Vec::new(), waiting: false });
        UpdateStream(number)
    }

    /// Adds an entry for updates from outside.
    pub(crate) fn add_input(&mut self) -> (NetworkInput, UpdateStream) {
        let stream = self.add(Vec::new(), Box::new(|_, _, _| {}));
        (NetworkInput(stream.0), stream)
    }

    /// Takes consolidated updates from outside, at most once per epoch and entry.
    pub(crate) fn send(&mut self, entry: &NetworkInput, updates: Vec<Update>) {
        self.forward(entry.0, updates);
    }

    /// Runs every operator that an update reaches.
    pub(crate) fn run(&mut self, time: Time) {
        while let Some(Reverse(number)) = self.ready.pop() {
            let operator = &mut self.operators[number];
            operator.waiting = false;
            let mut inputs: SmallVec<[Vec<Update>; 4]> = operator.inputs.iter_mut().map(std::mem::take).collect();
            let mut out = Vec::new();
            (operator.logic)(time, &mut inputs, &mut out);
            consolidate_updates(&mut out);
            self.forward(number, out);
        }
    }

    fn forward(&mut self, from: usize, mut updates: Vec<Update>) {
        if updates.is_empty() {
            return;
        }
        let readers = std::mem::take(&mut self.operators[from].readers);
        for (at, (reader, input)) in readers.iter().enumerate() {
            let operator = &mut self.operators[*reader];
            if !std::mem::replace(&mut operator.waiting, true) {
                self.ready.push(Reverse(*reader));
            }
            // Each input has one writer, which runs once per epoch.
            debug_assert!(operator.inputs[*input].is_empty());
            operator.inputs[*input] =
                if at + 1 == readers.len() { std::mem::take(&mut updates) } else { updates.clone() };
        }
        self.operators[from].readers = readers;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::value::Erased;

    fn update(key: u32, diff: isize) -> Update {
        ((Erased::new(key), Erased::new(())), 1, diff)
    }

    /// Forwards all updates, and records that it ran and how many updates it received.
    fn recording(name: &'static str, runs: &Rc<RefCell<Vec<(&'static str, usize)>>>) -> EpochLogic {
        let runs = runs.clone();
        Box::new(move |_, inputs, out| {
            runs.borrow_mut().push((name, inputs.iter().map(Vec::len).sum()));
            inputs.iter_mut().for_each(|input| out.append(input));
        })
    }

    #[test]
    fn each_reached_operator_runs_once_after_those_it_reads() {
        let runs = Rc::default();
        let mut network = OperatorNetwork::default();
        let (entry, source) = network.add_input();
        let (_, other) = network.add_input();
        let left = network.add(vec![source.clone()], recording("left", &runs));
        let idle = network.add(vec![other], recording("idle", &runs));
        let right = network.add(vec![left.clone()], recording("right", &runs));
        network.add(vec![left, right.clone()], recording("two", &runs));
        network.add(vec![source, right, idle], recording("three", &runs));
        network.send(&entry, vec![update(1, 1)]);
        network.run(1);
        assert_eq!(*runs.borrow(), [("left", 1), ("right", 1), ("two", 2), ("three", 2)]);
        runs.borrow_mut().clear();
        network.run(2);
        assert!(runs.borrow().is_empty(), "no updates remain");
    }

    #[test]
    fn updates_that_cancel_out_are_not_forwarded() {
        let runs = Rc::default();
        let mut network = OperatorNetwork::default();
        let (entry, source) = network.add_input();
        let cancel: EpochLogic = Box::new(|_, inputs, out| {
            out.extend(
                inputs[0].drain(..).flat_map(|(row, time, diff)| [(row.clone(), time, diff), (row, time, -diff)]),
            );
        });
        let cancelled = network.add(vec![source], cancel);
        network.add(vec![cancelled], recording("reader", &runs));
        network.send(&entry, vec![update(1, 1), update(2, 1)]);
        network.run(1);
        assert!(runs.borrow().is_empty());
    }
}
