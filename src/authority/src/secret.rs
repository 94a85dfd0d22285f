//! Material in a Secret of the own namespace.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, header};
use kube::Client;
use serde_json::{Map, Value, json};
use sluice_ca::store::{Contents, SECRET_TYPE};
use sluice_kube::chain;
use zeroize::Zeroizing;

/// Secrets of a namespace.
#[derive(Clone)]
pub(super) struct Secrets {
    client: Client,
    namespace: String,
}

/// A Secret as it was read.
pub(super) struct Secret {
    pub(super) data: Contents,
    /// All of it, to be written back.
    object: Value,
}

/// What came of writing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Written {
    Done,
    /// Somebody else was faster.
    Conflict,
}

impl Secrets {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// A Secret; nothing if there is none.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Secret>, String> {
        match self.send(Method::GET, &format!("/{name}"), None).await {
            Ok(object) => Ok(Some(Secret { data: decode(&object["data"])?, object })),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(chain(&error)),
        }
    }

    /// Creates one with these contents.
    pub(super) async fn create(&self, name: &str, contents: &Contents) -> Result<Written, String> {
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE,
            "metadata": {"name": name, "namespace": self.namespace},
            "data": encode(contents),
        });
        written(self.send(Method::POST, "", Some(&object)).await)
    }

    /// Writes contents into one, unless it has changed since it was read.
    pub(super) async fn update(&self, name: &str, secret: &Secret, contents: &Contents) -> Result<Written, String> {
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
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1/namespaces/{}/secrets{path}", self.namespace))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}

fn written(result: Result<Value, kube::Error>) -> Result<Written, String> {
    match result {
        Ok(_) => Ok(Written::Done),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Written::Conflict),
        Err(error) => Err(chain(&error)),
    }
}

fn encode(contents: &Contents) -> Value {
    let pairs = contents.iter().map(|(name, text)| (name.clone(), Value::String(STANDARD.encode(text.as_bytes()))));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn decode(data: &Value) -> Result<Contents, String> {
    let mut contents = Contents::new();
    for (name, value) in data.as_object().into_iter().flatten() {
        let bytes = value.as_str().and_then(|text| STANDARD.decode(text).ok());
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.ok_or_else(|| format!("{name} is no text"))?;
        contents.insert(name.clone(), Zeroizing::new(text));
    }
    Ok(contents)
}
