//! The requests for deployed objects: server-side apply, as the field manager of the reference.

use std::fmt::Write as _;

use http::{Method, Request, header};
use kube::Client;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use sluice_inject::DeployedObject;

use crate::kinds::object_path;
use crate::stored::{DeployedId, StoredObject, StoredObjects};

/// What has become of an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Applied {
    /// It is stored; the hash of its content.
    Stored(u64),
    /// An object of this name exists that is not one of the Gateway.
    NotOurs,
}

/// Writes objects of one API server.
pub(crate) struct ObjectWriter {
    pub(crate) client: Client,
    pub(crate) stored: StoredObjects,
    /// Owner of the fields: the name of the controller of routers, for all classes.
    pub(crate) field_manager: String,
}

impl ObjectWriter {
    /// Version of the API server: major version × 100 + minor version.
    pub(crate) async fn server_version(&self) -> Result<u32, kube::Error> {
        let version = self.send(Method::GET, "/version", "application/json", &Value::Null).await?;
        // A minor version may end with a plus sign.
        let number = |field: &str| {
            let digits: String =
                version[field].as_str().unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().unwrap_or_default()
        };
        Ok(number("major") * 100 + number("minor"))
    }

    /// Creates or changes an object of a Gateway with this unique id.
    pub(crate) async fn apply(
        &self,
        id: &DeployedId,
        object: &DeployedObject,
        uid: &str,
    ) -> Result<Applied, kube::Error> {
        let stored = match self.stored.get(id) {
            Some(stored) => Some(stored),
            // Objects without the label are not watched.
            None => self.read(id).await?,
        };
        let mut body = object.object.clone();
        if let Some(stored) = &stored {
            if !stored.is_of(uid) {
                return Ok(Applied::NotOurs);
            }
            // The object must not have been given to another owner meanwhile.
            body["metadata"]["resourceVersion"] = stored.resource_version.as_str().into();
            stored.keep_selector(&mut body);
        }
        let mut path = object_path(id.kind).of(&id.namespace, &id.name, "");
        // Writing to a String does not fail.
        let _ = write!(path, "?fieldManager={}&force=true", utf8_percent_encode(&self.field_manager, NON_ALPHANUMERIC));
        let answer = self.send(Method::PATCH, &path, "application/apply-patch+yaml", &body).await;
        if is_status(&answer, &[404, 409]) {
            self.stored.forget(id);
        }
        let written = StoredObject::of(&answer?);
        let content = written.content;
        self.stored.set(id.clone(), written);
        Ok(Applied::Stored(content))
    }

    async fn read(&self, id: &DeployedId) -> Result<Option<StoredObject>, kube::Error> {
        let path = object_path(id.kind).of(&id.namespace, &id.name, "");
        let answer = self.send(Method::GET, &path, "application/json", &Value::Null).await;
        if is_status(&answer, &[404]) { Ok(None) } else { answer.map(|object| Some(StoredObject::of(&object))) }
    }

    async fn send(&self, method: Method, path: &str, content_type: &str, body: &Value) -> Result<Value, kube::Error> {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content_type);
        let request = request.body(bytes).map_err(kube::Error::HttpError)?;
        sluice_kube::request(&self.client, request).await
    }
}

/// Whether the API server has answered with one of these codes.
fn is_status(answer: &Result<Value, kube::Error>, codes: &[u16]) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if codes.contains(&status.code))
}
