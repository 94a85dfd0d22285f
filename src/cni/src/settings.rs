//! The command line of the agent. Every flag has the variable of `install-cni`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use sluice_redirection::ambient::{NodeSettings, PROBE_ADDRESS_V4, PROBE_ADDRESS_V6};
use sluice_redirection::annotations::parse_bool;
use sluice_telemetry::LogArgs;

use crate::install::{InstallSettings, KubeconfigSettings};
use crate::plugin::{NAME, PluginConfig};
use crate::repair::{Criteria, Method};
use crate::selectors::{EnablementSelectors, SelectorError};

/// The agent of CNI on a node: it installs the plugin, enrols pods in the ambient mesh, and repairs pods that started before
/// the plugin was installed. With CNI_COMMAND in the environment, the program is the plugin.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluice-cni", version, args_override_self = true)]
pub(crate) struct CommandLine {
    /// The subcommand; without one, the agent.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Settings of the agent.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    /// The log.
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Subcommands.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the version.
    Version,
}

fn boolean(text: &str) -> Result<bool, String> {
    parse_bool(text).ok_or_else(|| "true or false".to_owned())
}

/// Settings of the agent.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgentArgs {
    /// Kubeconfig; without one, the service account of the pod.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Directory in which the file system of the node is mounted: its `proc`, and the namespaces that the container runtime
    /// names.
    #[arg(long, value_name = "DIRECTORY", default_value = "/host")]
    pub(crate) host_root: PathBuf,
    /// Probes are marked in the network namespace of the first process of the node, instead of that of the agent.
    #[arg(long, env = "ALLOW_SWITCH_TO_HOST_NS", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) allow_switch_to_host_ns: bool,
    /// Directory of the configuration of CNI.
    #[arg(long, env = "MOUNTED_CNI_NET_DIR", value_name = "DIRECTORY", default_value = "/host/etc/cni/net.d")]
    pub(crate) mounted_cni_net_dir: PathBuf,
    /// Directory of the executables of CNI.
    #[arg(long, value_name = "DIRECTORY", default_value = "/host/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,
    /// Directory of the agent, at the same path on the node and in the container.
    #[arg(long, env = "CNI_AGENT_RUN_DIR", value_name = "DIRECTORY", default_value = "/var/run/istio-cni")]
    pub(crate) cni_agent_run_dir: PathBuf,
    /// File of the primary plugin; empty for the first one in the directory.
    #[arg(long, env = "CNI_CONF_NAME", value_name = "NAME", default_value = "")]
    pub(crate) cni_conf_name: String,
    /// The plugin is an entry in the list of the primary plugin. Otherwise it has a file of its own.
    #[arg(long, env = "CHAINED_CNI_PLUGIN", default_value = "true", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) chained_cni_plugin: bool,
    /// The list is a copy in a file of its own, which precedes the file of the primary plugin.
    #[arg(long, env = "ISTIO_OWNED_CNI_CONFIG", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) istio_owned_cni_config: bool,
    /// Name of this file.
    #[arg(long, env = "ISTIO_OWNED_CNI_CONFIG_FILENAME", value_name = "NAME", default_value = "")]
    pub(crate) istio_owned_cni_config_filename: String,
    /// The file of CNI is readable by the group (0640 instead of 0600).
    #[arg(long, env = "CNI_CONF_GROUP_READ", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) cni_conf_group_read: bool,
    /// Mode of the kubeconfig of the plugin: octal with a leading 0, otherwise decimal, as install-cni reads it.
    #[arg(long, env = "KUBECONFIG_MODE", value_name = "MODE", default_value = "0600")]
    pub(crate) kubeconfig_mode: String,
    /// Roots of the API server for the plugin; empty for those of the service account.
    #[arg(long, env = "KUBE_CA_FILE", value_name = "FILE", default_value = "")]
    pub(crate) kube_ca_file: String,
    /// The plugin does not verify the certificate of the API server.
    #[arg(long, env = "SKIP_TLS_VERIFY", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) skip_tls_verify: bool,
    /// Directory with the token and the roots of the service account.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    pub(crate) service_account_dir: PathBuf,
    /// Port of metrics; 0 for none.
    #[arg(long, env = "MONITORING_PORT", value_name = "PORT", default_value_t = 15014)]
    pub(crate) monitoring_port: u16,
    /// Port of /healthz and /readyz; 0 for none.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(crate) readiness_port: u16,
    /// Namespaces whose pods are never redirected, comma-separated.
    #[arg(long, env = "EXCLUDE_NAMESPACES", value_name = "NAMES", default_value = "")]
    pub(crate) exclude_namespaces: String,
    /// Namespace of the agent.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "")]
    pub(crate) pod_namespace: String,
    /// Name of the node.
    #[arg(long, env = "NODE_NAME", value_name = "NAME", default_value = "")]
    pub(crate) node_name: String,
    /// Pods are enrolled in the ambient mesh.
    #[arg(long, env = "AMBIENT_ENABLED", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) ambient_enabled: bool,
    /// Which pods, as a YAML list of podSelector and namespaceSelector.
    #[arg(long, env = "AMBIENT_ENABLEMENT_SELECTOR", value_name = "YAML", default_value = "")]
    pub(crate) ambient_enablement_selector: String,
    /// DNS requests of enrolled pods are redirected to ztunnel.
    #[arg(long, env = "AMBIENT_DNS_CAPTURE", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) ambient_dns_capture: bool,
    /// IPv6 of enrolled pods is redirected.
    #[arg(long, env = "AMBIENT_IPV6", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) ambient_ipv6: bool,
    /// At the end, the plugin is removed even if the DaemonSet of the agent still exists.
    #[arg(long, env = "AMBIENT_DISABLE_SAFE_UPGRADE", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) ambient_disable_safe_upgrade: bool,
    /// The rules of pods that are enrolled already are replaced at the start.
    #[arg(long, env = "AMBIENT_RECONCILE_POD_RULES_ON_STARTUP", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) ambient_reconcile_pod_rules_on_startup: bool,
    /// The plugin repeats failed requests about the mode of a pod, and fails after 30 s, instead of taking it as not enrolled.
    #[arg(long, env = "ENABLE_AMBIENT_DETECTION_RETRY", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    pub(crate) enable_ambient_detection_retry: bool,
    /// Socket to which ztunnel connects.
    #[arg(long, env = "ZTUNNEL_UDS_ADDRESS", value_name = "FILE", default_value = "/var/run/ztunnel/ztunnel.sock")]
    pub(crate) ztunnel_uds_address: PathBuf,
    /// Source of probes of the node, as pods see them.
    #[arg(long, env = "HOST_PROBE_SNAT_IP", value_name = "ADDRESS", default_value_t = PROBE_ADDRESS_V4)]
    pub(crate) host_probe_snat_ip: Ipv4Addr,
    /// The same for IPv6.
    #[arg(long, env = "HOST_PROBE_SNAT_IPV6", value_name = "ADDRESS", default_value_t = PROBE_ADDRESS_V6)]
    pub(crate) host_probe_snat_ipv6: Ipv6Addr,
    /// Settings of repair.
    #[command(flatten)]
    pub(crate) repair: RepairArgs,
}

/// Settings of repair.
#[derive(Args, Clone, Debug)]
pub(crate) struct RepairArgs {
    /// Pods with a sidecar that started before the plugin was installed are repaired by one of the three methods.
    #[arg(long, env = "REPAIR_ENABLED", default_value = "true", action = ArgAction::Set, value_parser = boolean)]
    repair_enabled: bool,
    /// The traffic of such pods is redirected.
    #[arg(long, env = "REPAIR_REPAIR_PODS", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    repair_repair_pods: bool,
    /// They are deleted, unless they are repaired.
    #[arg(long, env = "REPAIR_DELETE_PODS", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    repair_delete_pods: bool,
    /// They get a label, unless they are repaired or deleted.
    #[arg(long, env = "REPAIR_LABEL_PODS", default_value = "false", action = ArgAction::Set, value_parser = boolean)]
    repair_label_pods: bool,
    /// Key of the label.
    #[arg(long, env = "REPAIR_BROKEN_POD_LABEL_KEY", value_name = "KEY", default_value = "cni.istio.io/uninitialized")]
    repair_broken_pod_label_key: String,
    /// Value of the label.
    #[arg(long, env = "REPAIR_BROKEN_POD_LABEL_VALUE", value_name = "VALUE", default_value = "true")]
    repair_broken_pod_label_value: String,
    /// Annotation of pods with a sidecar; empty for all pods.
    #[arg(long, env = "REPAIR_SIDECAR_ANNOTATION", value_name = "NAME", default_value = "sidecar.istio.io/status")]
    repair_sidecar_annotation: String,
    /// Name of the container that fails.
    #[arg(long, env = "REPAIR_INIT_CONTAINER_NAME", value_name = "NAME", default_value = "istio-validation")]
    repair_init_container_name: String,
    /// Its termination message; empty for any.
    #[arg(long, env = "REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE", value_name = "TEXT", default_value = "")]
    repair_init_container_termination_message: String,
    /// Its exit code; 0 for any.
    #[arg(long, env = "REPAIR_INIT_CONTAINER_EXIT_CODE", value_name = "CODE", default_value_t = 126)]
    repair_init_container_exit_code: i64,
    /// Only pods with these labels.
    #[arg(long, env = "REPAIR_LABEL_SELECTORS", value_name = "SELECTOR", default_value = "")]
    pub(crate) repair_label_selectors: String,
    /// Only pods with these fields.
    #[arg(long, env = "REPAIR_FIELD_SELECTORS", value_name = "SELECTOR", default_value = "")]
    pub(crate) repair_field_selectors: String,
}

impl RepairArgs {
    /// The method; `None` if nothing is repaired.
    pub(crate) fn method(&self) -> Option<Method> {
        match self {
            Self { repair_enabled: false, .. } => None,
            Self { repair_repair_pods: true, .. } => Some(Method::Repair),
            Self { repair_delete_pods: true, .. } => Some(Method::Delete),
            Self { repair_label_pods: true, .. } => Some(Method::Label(
                self.repair_broken_pod_label_key.clone(),
                self.repair_broken_pod_label_value.clone(),
            )),
            Self { .. } => None,
        }
    }

    /// Which pods are broken.
    pub(crate) fn criteria(&self) -> Criteria {
        Criteria {
            annotation: self.repair_sidecar_annotation.clone(),
            container: self.repair_init_container_name.clone(),
            exit_code: self.repair_init_container_exit_code,
            message: self.repair_init_container_termination_message.clone(),
        }
    }
}

impl AgentArgs {
    /// Settings of the rules.
    pub(crate) fn node(&self) -> NodeSettings {
        NodeSettings {
            ipv6: self.ambient_ipv6,
            dns_capture: self.ambient_dns_capture,
            probe_v4: self.host_probe_snat_ip,
            probe_v6: self.host_probe_snat_ipv6,
        }
    }

    /// Which pods belong to the ambient mesh.
    pub(crate) fn selectors(&self) -> Result<EnablementSelectors, SelectorError> {
        EnablementSelectors::parse(&self.ambient_enablement_selector)
    }

    /// Namespaces whose pods are never redirected.
    pub(crate) fn excluded(&self) -> BTreeSet<String> {
        let names = self.exclude_namespaces.split(',').map(str::trim);
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// Settings of the installation.
    ///
    /// # Errors
    /// The mode of the kubeconfig is invalid.
    pub(crate) fn install(&self, selectors: &EnablementSelectors) -> anyhow::Result<InstallSettings> {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let protocol = Some(variable("KUBERNETES_SERVICE_PROTOCOL")).filter(|text| !text.is_empty());
        let owned = match self.istio_owned_cni_config_filename.as_str() {
            "" => "02-istio-cni.conflist",
            name => name,
        };
        Ok(InstallSettings {
            net_dir: self.mounted_cni_net_dir.clone(),
            bin_dir: self.cni_bin_dir.clone(),
            run_dir: self.cni_agent_run_dir.clone(),
            conf_name: self.cni_conf_name.clone(),
            owned_file: self.istio_owned_cni_config.then(|| owned.to_owned()),
            chained: self.chained_cni_plugin,
            mode: if self.cni_conf_group_read { 0o640 } else { 0o600 },
            plugin: PluginConfig {
                cni_version: "0.3.1".to_owned(),
                name: NAME.to_owned(),
                kind: NAME.to_owned(),
                plugin_log_level: "info".to_owned(),
                cni_agent_run_dir: self.cni_agent_run_dir.display().to_string(),
                ambient_enabled: self.ambient_enabled,
                enablement_selectors: selectors.source().to_vec(),
                exclude_namespaces: self.excluded().into_iter().collect(),
                pod_namespace: self.pod_namespace.clone(),
                enable_ambient_detection_retry: self.enable_ambient_detection_retry,
                previous: serde_json::Value::Null,
            },
            kubeconfig: KubeconfigSettings {
                service_account_dir: self.service_account_dir.clone(),
                ca_file: Some(&self.kube_ca_file).filter(|file| !file.is_empty()).map(PathBuf::from),
                skip_verification: self.skip_tls_verify,
                protocol: protocol.unwrap_or_else(|| "https".to_owned()),
                host: variable("KUBERNETES_SERVICE_HOST"),
                port: variable("KUBERNETES_SERVICE_PORT"),
                mode: file_mode(&self.kubeconfig_mode)?,
            },
        })
    }
}

/// `install-cni` reads a decimal number: 384 is 0600.
fn file_mode(text: &str) -> anyhow::Result<u32> {
    let invalid = || anyhow::anyhow!("KUBECONFIG_MODE: invalid mode {text:?}");
    let mode = match text.strip_prefix("0o").or_else(|| text.strip_prefix('0')) {
        Some(octal) => u32::from_str_radix(octal, 8).map_err(|_| invalid())?,
        None => text.parse().map_err(|_| invalid())?,
    };
    if mode > 0o777 { Err(invalid()) } else { Ok(mode) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn modes_are_octal_or_decimal() {
        assert_eq!(file_mode("0600").expect("octal"), 0o600);
        assert_eq!(file_mode("384").expect("decimal"), 0o600);
        assert!(file_mode("0999").is_err());
        assert!(file_mode("9999").is_err());
    }

    #[test]
    fn repair_precedes_deletion_and_labels() {
        let parse = |flags: &[&str]| {
            let line = CommandLine::try_parse_from([&["sluice-cni"], flags].concat()).expect("a command line");
            line.agent.repair.method()
        };
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&["--repair-delete-pods=true", "--repair-repair-pods=true"]), Some(Method::Repair));
        assert_eq!(parse(&["--repair-label-pods=1", "--repair-delete-pods=1"]), Some(Method::Delete));
        assert_eq!(parse(&["--repair-enabled=false", "--repair-delete-pods=1"]), None);
    }
}
