//! Messages and their collection.

use std::collections::BTreeSet;

use crate::codes::MessageType;
use crate::resource::AnalyzedObject;

/// A message about an object.
#[derive(Clone, Debug)]
pub struct Message<'m> {
    /// Code, name and level.
    pub message_type: &'static MessageType,
    /// The object.
    pub resource: &'m AnalyzedObject,
    /// Path of the field, such as `spec.http[0].route[0].destination.host`; empty for the whole object.
    pub field: String,
    /// What is wrong.
    pub text: String,
}

impl Message<'_> {
    /// Page of Istio's documentation about the code.
    #[must_use]
    pub fn documentation_url(&self) -> String {
        let code = self.message_type.code.to_ascii_lowercase();
        format!("https://istio.io/latest/docs/reference/config/analysis/{code}/")
    }
}

/// Collects messages.
#[derive(Debug, Default)]
pub struct MessageList<'m> {
    messages: Vec<Message<'m>>,
}

impl<'m> MessageList<'m> {
    pub(crate) fn add(
        &mut self,
        message_type: &'static MessageType,
        resource: &'m AnalyzedObject,
        field: impl Into<String>,
        text: impl Into<String>,
    ) {
        self.messages.push(Message { message_type, resource, field: field.into(), text: text.into() });
    }

    pub(crate) fn into_messages(mut self) -> Vec<Message<'m>> {
        self.messages.sort_by_cached_key(|message| {
            let MessageType { level, code, .. } = message.message_type;
            (
                message.resource.origin.cluster().to_owned(),
                std::cmp::Reverse(*level),
                *code,
                message.resource.to_string(),
                message.field.clone(),
                message.text.clone(),
            )
        });
        let mut seen = BTreeSet::new();
        self.messages.retain(|message| {
            let cluster = message.resource.origin.cluster();
            let resource = (cluster, message.resource.to_string(), message.field.clone(), message.text.clone());
            seen.insert((message.message_type.code, resource))
        });
        self.messages
    }
}
