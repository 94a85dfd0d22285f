//! Kubeconfigs that others wrote, in Secrets of remote clusters.

use std::collections::BTreeSet;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use sluice_parse::{KubeconfigFault, parse_kubeconfig};

/// The configuration of a client with a kubeconfig that may only have the unsafe options in `allowed`
/// (`PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS`).
///
/// # Errors
/// The faults of the kubeconfig. No reason quotes it.
pub async fn untrusted_config(kubeconfig: &[u8], allowed: &BTreeSet<String>) -> Result<Config, Vec<KubeconfigFault>> {
    let value = parse_kubeconfig(kubeconfig, allowed)?.into_value();
    let fault = |reason: &str| vec![KubeconfigFault { path: String::new(), reason: reason.to_owned() }];
    let kubeconfig: Kubeconfig = serde_json::from_value(value).map_err(|_| fault("is not a valid kubeconfig"))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    config.map_err(|_| fault("has an invalid server URL or invalid root certificates"))
}
