//! Material of the authority in a Secret of the control plane's namespace.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use kube::Client;
use serde_json::{Map, Value, json};
use sluice_ca::store::{Contents, SECRET_TYPE};
use sluice_kube::{ObjectPath, RequestError};
use zeroize::Zeroizing;

use super::api_request;

/// Secrets of a namespace.
#[derive(Clone)]
pub(super) struct SecretApi {
    client: Client,
    namespace: String,
}

/// A Secret at the resourceVersion that was read.
pub(super) struct Secret {
    pub(super) data: Contents,
    /// The whole object, for the update.
    object: Value,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WriteResult {
    Written,
    /// Another writer was first.
    Conflict,
}

impl SecretApi {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// A Secret; `None` if it does not exist.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Secret>, RequestError> {
        match self.send(Method::GET, &format!("/{name}"), None).await {
            Ok(object) => Ok(Some(Secret { data: decode(&object["data"])?, object })),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a Secret.
    pub(super) async fn create(&self, name: &str, contents: &Contents) -> Result<WriteResult, RequestError> {
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE,
            "metadata": {"name": name, "namespace": self.namespace},
            "data": encode(contents),
        });
        written(self.send(Method::POST, "", Some(&object)).await)
    }

    /// Updates a Secret, unless it has changed since it was read.
    pub(super) async fn update(
        &self,
        name: &str,
        secret: &Secret,
        contents: &Contents,
    ) -> Result<WriteResult, RequestError> {
        let mut object = secret.object.clone();
        if !object["data"].is_object() {
            object["data"] = json!({});
        }
        if let (Some(data), Value::Object(new)) = (object["data"].as_object_mut(), encode(contents)) {
            data.extend(new);
        }
        written(self.send(Method::PUT, &format!("/{name}"), Some(&object)).await)
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, kube::Error> {
        let uri = format!("{}{path}", ObjectPath::new("/api/v1", "secrets").all(&self.namespace));
        api_request::send(&self.client, method, uri, body).await
    }
}

fn written(result: Result<Value, kube::Error>) -> Result<WriteResult, RequestError> {
    match result {
        Ok(_) => Ok(WriteResult::Written),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(WriteResult::Conflict),
        Err(error) => Err(error.into()),
    }
}

fn encode(contents: &Contents) -> Value {
    let pairs = contents.iter().map(|(name, text)| (name.clone(), Value::String(STANDARD.encode(text.as_bytes()))));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn decode(data: &Value) -> Result<Contents, RequestError> {
    let mut contents = Contents::new();
    for (name, value) in data.as_object().into_iter().flatten() {
        let bytes = value.as_str().and_then(|text| STANDARD.decode(text).ok());
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.ok_or_else(|| RequestError::Malformed(format!("key {name} is not base64 of UTF-8 text")))?;
        contents.insert(name.clone(), Zeroizing::new(text));
    }
    Ok(contents)
}
