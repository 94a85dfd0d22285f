//! Invalid configuration as data.

use std::fmt;

use serde::Serialize;

use crate::{Kind, ObjectKey, Text};

/// What a finding means, to admission and to what is stored all the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Admitted, with advice. A part that is unknown or means nothing is ignored, everything else applies.
    Warning,
    /// Refused at admission. Where the object is stored all the same, it applies as far as it can.
    Refused,
    /// Refused at admission. Where it is stored, the object, or the part named, does not apply.
    Error,
}

impl Severity {
    /// Whether admission refuses an object with such a finding.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        self > Self::Warning
    }
}

/// A part of an object that is invalid. A record like any other: it retracts when the object is mended or deleted.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Reject {
    /// The kind of the object.
    pub kind: Kind,
    /// The object.
    pub object: ObjectKey,
    /// Path of the field within the object, such as `spec.http[0].route[1].destination.host`.
    pub field_path: Text,
    /// Why, a lower-case fragment.
    pub reason: Text,
    /// Whether the object is refused, and whether the part is lost.
    pub severity: Severity,
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
