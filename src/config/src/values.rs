//! Values of variables. An invalid value is a warning, and the default is used. Most empty ones are as if they were not set.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use sluice_parse::{address_blocks, parse_duration};

/// Reads variables, and collects warnings.
pub(crate) struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    pub(crate) warnings: &'a mut Vec<String>,
}

impl<'a> Variables<'a> {
    pub(crate) fn new(lookup: &'a dyn Fn(&str) -> Option<String>, warnings: &'a mut Vec<String>) -> Self {
        Self { lookup, warnings }
    }

    /// The text of a variable, if it is not empty.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|text| !text.is_empty())
    }

    /// The text of a variable, or a default.
    pub(crate) fn text_or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    /// The text of a variable, which may be empty; `None` if it is not set.
    pub(crate) fn raw(&self, name: &str) -> Option<String> {
        (self.lookup)(name)
    }

    /// The parts of a comma-separated list, see [`comma_separated`].
    pub(crate) fn list<T: From<String>, L: FromIterator<T>>(&self, name: &str) -> L {
        comma_separated(&self.text_or(name, "")).map(|part| part.to_owned().into()).collect()
    }

    /// Warns of the value of a variable; `problem` says what is wrong and what is used.
    pub(crate) fn warn(&mut self, name: &str, problem: &str) {
        self.warnings.push(format!("variable {name}: {problem}"));
    }

    /// A boolean.
    pub(crate) fn flag(&mut self, name: &str, default: bool) -> bool {
        let Some(text) = self.text(name) else { return default };
        parse_bool(&text).unwrap_or_else(|| {
            self.warn(name, &format!("{text:?} is not supported: use true or false; {default} is used"));
            default
        })
    }

    /// A duration, zero included.
    pub(crate) fn duration(&mut self, name: &str, default: Duration) -> Duration {
        self.parse(name, "a duration such as 24h", &format!("{default:?}"), parse_duration).unwrap_or(default)
    }

    /// A duration that is not zero.
    pub(crate) fn interval(&mut self, name: &str, default: Duration) -> Duration {
        let parse = |text: &str| parse_duration(text).filter(|interval| !interval.is_zero());
        self.parse(name, "a duration above 0 such as 20m", &format!("{default:?}"), parse).unwrap_or(default)
    }

    /// A CIDR block of one address family.
    pub(crate) fn block<T: FromStr + Display>(&mut self, name: &str, default: T) -> T {
        self.parse(name, "a CIDR block", &default.to_string(), |text| text.parse().ok()).unwrap_or(default)
    }

    /// CIDR blocks of both address families, comma separated.
    pub(crate) fn blocks(&mut self, name: &str) -> Vec<IpNet> {
        address_blocks(&self.text(name).unwrap_or_default(), |block| {
            self.warn(name, &format!("{block:?} is not a CIDR block such as 10.0.0.0/8, it is ignored"));
        })
    }

    /// A limit; `None` if it is 0, invalid or not set. As in istiod, a rate can have a fraction, which is rounded up.
    pub(crate) fn limit<T: TryFrom<NonZeroU32>>(&mut self, name: &str) -> Option<T> {
        let limit = self.number(name, 1e9, "the default")?;
        NonZeroU32::new(to_integer(limit.ceil())).and_then(|limit| limit.try_into().ok())
    }

    /// A percentage, in thousandths of a percent.
    pub(crate) fn millipercent(&mut self, name: &str, default: u32) -> u32 {
        let used = format!("{}", f64::from(default) / 1000.0);
        self.number(name, 100.0, &used).map_or(default, |percent| to_integer((percent * 1000.0).round()))
    }

    /// A number from 0 to `max`.
    fn number(&mut self, name: &str, max: f64, default: &str) -> Option<f64> {
        let parse = |text: &str| text.parse().ok().filter(|number| (0.0..=max).contains(number));
        self.parse(name, &format!("a number from 0 to {max}"), default, parse)
    }

    /// A value, if the variable is set and valid. A warning says what was expected, and that `default` is used.
    fn parse<T>(&mut self, name: &str, expected: &str, default: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let value = parse(&text);
        if value.is_none() {
            self.warn(name, &format!("{text:?} is not {expected}, {default} is used"));
        }
        value
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parts of a text that commas separate. Empty parts are left out.
pub(crate) fn comma_separated(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the callers pass numbers from 0 to 1e9")]
fn to_integer(number: f64) -> u32 {
    number as u32
}
