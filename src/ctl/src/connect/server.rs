//! The replicas of a control plane, and the answers of their pages.

use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::Endpoint;
use super::error::QueryError;
use super::partial::{MissingReplicas, PartialAnswers};
use super::request::{ANSWER_TIMEOUT, Parameters, Question, Requester};

/// The replicas of a control plane.
pub(crate) struct Server {
    pub(crate) replicas: Vec<Endpoint>,
    pub(super) requester: Requester,
}

impl Server {
    /// Replaces addresses of servers over xDS by the names of their pods, which the servers state.
    pub(crate) fn identified(mut self) -> Self {
        for replica in &mut self.replicas {
            let Some(xds) = &replica.xds else { continue };
            // A server that does not answer keeps its address. The next question reports it.
            let identifier = self.requester.runtime.block_on(xds.identifier(ANSWER_TIMEOUT));
            let Ok(identifier) = identifier else { continue };
            let identifier: Value = serde_json::from_str(&identifier).unwrap_or_default();
            if let Some(name) = identifier["ID"].as_str().filter(|name| !name.is_empty()) {
                name.clone_into(&mut replica.name);
            }
        }
        self
    }

    /// The answer of a debug page: of the first replica that has what the question names.
    pub(crate) fn get(&self, page: &str, parameters: &Parameters<'_>) -> Result<Value, QueryError> {
        parsed(&self.bytes(&format!("/debug/{page}"), parameters)?)
    }

    /// As [`Self::get`], with the replica as field `replica` of the answer, an object. Also returns the replicas that did not
    /// answer before it.
    pub(crate) fn get_with_replica(
        &self,
        page: &str,
        parameters: &Parameters<'_>,
    ) -> Result<(Value, MissingReplicas), QueryError> {
        self.first_that_has(|replica| {
            let mut answer = self.answer_of(replica, page, parameters)?;
            answer["replica"] = replica.name.as_str().into();
            Ok(answer)
        })
    }

    /// The body of a page, as [`Self::get`].
    pub(crate) fn bytes(&self, path: &str, parameters: &Parameters<'_>) -> Result<Vec<u8>, QueryError> {
        Ok(self.first_that_has(|replica| self.bytes_of(replica, path, parameters))?.0)
    }

    /// The body of a page of one replica.
    pub(crate) fn bytes_of(
        &self,
        replica: &Endpoint,
        path: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<u8>, QueryError> {
        self.requester.body(replica, Question::get(path, parameters, ANSWER_TIMEOUT))
    }

    /// The answer of a debug page of one replica.
    pub(crate) fn answer_of(
        &self,
        replica: &Endpoint,
        page: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Value, QueryError> {
        parsed(&self.bytes_of(replica, &format!("/debug/{page}"), parameters)?)
    }

    /// The answer of the first replica that has what the question names, and the replicas that did not answer before it.
    fn first_that_has<T>(
        &self,
        ask: impl Fn(&Endpoint) -> Result<T, QueryError>,
    ) -> Result<(T, MissingReplicas), QueryError> {
        let (mut not_found, mut missing) = (None, MissingReplicas::default());
        for replica in &self.replicas {
            match ask(replica) {
                Ok(answer) => return Ok((answer, missing)),
                Err(QueryError::NotFound(text)) => not_found = not_found.or(Some(text)),
                Err(error) => missing.add(replica, error)?,
            }
        }
        // A replica that does not answer may have it.
        Err(missing.take_first().unwrap_or_else(|| QueryError::NotFound(not_found.unwrap_or_default())))
    }

    /// Asks all replicas, one after the other. At least one answers.
    pub(crate) fn ask_all<T>(
        &self,
        ask: impl FnMut(&Endpoint) -> Result<T, QueryError>,
    ) -> Result<PartialAnswers<'_, T>, QueryError> {
        PartialAnswers::ask(self.replicas.iter(), ask)?.at_least_one()
    }

    /// The answers of a debug page of all replicas to a request with a body, one after the other.
    pub(crate) fn post_all(
        &self,
        page: &str,
        parameters: &Parameters<'_>,
        body: &str,
    ) -> Result<PartialAnswers<'_, Value>, QueryError> {
        let path = format!("/debug/{page}");
        self.ask_all(|replica| {
            let question = Question::get(&path, parameters, ANSWER_TIMEOUT);
            let question = Question { method: Method::POST, body: body.to_owned(), ..question };
            parsed(&self.requester.body(replica, question)?)
        })
    }

    /// The replica of that name, or the first one without a name.
    pub(crate) fn replica(&self, name: Option<&str>) -> Result<&Endpoint, QueryError> {
        let Some(name) = name else { return self.first() };
        self.replicas.iter().find(|replica| replica.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.replicas.iter().map(|replica| replica.name.as_str()).collect();
            QueryError::Flags(format!("--replica {name}: there is no such replica; there are {}", names.join(", ")))
        })
    }

    /// Reads a debug page of a replica as its bytes arrive, of any size.
    pub(crate) fn stream(
        &self,
        replica: &Endpoint,
        page: &str,
        parameters: &Parameters<'_>,
        timeout: Duration,
        on_chunk: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), QueryError> {
        let path = format!("/debug/{page}");
        let question = Question { max_answer_bytes: usize::MAX, ..Question::get(&path, parameters, timeout) };
        self.requester.receive(replica, question, on_chunk)
    }

    fn first(&self) -> Result<&Endpoint, QueryError> {
        self.replicas.first().ok_or_else(|| QueryError::Cluster("the control plane has no running pod".to_owned()))
    }

    /// The answers of a debug page of all replicas.
    pub(crate) fn get_all(
        &self,
        page: &str,
        parameters: &Parameters<'_>,
    ) -> Result<PartialAnswers<'_, Value>, QueryError> {
        self.ask_all(|replica| self.answer_of(replica, page, parameters))
    }

    /// The answers of a debug page of all replicas but one, and those that are known to be missing. Others that do not answer
    /// are added to these.
    pub(crate) fn get_of_others(
        &self,
        left_out: &str,
        missing: &mut MissingReplicas,
        page: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Value>, QueryError> {
        let others = self.replicas.iter().filter(|replica| replica.name != left_out && !missing.contains(replica));
        let asked = PartialAnswers::ask(others, |replica| self.answer_of(replica, page, parameters))?;
        missing.append(asked.missing);
        Ok(asked.answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Reads a page of lines of one replica, each a JSON value, as they arrive.
    pub(crate) fn lines(
        &self,
        replica: &Endpoint,
        page: &str,
        parameters: &Parameters<'_>,
        timeout: Duration,
        on_line: &mut (dyn FnMut(Value) + Send),
    ) -> Result<(), QueryError> {
        let (mut rest, mut failed) = (Vec::new(), None);
        let path = format!("/debug/{page}");
        let question = Question::get(&path, parameters, timeout);
        self.requester.receive(replica, question, &mut |chunk| {
            rest.extend_from_slice(chunk);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(value) => on_line(value),
                    Err(error) => failed = Some(error.to_string()),
                }
            }
        })?;
        failed.map_or(Ok(()), |error| Err(QueryError::Response(error)))
    }
}

fn parsed(body: &[u8]) -> Result<Value, QueryError> {
    serde_json::from_slice(body).map_err(|error| match std::str::from_utf8(body).map(str::trim) {
        // Over xDS, a refusal has no status.
        Ok(text) if !text.starts_with(['{', '[']) && !text.is_empty() => QueryError::Invalid(text.to_owned()),
        _ => QueryError::Response(error.to_string()),
    })
}
