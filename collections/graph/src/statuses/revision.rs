//! Which control plane writes the status of an object: that of the object's revision (C20).

/// Whether a revision that an object selects is that of this control plane. The default revision has two names. Tags are not read.
pub(crate) fn is_of_revision(selected: &str, own: &str) -> bool {
    let is_default = |revision: &str| matches!(revision, "" | "default");
    selected == own || (is_default(selected) && is_default(own))
}
