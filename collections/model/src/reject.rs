//! Invalid configuration as data.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Kind, ObjectKey, Text};

/// Effect of a finding: at admission, and on an object that is stored nevertheless.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Admitted, with a warning. A part that is unknown or has no effect is ignored; the rest applies.
    Warning,
    /// Refused at admission. If the object is stored nevertheless, its valid parts apply.
    Refused,
    /// Refused at admission. If the object is stored nevertheless, it does not apply, or the named part does not.
    Error,
}

impl Severity {
    /// Whether admission refuses an object with such a finding.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        self > Self::Warning
    }
}

/// What a finding is about, for readers that tell it from others.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RejectCause {
    /// No reader tells it from others.
    #[default]
    Other,
    /// A rule of a VirtualService that no request reaches: earlier rules have all of its matches, or match every request.
    UnreachableRule,
    /// A match of a rule of a VirtualService that no request reaches: an earlier match accepts all of its requests.
    IneffectiveMatch,
}

impl RejectCause {
    fn is_other(&self) -> bool {
        *self == Self::Other
    }
}

/// An invalid part of an object. It is a record of a collection: it is retracted when the object is fixed or deleted.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Reject {
    /// The kind of the object.
    pub kind: Kind,
    /// The object.
    pub object: ObjectKey,
    /// Path of the field within the object, such as `spec.http[0].route[1].destination.host`.
    pub field_path: Text,
    /// What is wrong, as a lower-case fragment.
    pub reason: Text,
    /// Whether admission refuses the object, and whether the part applies.
    pub severity: Severity,
    /// What the finding is about.
    #[serde(default, skip_serializing_if = "RejectCause::is_other")]
    pub cause: RejectCause,
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}: ", self.kind, self.object.namespace, self.object.name)?;
        if !self.field_path.is_empty() {
            write!(f, "{}: ", self.field_path)?;
        }
        f.write_str(&self.reason)
    }
}
