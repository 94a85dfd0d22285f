//! Access to the fields of a map, with errors that name their path.

use serde_json::{Map, Value as Json};

use crate::error::InstallError;

/// A map with its path. A missing map has no fields.
pub(super) struct OperatorFields<'o> {
    fields: Option<&'o Map<String, Json>>,
    pub(super) path: String,
}

impl<'o> OperatorFields<'o> {
    pub(super) fn new(value: &'o Json, path: impl Into<String>) -> Result<Self, InstallError> {
        let path = path.into();
        match value {
            Json::Null => Ok(Self { fields: None, path }),
            Json::Object(fields) => Ok(Self { fields: Some(fields), path }),
            _ => Err(InstallError::input(path, "a map is expected")),
        }
    }

    fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// An error about a field.
    pub(super) fn refused(&self, name: &str, reason: &str) -> InstallError {
        InstallError::input(self.at(name), reason)
    }

    /// Refuses all other fields.
    pub(super) fn permit(&self, names: &[&str]) -> Result<(), InstallError> {
        let unknown = self.fields.into_iter().flat_map(Map::keys).find(|name| !names.contains(&name.as_str()));
        unknown.map_or(Ok(()), |name| {
            Err(self.refused(name, &format!("this field is not known; the fields are {}", names.join(", "))))
        })
    }

    pub(super) fn get(&self, name: &str) -> Option<&'o Json> {
        self.fields.and_then(|fields| fields.get(name))
    }

    pub(super) fn child(&self, name: &str) -> Result<Self, InstallError> {
        static NULL: Json = Json::Null;
        OperatorFields::new(self.get(name).unwrap_or(&NULL), self.at(name))
    }

    /// A map, empty if it is missing.
    pub(super) fn map(&self, name: &str) -> Result<Map<String, Json>, InstallError> {
        Ok(self.child(name)?.fields.cloned().unwrap_or_default())
    }

    /// A text, or a number as text.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, InstallError> {
        match self.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => text_of(value).map(Some).ok_or_else(|| self.refused(name, "a text is expected")),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, InstallError> {
        match self.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.refused(name, "true or false is expected")),
        }
    }
}

/// The text of a text or a number.
pub(super) fn text_of(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
