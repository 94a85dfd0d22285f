//! Protobuf JSON in and out, driven by the descriptor pool.
//!
//! Decoding accepts what Kubernetes objects may contain: camelCase and snake_case names, enums by name or number, Go
//! durations (`1500ms`, `36h`, `1h30m`) in addition to protobuf's (`1.5s`). Unknown fields are reported, not rejected.
//! Encoding produces the canonical form: lowerCamel names, no unset fields, expanded `Any`s.

mod decode;
mod encode;
mod scalar;
mod shortened;
#[cfg(test)]
mod tests;

use std::fmt;

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, MessageDescriptor};
use serde_json::Value;

pub use encode::{encode_any, encode_dynamic};
pub use scalar::parse_duration;
pub use shortened::Shortened;

use crate::pool;

/// Maximum number of unknown fields of a message whose paths are recorded.
pub const MAX_UNKNOWN_FIELDS: usize = 100;
/// Maximum length of a field path. Of a longer one, both ends are recorded.
pub const MAX_FIELD_PATH_BYTES: usize = 512;
/// Maximum length of the reason why a part is invalid. Of a longer one, both ends are recorded.
pub const MAX_REASON_BYTES: usize = 1024;

/// A decoded message, and the parts of the JSON without a field in the message.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded<M> {
    /// The message.
    pub message: M,
    /// Paths of the first [`MAX_UNKNOWN_FIELDS`] unknown fields, such as `http[0].retries.budget`, in the order of the JSON.
    pub unknown: Vec<String>,
    /// Number of further unknown fields.
    pub more_unknown: usize,
}

impl<M> Decoded<M> {
    fn try_map<N>(self, message: impl FnOnce(M) -> Result<N, FieldError>) -> Result<Decoded<N>, FieldError> {
        Ok(Decoded { message: message(self.message)?, unknown: self.unknown, more_unknown: self.more_unknown })
    }
}

/// Why a JSON value does not decode as a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the invalid field in the message, such as `http[0].timeout`; empty for the message itself. It has at most
    /// [`MAX_FIELD_PATH_BYTES`].
    pub path: String,
    /// What is wrong, as a lower-case fragment of at most [`MAX_REASON_BYTES`].
    pub reason: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.is_empty() {
            true => f.write_str(&self.reason),
            false => write!(f, "{}: {}", self.path, self.reason),
        }
    }
}

impl std::error::Error for FieldError {}

/// Decodes a message from protobuf JSON.
///
/// # Errors
/// For the first field with a value of another type, and for a oneof that is set twice.
pub fn decode<M: Message + Name + Default>(value: &Value) -> Result<Decoded<M>, FieldError> {
    let descriptor = descriptor_of::<M>()?;
    let bytes = decode::to_wire(&descriptor, value)?;
    bytes.try_map(|bytes| M::decode(bytes.as_slice()).map_err(decode_error))
}

/// Decodes a message whose type is known at run time only.
///
/// # Errors
/// As [`decode()`].
pub fn decode_dynamic(descriptor: &MessageDescriptor, value: &Value) -> Result<Decoded<DynamicMessage>, FieldError> {
    let bytes = decode::to_wire(descriptor, value)?;
    bytes.try_map(|bytes| DynamicMessage::decode(descriptor.clone(), bytes.as_slice()).map_err(decode_error))
}

/// Decodes an object with `@type` into the type URL and the encoded message.
///
/// # Errors
/// As [`decode()`]. Also without `@type`, and for a type that is not in the pool unless `value` has its bytes in
/// base64.
pub fn decode_any(value: &Value) -> Result<Decoded<(String, Vec<u8>)>, FieldError> {
    decode::any_to_wire(value)
}

/// Encodes a message as canonical JSON.
///
/// # Errors
/// When the pool does not have the type, or the encoded message does not decode.
pub fn encode<M: Message + Name>(message: &M) -> Result<Value, FieldError> {
    let descriptor = descriptor_of::<M>()?;
    let bytes = message.encode_to_vec();
    let message = DynamicMessage::decode(descriptor, bytes.as_slice()).map_err(decode_error)?;
    Ok(encode_dynamic(&message))
}

fn descriptor_of<M: Name>() -> Result<MessageDescriptor, FieldError> {
    let name = M::full_name();
    pool()
        .get_message_by_name(&name)
        .ok_or_else(|| FieldError { path: String::new(), reason: format!("unknown message type {name}") })
}

fn decode_error(error: prost::DecodeError) -> FieldError {
    FieldError { path: String::new(), reason: error.to_string() }
}
