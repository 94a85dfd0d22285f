//! `AdmissionReview` objects in and out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};
use thiserror::Error;

/// Versions of the API that are answered.
const API_VERSIONS: [&str; 2] = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"];

/// A body that is no review.
#[derive(Debug, Error)]
pub enum ReviewError {
    /// The body is not JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The object has another kind.
    #[error("expected an AdmissionReview of admission.k8s.io/v1, found {kind} of {api_version}")]
    Kind {
        /// The kind of the object.
        kind: String,
        /// The version of its API.
        api_version: String,
    },
    /// A review without a request.
    #[error("the review has no request")]
    NoRequest,
}

/// A request for the admission of an object.
#[derive(Clone, Debug)]
pub struct AdmissionReview {
    api_version: String,
    /// The field `request`.
    request: Map<String, Json>,
}

impl AdmissionReview {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The body is not an AdmissionReview with a request.
    pub fn parse(body: &[u8]) -> Result<Self, ReviewError> {
        Self::from_json(serde_json::from_slice(body)?)
    }

    /// Reads a review that is parsed already.
    ///
    /// # Errors
    /// The object is not an AdmissionReview with a request.
    pub fn from_json(mut review: Json) -> Result<Self, ReviewError> {
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let (kind, api_version) = (text(&review["kind"]), text(&review["apiVersion"]));
        if kind != "AdmissionReview" || !API_VERSIONS.contains(&api_version.as_str()) {
            return Err(ReviewError::Kind { kind, api_version });
        }
        let Json::Object(request) = review["request"].take() else { return Err(ReviewError::NoRequest) };
        Ok(Self { api_version, request })
    }

    /// The request of the API server for a pod that is created.
    #[must_use]
    pub fn of_pod(pod: Json, namespace: &str) -> Self {
        let mut request = Map::new();
        request.insert("namespace".to_owned(), namespace.into());
        request.insert("object".to_owned(), pod);
        Self { api_version: API_VERSIONS[0].to_owned(), request }
    }

    /// A field of the request, `null` if it is absent.
    #[must_use]
    pub fn field(&self, name: &str) -> &Json {
        self.request.get(name).unwrap_or(&Json::Null)
    }

    /// A text field of the request, empty if it is absent or no text.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.field(name).as_str().unwrap_or_default()
    }

    /// The response to this review with what is decided about a pod.
    #[must_use]
    pub fn respond(&self, admission: &Admission) -> Json {
        self.respond_with(match admission {
            Admission::Unchanged => json!({"allowed": true}),
            Admission::Patched(patch) => json!({
                "allowed": true,
                "patchType": "JSONPatch",
                "patch": STANDARD.encode(serde_json::to_vec(patch).unwrap_or_default()),
            }),
            Admission::Denied(message) => denial(message),
        })
    }

    /// The response to this review, of which `response` has all fields but the UID.
    #[must_use]
    pub fn respond_with(&self, mut response: Json) -> Json {
        response["uid"] = self.text("uid").into();
        json!({"apiVersion": self.api_version, "kind": "AdmissionReview", "response": response})
    }
}

/// The fields of a response that refuses an object.
#[must_use]
pub fn denial(message: &str) -> Json {
    json!({"allowed": false, "status": {"metadata": {}, "message": message}})
}

/// What is decided about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// The pod is not injected.
    Unchanged,
    /// The pod is injected by a patch.
    Patched(json_patch::Patch),
    /// The pod is refused, with the reason that users see.
    Denied(String),
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::{Admission, AdmissionReview};

    fn review(object: Json) -> Json {
        json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u-1", "namespace": "harbor", "object": object},
        })
    }

    #[test]
    fn responses_have_the_version_and_uid_of_the_request() {
        let body = review(json!({"kind": "Pod"})).to_string();
        let review = AdmissionReview::parse(body.as_bytes()).expect("a review");
        let unchanged = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": "u-1", "allowed": true},
        });
        assert_eq!(review.respond(&Admission::Unchanged), unchanged);
        let patch = json_patch::diff(&json!({}), &json!({"a": 1}));
        let patched = review.respond(&Admission::Patched(patch));
        // [{"op":"add","path":"/a","value":1}]
        let encoded = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d";
        let expected = json!({"uid": "u-1", "allowed": true, "patchType": "JSONPatch", "patch": encoded});
        assert_eq!(patched["response"], expected);
        let denied = review.respond(&Admission::Denied("no".to_owned()));
        let expected = json!({"uid": "u-1", "allowed": false, "status": {"metadata": {}, "message": "no"}});
        assert_eq!(denied["response"], expected);
    }

    #[test]
    fn other_bodies_are_errors() {
        let mut other_kind = review(json!({}));
        other_kind["kind"] = json!("Pod");
        let mut without_request = review(json!({}));
        without_request["request"] = json!(null);
        for body in
            [other_kind.to_string(), without_request.to_string(), "{".to_owned(), "[]".to_owned(), String::new()]
        {
            assert!(AdmissionReview::parse(body.as_bytes()).is_err(), "{body}");
        }
        let nested = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(AdmissionReview::parse(nested.as_bytes()).is_err(), "too many levels");
    }
}
