//! Values of variables. An invalid value is a warning, and the default is used.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use sluice_parse::{address_blocks, parse_duration};

/// Parses a boolean as Go's ParseBool does.
pub(crate) fn read_flag(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
    default: bool,
    warnings: &mut Vec<String>,
) -> bool {
    match variable(name).as_deref() {
        None | Some("") => default,
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => true,
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => false,
        Some(other) => {
            warnings.push(format!("variable {name}: {other:?} is not supported: use true or false; {default} is used"));
            default
        }
    }
}

/// A duration, zero included.
pub(crate) fn read_duration(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
    default: Duration,
    warnings: &mut Vec<String>,
) -> Duration {
    let Some(text) = variable(name).filter(|text| !text.is_empty()) else { return default };
    parse_duration(&text).unwrap_or_else(|| {
        warnings.push(format!("variable {name}: {text:?} is not a duration such as 24h, {default:?} is used"));
        default
    })
}

/// A CIDR block of one address family.
pub(crate) fn read_prefix<T: FromStr + Display>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
    default: T,
    warnings: &mut Vec<String>,
) -> T {
    let Some(text) = variable(name).filter(|text| !text.is_empty()) else { return default };
    text.parse().unwrap_or_else(|_| {
        warnings.push(format!("variable {name}: {text:?} is not a CIDR block, {default} is used"));
        default
    })
}

/// A limit; 0 is no limit. As in istiod, a rate can have a fraction, which is rounded up.
pub(crate) fn read_limit<T: TryFrom<NonZeroU32>>(
    variable: impl Fn(&str) -> Option<String>,
    name: &str,
    warnings: &mut Vec<String>,
) -> Option<T> {
    let text = variable(name).filter(|text| !text.is_empty())?;
    match text.parse::<f64>() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1e9")]
        Ok(limit) if (0.0..=1e9).contains(&limit) => {
            NonZeroU32::new(limit.ceil() as u32).and_then(|limit| limit.try_into().ok())
        }
        _ => {
            warnings.push(format!("variable {name}: {text:?} is not a number from 0 to 1e9, the default is used"));
            None
        }
    }
}

/// A duration that is not zero.
pub(crate) fn read_interval(
    variable: impl Fn(&str) -> Option<String>,
    name: &str,
    default: Duration,
    warnings: &mut Vec<String>,
) -> Duration {
    let Some(text) = variable(name).filter(|text| !text.is_empty()) else { return default };
    parse_duration(&text).filter(|interval| !interval.is_zero()).unwrap_or_else(|| {
        warnings.push(format!("variable {name}: {text:?} is not a duration such as 20m or 90s, {default:?} is used"));
        default
    })
}

/// CIDR blocks of both address families, comma separated.
pub(crate) fn read_blocks(
    variable: impl Fn(&str) -> Option<String>,
    name: &str,
    warnings: &mut Vec<String>,
) -> Vec<IpNet> {
    address_blocks(&variable(name).unwrap_or_default(), |block| {
        warnings.push(format!("variable {name}: {block:?} is not a CIDR block such as 10.0.0.0/8, it is ignored"));
    })
}

/// A percentage, in thousandths of a percent.
pub(crate) fn read_percent(
    variable: impl Fn(&str) -> Option<String>,
    name: &str,
    default: u32,
    warnings: &mut Vec<String>,
) -> u32 {
    let Some(text) = variable(name).filter(|text| !text.is_empty()) else { return default };
    match text.parse::<f64>() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 100,000")]
        Ok(percent) if (0.0..=100.0).contains(&percent) => (percent * 1000.0).round() as u32,
        _ => {
            warnings.push(format!("variable {name}: {text:?} is not a percentage from 0 to 100, the default is used"));
            default
        }
    }
}
