//! The state of a route, as its status and those of its parents report it (G05).

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{Kind, ObjectKey};

use super::attachment::{Attachments, NO_HOSTNAME, NOT_ALLOWED, ParentResult};
use super::listeners::ListenerKey;
use crate::statuses::StatusProblem;

/// The state of a route.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct RouteReport {
    /// The results of its references to parents.
    pub(super) results: Vec<ParentResult>,
    /// The listeners that it is attached to.
    pub(super) listeners: BTreeSet<ListenerKey>,
    /// The problem with its backends for sidecars.
    pub(super) mesh_problem: Option<StatusProblem>,
    /// The problem with its backends for routers.
    pub(super) gateway_problem: Option<StatusProblem>,
}

/// The states of the routes of each kind.
pub(super) type RouteReports<'s> = Vec<(Kind, Collection<'s, ObjectKey, RouteReport>)>;

impl RouteReport {
    /// The state of a route with these attachments.
    pub(super) fn new(
        attachments: Attachments,
        mesh_problem: Option<StatusProblem>,
        gateway_problem: Option<StatusProblem>,
    ) -> Self {
        let listeners = attachments.attached.into_iter().filter_map(|attached| attached.listener).collect();
        Self { results: attachments.results, listeners, mesh_problem, gateway_problem }
    }
}

/// Why no listener of a parent accepts a route; `None` if one does. Of several problems, it is the one of the listener that came
/// closest to accept the route, with the messages of all those with a reason of that rank.
pub(super) fn denied(results: &[&ParentResult]) -> Option<StatusProblem> {
    if results.iter().any(|result| result.denied.is_none()) {
        return None;
    }
    let rank = |problem: &StatusProblem| match problem.reason {
        NOT_ALLOWED => 0,
        NO_HOSTNAME => 1,
        _ => 2,
    };
    let problems: Vec<&StatusProblem> = results.iter().filter_map(|result| result.denied.as_ref()).collect();
    let least = problems.iter().map(|problem| rank(problem)).min()?;
    let reported = problems.into_iter().filter(|problem| rank(problem) == least);
    reported.fold(None, |joined, problem| StatusProblem::joined(joined, Some(problem.clone())))
}
