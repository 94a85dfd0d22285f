//! Variables that are set and not followed: warnings, and values with which a program does not start.

use crate::{AGENT, CONTROL_PLANE, Group, State, Variable, all, find, parse_bool};

/// Minimum length of a name for a suggestion: shorter names differ too little from each other.
const MIN_SUGGESTION_LENGTH: usize = 10;
/// Maximum number of characters in which a misspelt name differs from the known one.
const MAX_SUGGESTION_DISTANCE: usize = 3;
/// Variables that Kubernetes sets for the Service of the control plane.
const SERVICE_PREFIXES: [&str; 2] = ["ISTIOD_PORT", "ISTIOD_SERVICE_"];
/// Variables of the agent that manifests also set for the control plane, where nothing depends on them.
const SET_BY_MANIFESTS: [&str; 1] = ["INSTANCE_IP"];

/// Variables that have no effect without another one, as in Istio.
const REQUIRED: [(&str, &str); 5] = [
    ("AMBIENT_ENABLE_BAGGAGE", AMBIENT),
    ("ENABLE_LAYERED_WAYPOINT_AUTHORIZATION_POLICIES", AMBIENT),
    ("PILOT_ENABLE_AMBIENT_WAYPOINTS", AMBIENT),
    ("AMBIENT_ENABLE_MULTI_NETWORK_INGRESS", MULTI_NETWORK),
    ("AMBIENT_ENABLE_MULTI_NETWORK_WAYPOINT", MULTI_NETWORK),
];
const AMBIENT: &str = "PILOT_ENABLE_AMBIENT";
const MULTI_NETWORK: &str = "AMBIENT_ENABLE_MULTI_NETWORK";
/// Starts with the supported values instead of those that are not supported.
const IGNORE_UNSUPPORTED: &str = "SLUICE_IGNORE_UNSUPPORTED_VARIABLES";

/// Why `sluiced` does not start in this environment, if it does not.
#[must_use]
pub fn control_plane_refusal(environment: &[(String, String)]) -> Option<String> {
    refusal(CONTROL_PLANE, environment)
}

/// Why `sluice-agent` does not start in this environment, if it does not.
#[must_use]
pub fn agent_refusal(environment: &[(String, String)]) -> Option<String> {
    refusal(AGENT, environment)
}

/// A value that is not supported would change what proxies receive or what is written, so a program that ignored it would not do
/// what its user expects.
fn refusal(groups: &'static [Group], environment: &[(String, String)]) -> Option<String> {
    if is_true(environment, IGNORE_UNSUPPORTED) {
        return None;
    }
    let mut refused: Vec<String> = environment
        .iter()
        .filter(|(name, value)| find(groups, name).is_some_and(|known| is_refused(known, environment, value)))
        .filter_map(|(name, value)| Some(unsupported(find(groups, name)?, name, value)))
        .collect();
    refused.sort();
    (!refused.is_empty()).then(|| {
        format!("{}. Unset them, or set {IGNORE_UNSUPPORTED}=true to use what is supported", refused.join("; "))
    })
}

/// Whether a value is neither supported nor without an effect.
fn is_refused(known: &Variable, environment: &[(String, String)], value: &str) -> bool {
    known.state == State::DefaultOnly
        && !value.is_empty()
        && !known.kind.is_same(value, known.default)
        && missing(known.name, environment).is_none()
}

/// The variable without which this one has no effect, if it is not set.
fn missing(name: &str, environment: &[(String, String)]) -> Option<&'static str> {
    let (_, required) = REQUIRED.iter().find(|(of, _)| *of == name)?;
    let is_on = is_true(environment, required) && (*required == AMBIENT || is_true(environment, AMBIENT));
    (!is_on).then_some(required)
}

fn is_true(environment: &[(String, String)], name: &str) -> bool {
    environment.iter().any(|(of, value)| of == name && parse_bool(value) == Some(true))
}

fn unsupported(known: &Variable, name: &str, value: &str) -> String {
    let used = match known.default {
        "" => "it is ignored".to_owned(),
        default => format!("{default:?} is used"),
    };
    format!("variable {name}={value:?} is not supported, {used}: {}", known.about)
}

/// Warnings about the environment of `sluiced`: names and values.
#[must_use]
pub fn control_plane_warnings(environment: &[(String, String)]) -> Vec<String> {
    warnings(CONTROL_PLANE, environment, |name| {
        find(AGENT, name)
            .filter(|_| !SET_BY_MANIFESTS.contains(&name))
            .map(|_| format!("variable {name} has no effect: sluice-agent reads it, sluiced does not"))
    })
}

/// Warnings about the environment of `sluice-agent`.
#[must_use]
pub fn agent_warnings(environment: &[(String, String)]) -> Vec<String> {
    warnings(AGENT, environment, |name| {
        let foreign = find(CONTROL_PLANE, name)?;
        // Names such as PLATFORM and REVISION belong to many programs.
        let unmistakable = foreign.name.len() >= MIN_SUGGESTION_LENGTH;
        unmistakable.then(|| format!("variable {name} has no effect: sluiced reads it, sluice-agent does not"))
    })
}

/// Warnings about names and values. `foreign` is the warning about a variable of the other program.
fn warnings(
    groups: &'static [Group],
    environment: &[(String, String)],
    foreign: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for (name, value) in environment.iter().filter(|(_, value)| !value.is_empty()) {
        let warning = match find(groups, name) {
            Some(known) if known.is_read() || known.kind.is_same(value, known.default) => None,
            Some(known) if known.state == State::NoEffect => {
                Some(format!("variable {name}={value:?} has no effect: {}", known.about))
            }
            Some(known) => Some(match missing(name, environment) {
                Some(required) => format!("variable {name}={value:?} has no effect without {required}=true"),
                None => unsupported(known, name, value),
            }),
            None => foreign(name).or_else(|| misspelt(groups, name)),
        };
        warnings.extend(warning);
    }
    warnings.sort();
    warnings
}

/// A warning about an unknown name that is similar to a known one.
fn misspelt(groups: &'static [Group], name: &str) -> Option<String> {
    if name.len() < MIN_SUGGESTION_LENGTH || SERVICE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let known = all(groups).map(|known| known.name).filter(|known| known.len() >= MIN_SUGGESTION_LENGTH);
    nearest(known, |known| strsim::damerau_levenshtein(name, known))
        .map(|known| format!("variable {name} is unknown and has no effect: did you mean {known}?"))
}

/// The known name with the least distance, if at most a quarter of its characters differ, and at most three.
pub fn nearest<'a>(known: impl IntoIterator<Item = &'a str>, distance: impl Fn(&str) -> usize) -> Option<&'a str> {
    let (distance, known) = known.into_iter().map(|known| (distance(known), known)).min()?;
    (distance <= (known.len() / 4).min(MAX_SUGGESTION_DISTANCE)).then_some(known)
}
