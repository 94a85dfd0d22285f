//! Readiness to serve proxies (O06, S25), by component.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The components that are not ready, and other reasons why proxies cannot be served. The process is ready if there are none.
#[derive(Debug, Default)]
pub struct Readiness(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The components, with what they wait for; `None` if they are ready.
    components: BTreeMap<&'static str, Option<&'static str>>,
    /// Reasons that are not those of one component, such as a shutdown.
    blocked: BTreeSet<Cow<'static, str>>,
}

/// Delays readiness until one component is ready: it is dropped then.
#[derive(Debug)]
pub struct ReadinessGuard {
    readiness: Arc<Readiness>,
    component: &'static str,
}

impl Drop for ReadinessGuard {
    fn drop(&mut self) {
        self.readiness.lock().components.insert(self.component, None);
    }
}

impl Readiness {
    /// Makes the process not ready until the guard is dropped. `reason` says what the component waits for.
    #[must_use]
    pub fn guard(self: &Arc<Self>, component: &'static str, reason: &'static str) -> ReadinessGuard {
        self.lock().components.insert(component, Some(reason));
        ReadinessGuard { readiness: self.clone(), component }
    }

    /// Makes the process not ready for good, for this reason, such as a shutdown.
    pub fn block(&self, reason: impl Into<Cow<'static, str>>) {
        self.lock().blocked.insert(reason.into());
    }

    /// The reasons why the process is not ready.
    #[must_use]
    pub fn pending(&self) -> Vec<Cow<'static, str>> {
        let state = self.lock();
        let components = state.components.iter().filter_map(|(component, reason)| {
            let reason = reason.as_ref()?;
            Some(format!("{component}: {reason}").into())
        });
        components.chain(state.blocked.iter().cloned()).collect()
    }

    /// Every component and reason, one a line: `[+]` before what is ready, `[-]` before what is not, as in `/readyz` of the
    /// Kubernetes API.
    #[must_use]
    pub fn list(&self) -> String {
        let state = self.lock();
        let mut text = String::new();
        for (component, reason) in &state.components {
            // Writing to a text does not fail.
            let _ = match reason {
                None => writeln!(text, "[+] {component}"),
                Some(reason) => writeln!(text, "[-] {component}: {reason}"),
            };
        }
        for reason in &state.blocked {
            let _ = writeln!(text, "[-] {reason}");
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_listed_with_what_they_wait_for() {
        let readiness = Arc::new(Readiness::default());
        let first = readiness.guard("configuration", "it is read");
        let second = readiness.guard("authority", "its root is loaded");
        drop(second);
        assert_eq!(readiness.list(), "[+] authority\n[-] configuration: it is read\n");
        assert_eq!(readiness.pending(), ["configuration: it is read"]);
        drop(first);
        assert!(readiness.pending().is_empty());
        readiness.block("shutting down");
        assert_eq!(readiness.list(), "[+] authority\n[+] configuration\n[-] shutting down\n");
    }
}
