//! Types of fields, and structures with fields.

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldKind {
    Text,
    /// A text that can be unset.
    OptionalText,
    Integer,
    /// An integer that can be unset.
    OptionalInteger,
    Bool,
    OptionalBool,
    Quantity,
    /// A number or a text, such as a port.
    IntOrString,
    /// A list of texts that is replaced as a whole.
    Texts,
    /// A list of texts that is merged as a set.
    TextSet,
    TextMap,
    /// A map of quantities.
    Quantities,
    /// A structure that is always set.
    Struct(&'static Structure),
    /// A structure that can be unset.
    Pointer(&'static Structure),
    /// A list of structures that is replaced as a whole.
    List(&'static Structure),
    /// A list of structures that is merged by the key.
    Keyed(&'static Structure, &'static str),
    Any,
}

/// A type with fields.
#[derive(Debug)]
pub(crate) struct Structure {
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [(&'static str, FieldKind)],
}

impl Structure {
    /// The type of a field by its name in JSON.
    pub(crate) fn kind(&self, name: &str) -> FieldKind {
        self.fields.iter().find(|(known, _)| *known == name).map_or(FieldKind::Any, |(_, kind)| *kind)
    }
}

pub(super) const fn structure(name: &'static str, fields: &'static [(&'static str, FieldKind)]) -> Structure {
    Structure { name, fields }
}
