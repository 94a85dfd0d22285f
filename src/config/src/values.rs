//! Values of variables. An invalid value is an error. Most empty ones are as if they were not set.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use sluice_parse::{address_blocks, parse_duration};
use sluice_variables::{CONTROL_PLANE, ValueKind, parse_bool};

use crate::ConfigError;

/// Reads variables, and collects invalid ones.
pub(crate) struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    errors: Vec<ConfigError>,
}

impl<'a> Variables<'a> {
    pub(crate) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup, errors: Vec::new() }
    }

    /// The first invalid variable, if there is one.
    pub(crate) fn finish(self) -> Result<(), ConfigError> {
        self.errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// The text of a variable, if it is not empty.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.raw(name).filter(|text| !text.is_empty())
    }

    /// The text of a variable, or a default.
    pub(crate) fn text_or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    /// The text of a variable, which may be empty; `None` if it is not set.
    pub(crate) fn raw(&self, name: &str) -> Option<String> {
        debug_assert!(
            sluice_variables::find(CONTROL_PLANE, name).is_some_and(|variable| variable.is_read()),
            "{name} is not listed as followed"
        );
        (self.lookup)(name)
    }

    /// The parts of a comma-separated list, see [`comma_separated`].
    pub(crate) fn list<T: From<String>, L: FromIterator<T>>(&self, name: &str) -> L {
        comma_separated(&self.text_or(name, "")).map(|part| part.to_owned().into()).collect()
    }

    /// Reports the value of a variable; `problem` says what is wrong and what is accepted.
    pub(crate) fn fail(&mut self, name: &'static str, problem: String) {
        self.errors.push(ConfigError { flag: name, reason: problem });
    }

    /// A boolean.
    pub(crate) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        check_default(name, ValueKind::Bool, if default { "true" } else { "false" });
        self.parse(name, "true or false", parse_bool).unwrap_or(default)
    }

    /// A duration, zero included.
    pub(crate) fn duration(&mut self, name: &'static str, default: Duration) -> Duration {
        check_default(name, ValueKind::Duration, &format!("{}ms", default.as_millis()));
        self.parse(name, "a duration such as 24h", parse_duration).unwrap_or(default)
    }

    /// A duration that is not zero.
    pub(crate) fn interval(&mut self, name: &'static str, default: Duration) -> Duration {
        check_default(name, ValueKind::Duration, &format!("{}ms", default.as_millis()));
        let parse = |text: &str| parse_duration(text).filter(|interval| !interval.is_zero());
        self.parse(name, "a duration above 0 such as 20m", parse).unwrap_or(default)
    }

    /// A CIDR block of one address family.
    pub(crate) fn block<T: FromStr + Display>(&mut self, name: &'static str, default: T) -> T {
        check_default(name, ValueKind::Block, &default.to_string());
        self.parse(name, &format!("a CIDR block such as {default}"), |text| text.parse().ok()).unwrap_or(default)
    }

    /// CIDR blocks of both address families, comma separated.
    pub(crate) fn blocks(&mut self, name: &'static str) -> Vec<IpNet> {
        address_blocks(&self.text(name).unwrap_or_default(), |block| {
            self.fail(name, format!("{block:?} is not a CIDR block such as 10.0.0.0/8"));
        })
    }

    /// A limit; `None` if it is 0 or not set. As in istiod, a rate can have a fraction, which is rounded up.
    pub(crate) fn limit<T: TryFrom<NonZeroU32>>(&mut self, name: &'static str) -> Option<T> {
        let limit = self.number(name, 1e9)?;
        NonZeroU32::new(to_integer(limit.ceil())).and_then(|limit| limit.try_into().ok())
    }

    /// A whole number, 0 included.
    pub(crate) fn count(&mut self, name: &'static str, default: u32) -> u32 {
        check_default(name, ValueKind::Number, &default.to_string());
        self.parse(name, "a whole number, 0 or more", |text| text.parse().ok()).unwrap_or(default)
    }

    /// A percentage, in thousandths of a percent.
    pub(crate) fn millipercent(&mut self, name: &'static str, default: u32) -> u32 {
        check_default(name, ValueKind::Number, &format!("{}", f64::from(default) / 1000.0));
        self.number(name, 100.0).map_or(default, |percent| to_integer((percent * 1000.0).round()))
    }

    /// One of several values, by name; `None` if it is not set.
    pub(crate) fn choice<T: Copy>(&mut self, name: &'static str, values: &[(&str, T)]) -> Option<T> {
        let accepted = values.iter().map(|(value, _)| *value).collect::<Vec<_>>().join(", ");
        let parse = |text: &str| values.iter().find(|(value, _)| *value == text).map(|(_, value)| *value);
        self.parse(name, &format!("one of {accepted}"), parse)
    }

    /// A number from 0 to `max`.
    fn number(&mut self, name: &'static str, max: f64) -> Option<f64> {
        let parse = |text: &str| text.parse().ok().filter(|number| (0.0..=max).contains(number));
        self.parse(name, &format!("a number from 0 to {max}"), parse)
    }

    /// A value, if the variable is set and valid.
    fn parse<T>(&mut self, name: &'static str, accepted: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let value = parse(&text);
        if value.is_none() {
            self.fail(name, format!("{text:?} is not supported: use {accepted}"));
        }
        value
    }
}

/// The table of variables is the documentation: it has the kind and the default that are used.
fn check_default(name: &str, kind: ValueKind, default: &str) {
    debug_assert!(
        sluice_variables::find(CONTROL_PLANE, name)
            .is_some_and(|variable| variable.kind == kind && kind.is_same(variable.default, default)),
        "{name} is listed with another kind or default than {default}"
    );
}

/// Parts of a text that commas separate. Empty parts are left out.
pub(crate) fn comma_separated(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the callers pass numbers from 0 to 1e9")]
fn to_integer(number: f64) -> u32 {
    number as u32
}
