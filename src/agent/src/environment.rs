//! Environment variables, read once at start-up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use sluice_parse::parse_duration;
use sluice_variables::{AGENT, agent_refusal, agent_warnings, parse_bool};

/// Environment variables with typed reads. An invalid value gives a warning, and the default is used.
pub(crate) struct Environment {
    values: BTreeMap<String, String>,
    warnings: RefCell<Vec<String>>,
}

impl Environment {
    pub(crate) fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { values: values.into_iter().collect(), warnings: RefCell::default() }
    }

    /// The variables of this process.
    pub(crate) fn of_process() -> Self {
        let text = |value: std::ffi::OsString| value.into_string().ok();
        Self::new(std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))))
    }

    /// Variables with a prefix: the rest of the name, and the value.
    pub(crate) fn with_prefix<'e>(&'e self, prefix: &'e str) -> impl Iterator<Item = (&'e str, &'e str)> {
        self.values.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }

    /// A string; `None` if it is empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.value(name).filter(|value| !value.is_empty())
    }

    /// A string, which may be empty; `None` if the variable is not set.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        debug_assert!(
            sluice_variables::find(AGENT, name).is_some_and(|variable| variable.is_read()),
            "{name} is not listed as followed"
        );
        self.values.get(name).map(String::as_str)
    }

    /// What Go's ParseBool accepts.
    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        self.read(name, default, "not a boolean (accepted: 1, t, true, 0, f, false)", parse_bool)
    }

    pub(crate) fn duration(&self, name: &str, default: Duration) -> Duration {
        self.read(name, default, "not a duration (such as 10s or 1h30m)", parse_duration)
    }

    pub(crate) fn number<N: std::str::FromStr + Copy>(&self, name: &str, default: N) -> N {
        self.read(name, default, "not a number in the accepted range", |text| text.parse().ok())
    }

    fn read<T>(&self, name: &str, default: T, problem: &str, parse: impl Fn(&str) -> Option<T>) -> T {
        let Some(text) = self.text(name) else { return default };
        parse(text).unwrap_or_else(|| {
            self.warnings.borrow_mut().push(format!("variable {name}: {text:?} is {problem}, the default is used"));
            default
        })
    }

    /// Warnings for variables that are set and have no effect, and for misspelt names.
    ///
    /// # Errors
    /// A variable has another value than the supported one, and such values are not ignored.
    pub(crate) fn not_followed(&self) -> Result<Vec<String>> {
        let values: Vec<_> = self.values.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let ignores = self.flag("SLUICE_IGNORE_UNSUPPORTED_VARIABLES", false);
        match agent_refusal(&values).filter(|_| !ignores) {
            Some(reason) => bail!(reason),
            None => Ok(agent_warnings(&values)),
        }
    }

    /// The warnings so far.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }
}

#[cfg(test)]
pub(crate) fn environment(values: &[(&str, &str)]) -> Environment {
    Environment::new(values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_value_gives_a_warning_and_the_default_is_used() {
        let environment = environment(&[("SECRET_TTL", "soon"), ("FILE_MOUNTED_CERTS", "T"), ("ISTIO_CPU_LIMIT", "2")]);
        assert_eq!(environment.duration("SECRET_TTL", Duration::from_secs(5)), Duration::from_secs(5));
        assert!(environment.flag("FILE_MOUNTED_CERTS", false));
        assert_eq!(environment.number("ISTIO_CPU_LIMIT", 0_u32), 2);
        assert_eq!(
            environment.take_warnings(),
            ["variable SECRET_TTL: \"soon\" is not a duration (such as 10s or 1h30m), the default is used"]
        );
    }

    #[test]
    fn variable_that_is_not_followed_gives_a_warning() {
        let set = [("PKCS8_KEY", "false"), ("TRUST_DOMAIN", "a"), ("PATH", "/bin")];
        let warnings = environment(&set).not_followed().expect("all are supported");
        assert!(warnings.len() == 1 && warnings[0].starts_with("variable PKCS8_KEY=\"false\""), "{warnings:?}");
        let ignored = [("PEER_METADATA_DISCOVERY", "true"), ("SLUICE_IGNORE_UNSUPPORTED_VARIABLES", "true")];
        assert_eq!(environment(&ignored).not_followed().expect("the default is used").len(), 1);
        let refused = environment(&[("PEER_METADATA_DISCOVERY", "true")]).not_followed().expect_err("not supported");
        assert!(refused.to_string().starts_with("variable PEER_METADATA_DISCOVERY=\"true\""), "{refused}");
    }

    #[test]
    fn variables_with_prefix_have_the_rest_of_the_name() {
        let environment = environment(&[("XDS_HEADER_A", "1"), ("XDS_HEADER_B", "2"), ("CA_HEADER_C", "3")]);
        assert_eq!(environment.with_prefix("XDS_HEADER_").collect::<Vec<_>>(), [("A", "1"), ("B", "2")]);
    }
}
