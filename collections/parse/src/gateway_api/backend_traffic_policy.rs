//! Experimental XBackendTrafficPolicies (G06).

use sluice_model::Object;
use sluice_model::gateway_api::{BackendTrafficPolicy, RetryConstraint};

use super::backend_tls_policy::targets;
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    if fields.has("sessionPersistence") {
        fields.warn("sessionPersistence", "not supported; it is ignored");
    }
    let policy = BackendTrafficPolicy {
        meta: item.meta(findings),
        targets: targets(&fields),
        has_session_persistence: fields.has("sessionPersistence"),
        status: item.status(),
        retry_constraint: fields.read("retryConstraint", |constraint| {
            let budget = constraint.object("budget");
            RetryConstraint {
                percent: Some(budget.as_ref().and_then(|budget| budget.opt_integer("percent")).unwrap_or(20)),
                interval: budget.as_ref().and_then(|budget| budget.opt_duration("interval")),
                minimum: constraint.object("minRetryRate").and_then(|rate| {
                    rate.opt_duration("interval");
                    rate.opt_integer("count")
                }),
            }
        }),
    };
    drop(fields);
    (!findings.has_errors()).then(|| Object::XBackendTrafficPolicy(Box::new(policy)))
}
