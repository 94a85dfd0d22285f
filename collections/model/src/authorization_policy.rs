//! AuthorizationPolicies (P16).

use serde::{Deserialize, Serialize};

use crate::{Attachment, StoredStatus, Text, Timestamp};

/// Action for a request that a rule matches.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum PolicyAction {
    /// It is allowed; if such a policy applies to a workload, other requests are denied.
    #[default]
    Allow,
    /// It is denied.
    Deny,
    /// It is audited.
    Audit,
    /// An extension provider decides.
    Custom,
    /// The action cannot be read, and may be any of these: what a rule matches is denied, and nothing is allowed.
    Unreadable,
}

/// An AuthorizationPolicy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct AuthorizationPolicy {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older comes first.
    pub created: Timestamp,
    /// Its target.
    pub attachment: Attachment,
    /// Its action.
    pub action: PolicyAction,
    /// Name of the provider that decides, empty unless the action is `Custom`.
    pub provider: Text,
    /// Dry run: it is evaluated for metrics and logs, and not enforced.
    pub dry_run: bool,
    /// Rules, of which one must match; without rules nothing matches.
    pub rules: Vec<AuthorizationRule>,
    /// Its status. Derived collections of policies do not have it, so that writing it changes nothing else.
    pub status: StoredStatus,
}

/// A rule: one of the sources, one of the operations, and all conditions must match.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct AuthorizationRule {
    /// Sources; empty is any.
    pub from: Vec<AuthorizationSource>,
    /// Operations; empty is any.
    pub to: Vec<AuthorizationOperation>,
    /// Conditions, all of which must match.
    pub when: Vec<AuthorizationCondition>,
}

/// Values of which one must match, and values of which none may match.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct PolicyValues {
    /// One of these must match.
    pub any: Vec<Text>,
    /// None of these may match.
    pub none: Vec<Text>,
}

impl PolicyValues {
    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.none.is_empty()
    }
}

/// The source of a request: all fields must match.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
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
    /// Source addresses of the connection.
    pub ip_blocks: PolicyValues,
    /// Source addresses of the request, as reported by trusted proxies.
    pub remote_ip_blocks: PolicyValues,
    /// A part cannot be read and is left out, so that more sources match.
    pub unreadable: bool,
}

/// The operation of a request: all fields must match.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct AuthorizationOperation {
    /// Hosts.
    pub hosts: PolicyValues,
    /// Ports of the workload.
    pub ports: PolicyValues,
    /// HTTP methods.
    pub methods: PolicyValues,
    /// Paths.
    pub paths: PolicyValues,
    /// A part cannot be read and is left out, so that more operations match.
    pub unreadable: bool,
}

/// A condition on one attribute.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct AuthorizationCondition {
    /// The attribute, such as `request.headers[x-id]`.
    pub key: Text,
    /// Its values.
    pub values: PolicyValues,
}
