//! Answers to operators: why a proxy has a resource, or does not have one; the progress of a change; recent changes.
//!
//! They are computed when they are asked for, from what the engine and the streams keep anyway.

mod authorization;
mod change_acks;
mod changes;
mod describe;
mod difference;
mod history;
mod mesh_facts;
mod names;
mod objects;
mod pages;
mod path;
mod proxies;
mod replica;
mod resource;
mod wait;
mod why;
mod why_not;

pub(crate) use change_acks::ChangeAcks;
pub(crate) use changes::changed_resources;
pub(crate) use difference::difference;
pub(crate) use history::{HistoryQuestion, history};
pub(crate) use names::object_text;
pub(crate) use objects::{WrittenObject, time_ago, written};
pub(crate) use pages::{authorization_page, describe_page, duration, history_page, wait_page, why_not_page, why_page};
pub(crate) use path::FieldPath;
pub(crate) use why::{WhyQuestion, why};

use names::NameError;
use path::PathError;
use proxies::ProxyError;

/// A question that has no answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum AnswerError {
    /// The question is malformed.
    #[error("{0}")]
    BadRequest(String),
    /// What it names does not exist.
    #[error("{0}")]
    NotFound(String),
}

impl From<NameError> for AnswerError {
    fn from(error: NameError) -> Self {
        Self::BadRequest(error.to_string())
    }
}

impl From<PathError> for AnswerError {
    fn from(error: PathError) -> Self {
        Self::BadRequest(error.to_string())
    }
}

impl From<ProxyError> for AnswerError {
    fn from(error: ProxyError) -> Self {
        Self::NotFound(error.to_string())
    }
}
