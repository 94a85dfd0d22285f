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
const REQUIRED: [(&str, &str); 2] =
    [("ENABLE_LAYERED_WAYPOINT_AUTHORIZATION_POLICIES", AMBIENT), ("PILOT_ENABLE_AMBIENT_WAYPOINTS", AMBIENT)];
const AMBIENT: &str = "PILOT_ENABLE_AMBIENT";
/// Starts with the supported values instead of those that are not supported.
const IGNORE_UNSUPPORTED: &str = "SLUICE_IGNORE_UNSUPPORTED_VARIABLES";

/// Why `sluiced` does not start in this environment, unless `SLUICE_IGNORE_UNSUPPORTED_VARIABLES` is true; `None` if it does.
#[must_use]
pub fn control_plane_refusal(environment: &[(String, String)]) -> Option<String> {
    refusal(CONTROL_PLANE, environment)
}

/// Why `sluice-agent` does not start in this environment, unless `SLUICE_IGNORE_UNSUPPORTED_VARIABLES` is true; `None` if it does.
#[must_use]
pub fn agent_refusal(environment: &[(String, String)]) -> Option<String> {
    refusal(AGENT, environment)
}

/// A value that is not supported would change what proxies receive or what is written, so a program that ignored it would not do
/// what its user expects.
fn refusal(groups: &'static [Group], environment: &[(String, String)]) -> Option<String> {
    let judged = environment.iter().filter_map(|(name, value)| find(groups, name)?.judge(name, value, environment));
    let mut refused: Vec<String> = judged
        .filter_map(|judgement| match judgement {
            Judgement::Unsupported(reason) => Some(reason),
            Judgement::NoEffect(_) => None,
        })
        .collect();
    refused.sort();
    (!refused.is_empty()).then(|| {
        format!("{}. Unset them, or set {IGNORE_UNSUPPORTED}=true to use what is supported", refused.join("; "))
    })
}

/// What a value of a variable means that is not the one that is used.
enum Judgement {
    /// It changes nothing: the reason.
    NoEffect(String),
    /// It would change something: the reason why it does not.
    Unsupported(String),
}

impl Variable {
    /// `None` if the value is used, or is the one that is used anyway.
    fn judge(&self, name: &str, value: &str, environment: &[(String, String)]) -> Option<Judgement> {
        if value.is_empty() || self.is_read() || self.kind.is_same(value, self.default) {
            return None;
        }
        let set = format!("variable {name}={value:?}");
        Some(match missing(self.name, environment) {
            _ if self.state == State::NoEffect => Judgement::NoEffect(format!("{set} has no effect: {}", self.about)),
            Some(required) => Judgement::NoEffect(format!("{set} has no effect without {required}=true")),
            None => {
                let used = match self.default {
                    "" => "it is ignored".to_owned(),
                    default => format!("{default:?} is used"),
                };
                Judgement::Unsupported(format!("{set} is not supported, {used}: {}", self.about))
            }
        })
    }
}

/// The variable without which this one has no effect, if it is not set.
fn missing(name: &str, environment: &[(String, String)]) -> Option<&'static str> {
    let (_, required) = REQUIRED.iter().find(|(of, _)| *of == name)?;
    (!is_true(environment, required)).then_some(required)
}

fn is_true(environment: &[(String, String)], name: &str) -> bool {
    environment.iter().any(|(of, value)| of == name && parse_bool(value) == Some(true))
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
            Some(known) => known.judge(name, value, environment).map(|judgement| match judgement {
                Judgement::NoEffect(reason) | Judgement::Unsupported(reason) => reason,
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
