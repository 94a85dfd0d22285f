//! Answers of several replicas, some of which do not answer.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::error::QueryError;
use super::{EXIT_INCOMPLETE, Endpoint};

/// The answers of a debug page, each with the name of its replica.
pub(crate) type ReplicaAnswers<T = Value> = Vec<(String, T)>;

/// The answers of the replicas that answer, and the others.
pub(crate) struct PartialAnswers<'s, T> {
    pub(crate) answers: Vec<(&'s Endpoint, T)>,
    pub(crate) missing: MissingReplicas,
}

/// Replicas that do not answer, and why.
#[derive(Default)]
pub(crate) struct MissingReplicas(Vec<(String, QueryError)>);

impl<'s, T> PartialAnswers<'s, T> {
    /// Asks replicas one after the other.
    ///
    /// # Errors
    /// The question is invalid, or what it names does not exist.
    pub(super) fn ask(
        replicas: impl Iterator<Item = &'s Endpoint>,
        mut ask: impl FnMut(&Endpoint) -> Result<T, QueryError>,
    ) -> Result<Self, QueryError> {
        let mut asked = Self { answers: Vec::new(), missing: MissingReplicas::default() };
        for replica in replicas {
            match ask(replica) {
                Ok(answer) => asked.answers.push((replica, answer)),
                Err(error) => asked.missing.add(replica, error)?,
            }
        }
        Ok(asked)
    }

    /// At least one answer.
    ///
    /// # Errors
    /// No replica answers: the error of the first one.
    pub(super) fn at_least_one(mut self) -> Result<Self, QueryError> {
        match self.answers.is_empty().then(|| self.missing.take_first()).flatten() {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }

    /// The answers with the names of their replicas.
    pub(crate) fn named(self) -> (ReplicaAnswers<T>, MissingReplicas) {
        let answers = self.answers.into_iter().map(|(replica, answer)| (replica.name.clone(), answer)).collect();
        (answers, self.missing)
    }
}

impl MissingReplicas {
    /// Adds a replica that does not answer. Other errors are those of the question, and are returned.
    pub(super) fn add(&mut self, replica: &Endpoint, error: QueryError) -> Result<(), QueryError> {
        if !error.is_of_replica() {
            return Err(error);
        }
        self.0.push((replica.name.clone(), error));
        Ok(())
    }

    /// Adds other replicas.
    pub(super) fn append(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    pub(super) fn contains(&self, replica: &Endpoint) -> bool {
        self.0.iter().any(|(name, _)| *name == replica.name)
    }

    /// The error of the first one.
    pub(super) fn take_first(&mut self) -> Option<QueryError> {
        (!self.0.is_empty()).then(|| self.0.remove(0).1)
    }

    /// Prints a line for each.
    pub(crate) fn report(&self, errors: &mut dyn Write) -> io::Result<()> {
        self.0.iter().try_for_each(|(name, error)| writeln!(errors, "sluicectl: {name} does not answer: {error}"))
    }

    /// Adds them to an answer, an object, as field `unansweredReplicas`.
    pub(crate) fn add_to(&self, answer: &mut Value) {
        if !self.0.is_empty() {
            let replicas = self.0.iter().map(|(name, error)| json!({"name": name, "error": error.to_string()}));
            answer["unansweredReplicas"] = replicas.collect::<Vec<_>>().into();
        }
    }

    /// The exit code of an answer that has `complete` if all replicas answer: an incomplete answer is no success.
    pub(crate) fn exit_code(&self, complete: u8) -> u8 {
        if complete == 0 && !self.0.is_empty() { EXIT_INCOMPLETE } else { complete }
    }
}

#[cfg(test)]
mod tests {
    use super::super::at_address;
    use super::*;

    /// Asks three replicas, of which some fail.
    fn ask<'s>(
        replicas: &'s [Endpoint],
        failure: impl Fn(&str) -> Option<QueryError>,
    ) -> Result<PartialAnswers<'s, u8>, QueryError> {
        PartialAnswers::ask(replicas.iter(), |replica| failure(&replica.name).map_or(Ok(7), Err))?.at_least_one()
    }

    fn replicas() -> Vec<Endpoint> {
        ["a:1", "b:2", "c:3"].map(|address| at_address(address).expect("an address")).into()
    }

    #[test]
    fn replica_that_does_not_answer_is_named_and_the_others_answer() {
        let replicas = replicas();
        let asked = ask(&replicas, |name| (name == "b:2").then(|| QueryError::Cluster("it is gone".to_owned())));
        let (answers, missing) = asked.map(PartialAnswers::named).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(answers, [("a:1".to_owned(), 7), ("c:3".to_owned(), 7)]);
        let mut errors = Vec::new();
        missing.report(&mut errors).expect("written");
        assert_eq!(String::from_utf8_lossy(&errors), "sluicectl: b:2 does not answer: it is gone\n");
        let mut answer = json!({});
        missing.add_to(&mut answer);
        assert_eq!(answer, json!({"unansweredReplicas": [{"name": "b:2", "error": "it is gone"}]}));
        assert_eq!((missing.exit_code(0), missing.exit_code(1)), (EXIT_INCOMPLETE, 1));
    }

    #[test]
    fn complete_answer_has_no_field_and_its_own_exit_code() {
        let replicas = replicas();
        let (answers, missing) = ask(&replicas, |_| None).map(PartialAnswers::named).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(answers.len(), 3);
        let mut answer = json!({});
        missing.add_to(&mut answer);
        assert_eq!((answer, missing.exit_code(0), missing.exit_code(4)), (json!({}), 0, 4));
    }

    #[test]
    fn error_of_the_question_or_of_all_replicas_is_returned() {
        let replicas = replicas();
        let error = |failure: fn(&str) -> Option<QueryError>| ask(&replicas, failure).err().map(|it| it.to_string());
        let invalid = error(|name| (name == "c:3").then(|| QueryError::Invalid("no such type".to_owned())));
        assert_eq!(invalid.as_deref(), Some("no such type"));
        let unreachable = error(|name| Some(QueryError::Cluster(format!("{name} is gone"))));
        assert_eq!(unreachable.as_deref(), Some("a:1 is gone"));
    }
}
