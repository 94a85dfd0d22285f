//! The command line of Envoy.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result};
use sluice_crypto::CompliancePolicy;
use sluice_parse::yaml::{Limits, parse_value};
use tokio::process::Command;
use tracing::info;

use crate::proxy_config::to_duration;
use crate::settings::{EnvoySettings, Settings};

/// TLS 1.2 cipher suites of Envoy's google_grpc clients under a FIPS policy.
const FIPS_GRPC_CIPHER_SUITES: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:\
                           ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384";

/// The command that starts Envoy with this bootstrap. Envoy writes to the agent's standard output and error.
///
/// # Errors
/// The bootstrap override cannot be read.
pub(crate) fn command(settings: &Settings, bootstrap: &Path) -> Result<Command> {
    let mut command = Command::new(&settings.proxy.binary_path);
    let arguments = arguments(settings);
    // The bootstrap override is not logged, because it may contain keys.
    let binary = &settings.proxy.binary_path;
    info!(bootstrap = %bootstrap.display(), binary, arguments = arguments.join(" "), "Envoy command line");
    command.arg("-c").arg(bootstrap).args(arguments).kill_on_drop(true);
    if let Some(CompliancePolicy::Fips140V2 | CompliancePolicy::Fips140V3) = settings.compliance {
        command.env("GRPC_SSL_CIPHER_SUITES", FIPS_GRPC_CIPHER_SUITES);
    }
    if let Some(file) = &settings.envoy.bootstrap_override {
        command.arg("--config-yaml").arg(read_override(file, &settings.envoy.host_ip)?);
    }
    Ok(command)
}

fn arguments(settings: &Settings) -> Vec<String> {
    let EnvoySettings { log_level, component_log_level, skip_deprecated_logs, core_dump, concurrency, .. } =
        &settings.envoy;
    let proxy = &settings.proxy;
    let drain = to_duration(proxy.drain_duration.as_ref()).unwrap_or_default();
    let flush = to_duration(proxy.file_flush_interval.as_ref()).map_or(1000, |interval| interval.as_millis());
    let family = if settings.addresses.iter().all(IpAddr::is_ipv6) { "v6" } else { "v4" };
    let (level, components) = split_levels(log_level);
    let components = if components.is_empty() { component_log_level.clone() } else { components };
    let mut arguments: Vec<String> = [
        // All clients are told to disconnect as soon as the drain starts.
        "--drain-time-s",
        &drain.as_secs().to_string(),
        "--drain-strategy",
        "immediate",
        "--local-address-ip-version",
        family,
        "--file-flush-interval-msec",
        &flush.to_string(),
        "--disable-hot-restart",
        "--allow-unknown-static-fields",
    ]
    .map(ToOwned::to_owned)
    .into();
    let mut option = |name: &str, value: String| {
        if !value.is_empty() {
            arguments.extend([name.to_owned(), value]);
        }
    };
    let number = |value: u32| if value == 0 { String::new() } else { value.to_string() };
    option("--file-flush-min-size-kb", number(proxy.file_flush_min_size_kb));
    option("--concurrency", number(*concurrency));
    option("--log-level", level);
    option("--component-log-level", components);
    for (flag, set) in [("--skip-deprecated-logs", skip_deprecated_logs), ("--enable-core-dump", core_dump)] {
        if *set {
            arguments.push(flag.to_owned());
        }
    }
    arguments
}

/// The default level, and the levels of components.
fn split_levels(text: &str) -> (String, String) {
    let (components, levels): (Vec<&str>, Vec<&str>) =
        text.split(',').filter(|level| !level.is_empty()).partition(|level| level.contains(':'));
    (levels.last().map(|level| (*level).to_owned()).unwrap_or_default(), components.join(","))
}

fn read_override(file: &Path, host_ip: &str) -> Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let text = match host_ip.contains(':') {
        true => text.replace("[$(HOST_IP)]", "$(HOST_IP)").replace("$(HOST_IP)", &format!("[{host_ip}]")),
        false => text.replace("$(HOST_IP)", host_ip),
    };
    let value = parse_value(&text, &Limits::default()).with_context(|| format!("read {}", file.display()))?;
    Ok(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    #[test]
    fn arguments_of_envoy_equal_those_of_pilot_agent() {
        let config = ("PROXY_CONFIG", "{drainDuration: 7s, concurrency: 2}");
        let settings = settings("sidecar --proxyLogLevel=info,misc:error,upstream:debug", &[config]).expect("settings");
        let arguments = arguments(&settings).join(" ");
        assert_eq!(
            arguments,
            "--drain-time-s 7 --drain-strategy immediate --local-address-ip-version v4 --file-flush-interval-msec 1000 \
             --disable-hot-restart --allow-unknown-static-fields --concurrency 2 --log-level info \
             --component-log-level misc:error,upstream:debug --skip-deprecated-logs"
        );
    }

    #[test]
    fn switches_and_the_override_are_arguments() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("override.yaml");
        std::fs::write(&file, "a: $(HOST_IP)").expect("write");
        let file = file.to_str().expect("a text");
        let arguments = |variables: &[(&str, &str)]| {
            let settings = settings("sidecar --outlierLogPath=/outliers", variables).expect("settings");
            let command = command(&settings, Path::new("bootstrap.json")).expect("a command");
            let all = command.as_std().get_args().map(|argument| argument.to_string_lossy().into_owned());
            all.collect::<Vec<_>>().join(" ")
        };
        let found = |text: &str| {
            let flags = [
                "--skip-deprecated-logs",
                "--enable-core-dump",
                "--concurrency 3",
                r#"--config-yaml {"a":"10.0.0.1"}"#,
            ];
            flags.map(|flag| text.contains(flag))
        };
        assert_eq!(found(&arguments(&[])), [true, false, false, false]);
        let others = [
            ("ENVOY_SKIP_DEPRECATED_LOGS", "false"),
            ("ISTIO_ENVOY_ENABLE_CORE_DUMP", "true"),
            ("ISTIO_CPU_LIMIT", "3"),
            ("ISTIO_BOOTSTRAP_OVERRIDE", file),
            ("HOST_IP", "10.0.0.1"),
        ];
        assert_eq!(found(&arguments(&others)), [false, true, true, true]);
    }

    #[test]
    fn fips_policies_limit_cipher_suites_of_envoys_grpc_clients() {
        let suites = |policy: &str| {
            let settings = settings("sidecar", &[("COMPLIANCE_POLICY", policy)]).expect("settings");
            let command = command(&settings, Path::new("bootstrap.json")).expect("a command");
            let mut set = command.as_std().get_envs().filter(|(name, _)| *name == "GRPC_SSL_CIPHER_SUITES");
            set.next().and_then(|(_, value)| value?.to_str().map(|text| text.split(':').count()))
        };
        assert_eq!(["", "fips-140-2", "fips-140-3", "pqc"].map(suites), [None, Some(4), Some(4), None]);
    }

    #[test]
    fn bootstrap_override_becomes_json_with_the_host_ip() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("override.yaml");
        std::fs::write(&file, "a: {address: '[$(HOST_IP)]:1'}\n").expect("write");
        assert_eq!(read_override(&file, "fd00::1").expect("a value"), r#"{"a":{"address":"[fd00::1]:1"}}"#);
        std::fs::write(&file, "a: $(HOST_IP)").expect("write");
        assert_eq!(read_override(&file, "10.0.0.1").expect("a value"), r#"{"a":"10.0.0.1"}"#);
    }
}
