//! Reads one Secret, for connections of the control plane itself.

use http::Request;
use kube::Client;
use serde_json::Value;
use sluice_kube::{ObjectPath, RequestError};
use sluice_model::{Object, Secret, Text};
use sluice_parse::parse_object;

/// Secrets in the Kubernetes API.
const SECRETS: ObjectPath = ObjectPath::new("/api/v1", "secrets");

/// The certificates of a Secret; `None` if it does not exist or has none.
///
/// # Errors
/// The API server does not answer, or refuses the request.
pub async fn read_secret(client: &Client, namespace: &str, name: &str) -> Result<Option<Secret>, RequestError> {
    let request = Request::get(SECRETS.of(namespace, name, "")).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let object: Value = match sluice_kube::request(client, request).await {
        Ok(object) => object,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let parsed = parse_object(&Text::default(), "", &object);
    Ok(match parsed.ok().and_then(|parsed| parsed.object) {
        Some(Object::Secret(secret)) => Some(secret).filter(|it| it.certificate.is_some() || it.roots.is_some()),
        _ => None,
    })
}
