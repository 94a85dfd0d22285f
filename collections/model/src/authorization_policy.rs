//! AuthorizationPolicies: who may do what (P16).

use serde::Serialize;

use crate::{Attachment, Text, Timestamp};

/// What happens to a request that a rule matches.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum PolicyAction {
    /// It passes; where there is such a policy, nothing else does.
    #[default]
    Allow,
    /// It is refused.
    Deny,
    /// It is noted.
    Audit,
    /// A provider decides.
    Custom,
}

/// An AuthorizationPolicy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AuthorizationPolicy {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older comes first.
    pub created: Timestamp,
    /// What it is for.
    pub attachment: Attachment,
    /// What it does.
    pub action: PolicyAction,
    /// Name of the provider that decides, empty unless the action is `Custom`.
    pub provider: Text,
    /// It is only evaluated, for metrics and logs.
    pub dry_run: bool,
    /// Any of these matches; none match nothing.
    pub rules: Vec<AuthorizationRule>,
}

/// A rule: some source, doing some operation, under every condition.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AuthorizationRule {
    /// Sources; none is any.
    pub from: Vec<AuthorizationSource>,
    /// Operations; none is any.
    pub to: Vec<AuthorizationOperation>,
    /// Conditions, all of which hold.
    pub when: Vec<AuthorizationCondition>,
}

/// Values of which one must, and values of which none may be there.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct PolicyValues {
    /// One of them is there.
    pub any: Vec<Text>,
    /// None of them is there.
    pub none: Vec<Text>,
}

impl PolicyValues {
    /// Whether nothing is asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.none.is_empty()
    }
}

/// Who: every field holds.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AuthorizationSource {
    /// Identities, without `spiffe://`.
    pub principals: PolicyValues,
    /// Principals of tokens: `ISSUER/SUBJECT`.
    pub request_principals: PolicyValues,
    /// Namespaces of identities.
    pub namespaces: PolicyValues,
    /// Service accounts: `[NAMESPACE/]NAME`.
    pub service_accounts: PolicyValues,
    /// Trust domains of identities.
    pub trust_domains: PolicyValues,
    /// Addresses the connection comes from.
    pub ip_blocks: PolicyValues,
    /// Addresses the request comes from, as trusted proxies tell.
    pub remote_ip_blocks: PolicyValues,
}

/// What: every field holds.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AuthorizationOperation {
    /// Hosts.
    pub hosts: PolicyValues,
    /// Ports of the workload.
    pub ports: PolicyValues,
    /// HTTP methods.
    pub methods: PolicyValues,
    /// Paths.
    pub paths: PolicyValues,
}

/// A condition on one attribute.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AuthorizationCondition {
    /// The attribute, such as `request.headers[x-id]`.
    pub key: Text,
    /// Its values.
    pub values: PolicyValues,
}
