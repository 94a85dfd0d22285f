//! Copies of the state of operators, for a second engine of the same graph.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

/// A copy of the state of an operator, for another thread. Its type is known to the same operator of another engine.
pub(crate) type OperatorStateCopy = Box<dyn Any + Send>;

/// The state of an operator, which a second engine takes over. Operators register it when they are built.
pub(crate) trait CopiedState {
    /// Copies the state. It shares its content with the copy where it can, because the dataflow thread waits for this.
    fn copy(&self) -> OperatorStateCopy;
    /// Replaces the state with that of the same operator of another engine.
    fn restore(&self, copy: OperatorStateCopy);
}

impl<S: Clone + Send + 'static> CopiedState for Rc<RefCell<S>> {
    fn copy(&self) -> OperatorStateCopy {
        Box::new(self.borrow().clone())
    }

    fn restore(&self, copy: OperatorStateCopy) {
        if let Ok(state) = copy.downcast::<S>() {
            *self.borrow_mut() = *state;
        }
    }
}
