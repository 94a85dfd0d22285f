//! Instant queries to a Prometheus server.

use serde_json::Value;

use crate::answer_output::text;
use crate::connect::add_on::{AddOnTarget, PROMETHEUS, add_on_at, connect_to_add_on};
use crate::connect::{PodEndpoint, QueryError};
use crate::metrics_args::MetricsArgs;

const PATH: &str = "/api/v1/query";
/// The answer is one number with a time. This leaves room for warnings.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Characters of an error of the server that are shown.
const MAX_ERROR_CHARS: usize = 500;

/// A server, and how errors name it.
pub(super) struct Prometheus {
    endpoint: PodEndpoint,
}

impl Prometheus {
    /// The server at the address, or that of the pod in the namespace of the control plane.
    pub(super) fn connect(args: &MetricsArgs) -> Result<Self, QueryError> {
        let endpoint = match &args.address {
            Some(address) => add_on_at(address, args.ca_file.as_ref(), args.token_file.as_ref())?,
            None => {
                let target = AddOnTarget { cluster: &args.cluster, namespace: "", port: PROMETHEUS.port.into() };
                connect_to_add_on(&PROMETHEUS, &target).map_err(|error| match error {
                    QueryError::NotFound(reason) => {
                        QueryError::NotFound(format!("{reason}; --address is the address of a Prometheus server"))
                    }
                    error => error,
                })?
            }
        };
        Ok(Self { endpoint })
    }

    /// The value of the first series of a query; none if it has no series.
    pub(super) fn sample(&self, query: &str) -> Result<Option<f64>, QueryError> {
        let answer = self.endpoint.get(PATH, &[("query", query)], MAX_ANSWER_BYTES);
        let name = self.endpoint.name();
        let failed =
            |reason: String| QueryError::Cluster(format!("Prometheus at {name}: {reason}, for the query {query}"));
        let body = answer.map_err(|error| match error {
            error @ QueryError::PortForward { .. } => error,
            QueryError::Unreachable { error, .. } => failed(error.to_string()),
            QueryError::Refused { status, text, .. } => failed(format!("status {status}: {}", reason_of(&text))),
            QueryError::Invalid(text) => failed(reason_of(&text)),
            QueryError::NotFound(_) | QueryError::NoPage { .. } => failed(format!("it has no page {PATH}")),
            error => failed(error.to_string()),
        })?;
        sample_of(&body).map_err(failed)
    }
}

/// The reason in an answer that refuses a query.
fn reason_of(body: &str) -> String {
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    let reason = match text(&answer, "error") {
        "" => body,
        error => error,
    };
    reason.chars().filter(|c| !c.is_control()).take(MAX_ERROR_CHARS).collect()
}

/// The value of the first series of a vector.
fn sample_of(body: &[u8]) -> Result<Option<f64>, String> {
    let answer: Value = serde_json::from_slice(body).map_err(|error| format!("the answer is no JSON: {error}"))?;
    if answer["status"] != "success" {
        return Err(reason_of(&answer.to_string()));
    }
    let data = &answer["data"];
    let Some(series) = data["result"].as_array().filter(|_| data["resultType"] == "vector") else {
        return Err("the answer has no vector".to_owned());
    };
    let Some(first) = series.first() else { return Ok(None) };
    // Numbers are texts, because NaN and infinity are no numbers of JSON.
    let value = first["value"][1].as_str().and_then(|value| value.parse().ok());
    value.map(Some).ok_or_else(|| "the answer has a series without a value".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample(result: Value) -> Result<Option<f64>, String> {
        let answer = json!({"status": "success", "data": {"resultType": "vector", "result": result}});
        sample_of(answer.to_string().as_bytes())
    }

    #[test]
    fn first_value_of_a_vector_is_read() {
        assert_eq!(sample(json!([])), Ok(None));
        assert_eq!(sample(json!([{"metric": {}, "value": [1.5, "0.25"]}, {"value": [1.5, "9"]}])), Ok(Some(0.25)));
        assert!(sample(json!([{"value": [1, "NaN"]}])).expect("a value").is_some_and(f64::is_nan));
        assert_eq!(sample(json!([{"value": [1, "+Inf"]}])), Ok(Some(f64::INFINITY)));
    }

    #[test]
    fn other_answers_are_errors() {
        for value in [json!([{}]), json!([{"value": [1, 7]}]), json!([{"value": [1, "many"]}]), json!([1]), json!({})] {
            assert!(sample(value.clone()).is_err(), "{value}");
        }
        let scalar = json!({"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}});
        let refused = json!({"status": "error", "errorType": "bad_data", "error": "parse\u{1b}[31m error"});
        for (body, expected) in [
            ("<html>", "the answer is no JSON"),
            ("{}", "{}"),
            (&scalar.to_string(), "the answer has no vector"),
            (&refused.to_string(), "parse[31m error"),
        ] {
            let error = sample_of(body.as_bytes()).expect_err(body);
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(reason_of(&"a".repeat(MAX_ERROR_CHARS + 1)).len(), MAX_ERROR_CHARS);
    }
}
