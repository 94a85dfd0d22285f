//! The condition `Reconciled`: which objects ask for it, and what it says (K15).

use serde::{Deserialize, Serialize};

use crate::Text;

/// The type of the condition that says whether proxies have acknowledged an object, as older versions of istiod wrote it.
pub const RECONCILED: &str = "Reconciled";

/// What an object of the API server asks about its condition `Reconciled`, and the conditions that it has.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ConditionRequest {
    /// It asks for the condition. Otherwise it has one that is to be removed.
    pub is_requested: bool,
    /// The generation of its spec.
    pub generation: i64,
    /// The stored conditions as JSON text; empty if there are none.
    pub conditions: Text,
}

/// How far the proxies are with an object.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Reconciliation {
    /// The generation of the object that this is about.
    pub generation: i64,
    /// Whether, and why not.
    pub state: ReconciliationState,
    /// As a sentence.
    pub message: Text,
}

/// Whether the proxies have acknowledged an object.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ReconciliationState {
    /// All of them have.
    Acknowledged,
    /// Some have not.
    #[default]
    NotAcknowledged,
    /// One has rejected a resource that the object changes.
    Rejected,
    /// The object is invalid and does not apply.
    Invalid,
}

impl ReconciliationState {
    const ALL: [Self; 4] = [Self::Acknowledged, Self::NotAcknowledged, Self::Rejected, Self::Invalid];

    /// Whether a condition with this type and reason is one of this control plane. That of istiod has no reason.
    #[must_use]
    pub fn is_own(kind: &str, reason: &str) -> bool {
        kind == RECONCILED && Self::ALL.iter().any(|state| state.reason() == reason)
    }

    /// The reason of the condition.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Acknowledged => "AcknowledgedByProxies",
            Self::NotAcknowledged => "NotAcknowledgedByProxies",
            Self::Rejected => "RejectedByProxies",
            Self::Invalid => "InvalidObject",
        }
    }
}
