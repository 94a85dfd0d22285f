//! The other clusters of the mesh.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use sluice_analyze::AnalyzedObject;

use super::config;
use crate::analyze_args::AnalyzeArgs;

/// Label of the Secrets with kubeconfigs of other clusters.
const LABEL: (&str, &str) = ("istio/multiCluster", "true");

/// Clusters by name.
type Clusters = Vec<(String, Client)>;

/// The clusters of `--remote-contexts`, or those of the Secrets in the namespace of the control plane: clients by name, and the
/// reasons why there is none. No reason quotes a kubeconfig.
pub(super) async fn clusters(
    args: &AnalyzeArgs,
    resources: &[AnalyzedObject],
) -> Result<(Clusters, Vec<String>), String> {
    let (mut clusters, mut unreadable) = (Vec::new(), Vec::new());
    for context in &args.remote_contexts {
        let client = sluice_kube::client(config(args, Some(context)).await?);
        clusters.push((context.clone(), client.map_err(|error| sluice_kube::chain(&error))?));
    }
    if !clusters.is_empty() {
        return Ok((clusters, unreadable));
    }
    let of_cluster = |secret: &&AnalyzedObject| {
        secret.kind().name == "Secret"
            && secret.namespace() == args.istio_namespace
            && secret.labels().get(LABEL.0) == Some(&LABEL.1)
    };
    for secret in resources.iter().filter(of_cluster) {
        for (name, kubeconfig) in secret.value["data"].as_object().into_iter().flatten() {
            match client(kubeconfig.as_str().unwrap_or_default()).await {
                Ok(client) => clusters.push((name.clone(), client)),
                Err(reason) => unreadable.push(format!("cluster {name}: the kubeconfig in {secret} {reason}")),
            }
        }
    }
    Ok((clusters, unreadable))
}

/// A client with a kubeconfig in base64. It may neither run programs nor read files of this machine.
async fn client(kubeconfig: &str) -> Result<Client, String> {
    let kubeconfig = STANDARD.decode(kubeconfig).map_err(|_| "is not valid base64".to_owned())?;
    let config = sluice_kube::untrusted_config(&kubeconfig, &BTreeSet::new()).await.map_err(|faults| {
        let faults: Vec<String> = faults.into_iter().map(|fault| format!("{} {}", fault.path, fault.reason)).collect();
        format!("is invalid: {}", faults.join("; ").trim_start())
    })?;
    sluice_kube::client(config).map_err(|_| "has an invalid certificate, key or credential".to_owned())
}
