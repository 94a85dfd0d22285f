//! The scopes of the running log: what each one logs, and how.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::levels::{LogLevels, LogScope, SCOPES, known_scope, parse_level};

/// The state of a scope.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScopeState {
    /// Its name.
    pub name: &'static str,
    /// What its lines are about.
    pub description: &'static str,
    /// Lines of this level and more severe ones are logged.
    pub output_level: ScopeLevel,
    /// Lines of this level and more severe ones have a stack trace.
    pub stack_trace_level: ScopeLevel,
    /// Lines have the position of their code.
    pub log_callers: bool,
}

/// A change of a scope. `None` leaves a property as it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ScopeChange {
    /// See [`ScopeState::output_level`].
    pub output_level: Option<ScopeLevel>,
    /// See [`ScopeState::stack_trace_level`].
    pub stack_trace_level: Option<ScopeLevel>,
    /// See [`ScopeState::log_callers`].
    pub log_callers: Option<bool>,
}

/// A level with one of the names that `istioctl` knows: `none`, `error`, `warn`, `info`, `debug`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ScopeLevel(pub(crate) LevelFilter);

impl ScopeLevel {
    /// Its name. Level `trace` of this log is `debug` there.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0.into_level() {
            None => "none",
            Some(Level::ERROR) => "error",
            Some(Level::WARN) => "warn",
            Some(Level::INFO) => "info",
            Some(Level::DEBUG | Level::TRACE) => "debug",
        }
    }

    /// The level of this name, if it is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        parse_level(name).map(Self)
    }
}

/// A name that is not a scope of `sluiced`.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("unknown scope name: {0}")]
pub struct UnknownScope(String);

/// The scope of this name.
pub(crate) fn find(name: &str) -> Result<&'static LogScope, UnknownScope> {
    SCOPES.iter().find(|scope| scope.name == name).ok_or_else(|| UnknownScope(name.to_owned()))
}

/// What lines have in addition, by scope. Clones share it.
#[derive(Clone)]
pub(crate) struct LineDetails(Arc<RwLock<Details>>);

struct Details {
    stack_traces: LogLevels,
    callers: BTreeSet<&'static str>,
}

impl LineDetails {
    pub(crate) fn new(stack_traces: &LogLevels, callers: &[String]) -> Self {
        let callers = callers.iter().filter_map(|scope| known_scope(scope)).collect();
        Self(Arc::new(RwLock::new(Details { stack_traces: stack_traces.clone(), callers })))
    }

    pub(crate) fn stack_trace_level(&self, scope: &str) -> LevelFilter {
        self.0.read().unwrap_or_else(PoisonError::into_inner).stack_traces.of(scope)
    }

    pub(crate) fn logs_callers(&self, scope: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).callers.contains(scope)
    }

    pub(crate) fn change(&self, scope: &'static str, change: &ScopeChange) {
        let mut details = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(level) = change.stack_trace_level {
            details.stack_traces.set(scope, level.0);
        }
        match change.log_callers {
            Some(true) => drop(details.callers.insert(scope)),
            Some(false) => drop(details.callers.remove(scope)),
            None => {}
        }
    }
}
