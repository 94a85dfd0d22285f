//! Warnings for variables that are set and not followed.

use crate::{AGENT, CONTROL_PLANE, Group, State, all, find};

/// Minimum length of a name for a suggestion: shorter names differ too little from each other.
const MIN_SUGGESTION_LENGTH: usize = 10;
/// Maximum number of characters in which a misspelt name differs from the known one.
const MAX_SUGGESTION_DISTANCE: usize = 3;
/// Variables that Kubernetes sets for the Service of the control plane.
const SERVICE_PREFIXES: [&str; 2] = ["ISTIOD_PORT", "ISTIOD_SERVICE_"];
/// Variables of the agent that manifests also set for the control plane, where nothing depends on them.
const SET_BY_MANIFESTS: [&str; 1] = ["INSTANCE_IP"];

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
            Some(known) => {
                let used = match known.default {
                    "" => "it is ignored".to_owned(),
                    default => format!("{default:?} is used"),
                };
                Some(format!("variable {name}={value:?} is not supported, {used}: {}", known.about))
            }
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
