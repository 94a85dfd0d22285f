//! Invalid configuration as data.

use std::fmt;

use serde::Serialize;

use crate::{Kind, ObjectKey, Text};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The part named is ignored; the rest of the object applies.
    Warning,
    /// The object, or the part named, does not apply.
    Error,
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
    /// Whether the part is lost or only noted.
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
