//! Native sidecars (W07).

/// Minor version of Kubernetes in which native sidecars are stable.
const NATIVE_SIDECARS_MINOR: u64 = 33;

/// Whether a kubelet of this version, such as `v1.33.1`, runs native sidecars.
#[must_use]
pub fn supports_native_sidecars(kubelet_version: &str) -> bool {
    let mut parts = kubelet_version.trim_start_matches('v').split(['.', '-', '+']);
    let major = parts.next().and_then(|major| major.parse::<u64>().ok());
    let minor = parts.next().and_then(|minor| minor.parse::<u64>().ok());
    major.is_some() && minor.is_some_and(|minor| minor >= NATIVE_SIDECARS_MINOR)
}
