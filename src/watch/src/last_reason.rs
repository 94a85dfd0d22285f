//! What is wrong with a file that is checked at an interval.

/// The reason why the last check failed, so that a reason is reported once and not at each check.
#[derive(Debug, Default)]
pub struct LastReason(Option<String>);

impl LastReason {
    /// The check has failed. Whether the reason is to be reported: the last check did not fail for the same one.
    pub fn is_new(&mut self, reason: &str) -> bool {
        let is_new = self.0.as_deref() != Some(reason);
        if is_new {
            self.0 = Some(reason.to_owned());
        }
        is_new
    }

    /// The check has succeeded.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_reported_once_until_it_changes_or_a_check_succeeds() {
        let mut last = LastReason::default();
        let reported = ["a", "a", "b", "b", "a"].map(|reason| last.is_new(reason));
        assert_eq!(reported, [true, false, true, false, true]);
        last.clear();
        assert!(last.is_new("a"), "it fails again");
    }
}
