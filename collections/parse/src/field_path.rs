//! Field paths as chains of borrowed names.

use std::fmt;
use std::rc::Rc;

/// Path of a field, such as `spec.http[0].timeout`. Paths share what they have in common, and their text is made only for a
/// finding that is kept: the text of all paths would be longer than the object.
#[derive(Clone, Debug)]
pub struct FieldPath<'a>(Rc<Segment<'a>>);

#[derive(Debug)]
enum Segment<'a> {
    Root(Box<str>),
    Field(FieldPath<'a>, &'a str),
    Element(FieldPath<'a>, usize),
    Entry(FieldPath<'a>, &'a str),
}

impl<'a> FieldPath<'a> {
    /// The field `name` of the object at this path.
    #[must_use]
    pub fn field(&self, name: &'a str) -> Self {
        Self(Rc::new(Segment::Field(self.clone(), name)))
    }

    /// The element `index` of the list at this path.
    #[must_use]
    pub fn element(&self, index: usize) -> Self {
        Self(Rc::new(Segment::Element(self.clone(), index)))
    }

    /// The entry `key` of the map at this path.
    #[must_use]
    pub fn entry(&self, key: &'a str) -> Self {
        Self(Rc::new(Segment::Entry(self.clone(), key)))
    }

    /// The path of the field `name`, as text; an empty name is the object itself.
    pub(crate) fn with<'p>(&'p self, name: &'p str) -> impl fmt::Display {
        fmt::from_fn(move |f| match (name, self.is_empty()) {
            ("", _) => write!(f, "{self}"),
            (_, true) => f.write_str(name),
            (_, false) => write!(f, "{self}.{name}"),
        })
    }

    fn is_empty(&self) -> bool {
        matches!(&*self.0, Segment::Root(path) if path.is_empty())
    }
}

impl From<&str> for FieldPath<'_> {
    fn from(path: &str) -> Self {
        Self(Rc::new(Segment::Root(path.into())))
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A path is at most as deep as the object, which its reader bounds.
        match &*self.0 {
            Segment::Root(path) => f.write_str(path),
            Segment::Field(of, name) if of.is_empty() => f.write_str(name),
            Segment::Field(of, name) => write!(f, "{of}.{name}"),
            Segment::Element(of, index) => write!(f, "{of}[{index}]"),
            Segment::Entry(of, key) => write!(f, "{of}[{key}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FieldPath;

    #[test]
    fn path_is_written_as_fields_elements_and_entries() {
        let spec = FieldPath::from("spec");
        assert_eq!(
            spec.field("http").element(3).field("headers").entry("x-a").to_string(),
            "spec.http[3].headers[x-a]"
        );
        assert_eq!(spec.with("hosts[0]").to_string(), "spec.hosts[0]");
        assert_eq!(spec.with("").to_string(), "spec");
        let root = FieldPath::from("");
        assert_eq!((root.field("a").to_string(), root.with("b").to_string()), ("a".to_owned(), "b".to_owned()));
        assert_eq!(root.element(0).to_string(), "[0]");
    }
}
