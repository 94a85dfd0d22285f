//! The engine's operators and the order they run in: each at most once an epoch, parents before children, and only those
//! that something reached. What an epoch does not touch costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use differential_dataflow::consolidation::consolidate_updates;
use smallvec::{SmallVec, smallvec};

use crate::spines::{Delta, Time};

/// Handles the consolidated changes of one epoch, one list an input, and puts out changes for the same epoch.
pub(crate) type EpochLogic = Box<dyn FnMut(Time, &mut [Vec<Delta>], &mut Vec<Delta>)>;

/// The changes some operators put out, for others to read.
#[derive(Clone)]
pub(crate) struct Stream(SmallVec<[usize; 1]>);

impl Stream {
    /// The changes of both.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

/// Where changes from outside come in.
pub(crate) struct Inlet(usize);

/// Changes on their way into an operator.
#[derive(Default)]
struct Port {
    deltas: Vec<Delta>,
    /// Several operators write to it: what they wrote is not consolidated as a whole.
    mixed: bool,
}

struct Operator {
    logic: EpochLogic,
    ports: Vec<Port>,
    /// (operator, port of it)
    readers: Vec<(usize, usize)>,
    waiting: bool,
}

/// All operators. An operator is made after those it reads, so their order of making is one to run them in.
#[derive(Default)]
pub(crate) struct Network {
    operators: Vec<Operator>,
    ready: BinaryHeap<Reverse<usize>>,
}

impl Network {
    /// Adds an operator that sees whole epochs. What it puts out is consolidated: no change, no output.
    pub(crate) fn add(&mut self, inputs: Vec<Stream>, logic: EpochLogic) -> Stream {
        let number = self.operators.len();
        let mut ports = Vec::with_capacity(inputs.len());
        for (port, Stream(from)) in inputs.into_iter().enumerate() {
            ports.push(Port { deltas: Vec::new(), mixed: from.len() > 1 });
            for writer in from {
                self.operators[writer].readers.push((number, port));
            }
        }
        self.operators.push(Operator { logic, ports, readers: Vec::new(), waiting: false });
        Stream(smallvec![number])
    }

    /// Adds a way in for changes from outside.
    pub(crate) fn add_inlet(&mut self) -> (Inlet, Stream) {
        let stream = self.add(Vec::new(), Box::new(|_, _, _| {}));
        (Inlet(stream.0[0]), stream)
    }

    /// Takes consolidated changes from outside, at most once an epoch an inlet.
    pub(crate) fn send(&mut self, inlet: &Inlet, deltas: Vec<Delta>) {
        self.forward(inlet.0, deltas);
    }

    /// Runs what there is to run until nothing is left.
    pub(crate) fn run(&mut self, time: Time) {
        while let Some(Reverse(number)) = self.ready.pop() {
            let operator = &mut self.operators[number];
            operator.waiting = false;
            let mut inputs: SmallVec<[Vec<Delta>; 4]> = SmallVec::with_capacity(operator.ports.len());
            for port in &mut operator.ports {
                let mut deltas = std::mem::take(&mut port.deltas);
                if port.mixed {
                    consolidate_updates(&mut deltas);
                }
                inputs.push(deltas);
            }
            let mut out = Vec::new();
            (operator.logic)(time, &mut inputs, &mut out);
            consolidate_updates(&mut out);
            self.forward(number, out);
        }
    }

    fn forward(&mut self, from: usize, mut deltas: Vec<Delta>) {
        if deltas.is_empty() {
            return;
        }
        let readers = std::mem::take(&mut self.operators[from].readers);
        for (at, (reader, port)) in readers.iter().enumerate() {
            let operator = &mut self.operators[*reader];
            if !std::mem::replace(&mut operator.waiting, true) {
                self.ready.push(Reverse(*reader));
            }
            let to = &mut operator.ports[*port].deltas;
            match (to.is_empty(), at + 1 == readers.len()) {
                (true, true) => *to = std::mem::take(&mut deltas),
                (true, false) => *to = deltas.clone(),
                (false, _) => to.extend_from_slice(&deltas),
            }
        }
        self.operators[from].readers = readers;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::value::Dyn;

    fn delta(key: u32, diff: isize) -> Delta {
        ((Dyn::new(key), Dyn::new(())), 1, diff)
    }

    /// Passes everything on, and notes that it ran and how many changes it saw.
    fn noting(name: &'static str, runs: &Rc<RefCell<Vec<(&'static str, usize)>>>) -> EpochLogic {
        let runs = runs.clone();
        Box::new(move |_, inputs, out| {
            runs.borrow_mut().push((name, inputs.iter().map(Vec::len).sum()));
            inputs.iter_mut().for_each(|input| out.append(input));
        })
    }

    #[test]
    fn each_operator_reached_runs_once_after_those_it_reads() {
        let runs = Rc::default();
        let mut network = Network::default();
        let (inlet, source) = network.add_inlet();
        let (_, other) = network.add_inlet();
        let left = network.add(vec![source.clone()], noting("left", &runs));
        let idle = network.add(vec![other], noting("idle", &runs));
        let right = network.add(vec![left.clone()], noting("right", &runs));
        // As two inputs, and as one that both write to.
        network.add(vec![left.clone(), right.clone()], noting("two", &runs));
        network.add(vec![source.and(right).and(idle)], noting("one", &runs));
        network.send(&inlet, vec![delta(1, 1)]);
        network.run(1);
        assert_eq!(*runs.borrow(), [("left", 1), ("right", 1), ("two", 2), ("one", 1)]);
        runs.borrow_mut().clear();
        network.run(2);
        assert!(runs.borrow().is_empty(), "nothing is left over");
    }

    #[test]
    fn what_cancels_out_goes_no_further() {
        let runs = Rc::default();
        let mut network = Network::default();
        let (inlet, source) = network.add_inlet();
        let cancel: EpochLogic = Box::new(|_, inputs, out| {
            out.extend(
                inputs[0].drain(..).flat_map(|(row, time, diff)| [(row.clone(), time, diff), (row, time, -diff)]),
            );
        });
        let cancelled = network.add(vec![source], cancel);
        network.add(vec![cancelled], noting("reader", &runs));
        network.send(&inlet, vec![delta(1, 1), delta(2, 1)]);
        network.run(1);
        assert!(runs.borrow().is_empty());
    }
}
