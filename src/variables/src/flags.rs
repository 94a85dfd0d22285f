//! Flags of `pilot-discovery discovery` that `sluiced` accepts without an effect.

use crate::ValueKind::{Duration, List, Number, Text};
use crate::{Variable, default_only, no_effect};

/// Flags of `pilot-discovery discovery` that have no effect here, without dashes.
pub const FLAGS_WITHOUT_EFFECT: &[Variable] = &[
    default_only(
        "registries",
        List,
        "Kubernetes",
        "services are read from Kubernetes objects, of a cluster or of --configDir",
    ),
    no_effect(
        "clusterRegistriesNamespace",
        Text,
        "",
        "Secrets of remote clusters are read in the namespace of the control plane",
    ),
    no_effect(
        "kubernetesApiBurst",
        Number,
        "160",
        "requests are not limited by rate: the API server limits them by priority and fairness",
    ),
    no_effect(
        "kubernetesApiQPS",
        Number,
        "80",
        "requests are not limited by rate: the API server limits them by priority and fairness",
    ),
    no_effect("resync", Duration, "", "watches continue without listing all objects again"),
    no_effect("vklog", Number, "0", "the Kubernetes client has no log of its own; use --log_output_level"),
];

/// A warning about a flag that has no effect: `--NAME` or `--NAME=VALUE`. `None` if its value is what is done anyway.
#[must_use]
pub fn flag_warning(argument: &str) -> Option<String> {
    let (flag, value) = argument.split_once('=').unwrap_or((argument, ""));
    let known = FLAGS_WITHOUT_EFFECT.iter().find(|known| Some(known.name) == flag.strip_prefix("--"));
    match known {
        None => Some(format!("flag {flag} is unknown and has no effect")),
        Some(known) if known.kind.is_same(value, known.default) => None,
        Some(known) => Some(format!("flag {argument} of istiod has no effect: {}", known.about)),
    }
}
