//! `proxy-status PROXY`: where the configuration of Envoy differs from what the control plane has sent.

use std::io::{self, Write};

use serde_json::Value;
use similar::TextDiff;

use super::EXIT_NOT_FOUND;
use crate::answer_output::{fail, text};
use crate::connect::kubernetes::ProxyName;
use crate::connect::{QueryError, connect, connect_to_proxy};
use crate::operator_args::ProxyStatusArgs;
use crate::proxy_config::dump::ConfigDump;
use crate::proxy_config::{of_control_plane, of_envoy, read_file};
use crate::similar_proxy::with_similar_proxy;

/// Equal lines around a difference.
const CONTEXT_LINES: usize = 7;

/// Runs the subcommand and returns the exit code.
pub(super) fn run(args: &ProxyStatusArgs, proxy: &str, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match dumps(args, proxy) {
        Ok((of_server, of_envoy)) => print(&of_server, &of_envoy, out).map(|()| 0),
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// The dump of the control plane, and that of Envoy.
fn dumps(args: &ProxyStatusArgs, proxy: &str) -> Result<(ConfigDump, ConfigDump), QueryError> {
    let (id, of_envoy) = match &args.file {
        Some(path) => {
            let failed = |error: String| QueryError::Flags(format!("--file {}: {error}", path.display()));
            let text = read_file(path).map_err(|error| failed(error.to_string()))?;
            (ProxyName::parse(proxy, &args.namespace)?.id(), ConfigDump::parse(&text).map_err(failed)?)
        }
        None => {
            let envoy = connect_to_proxy(&args.server.cluster, proxy, &args.namespace, args.proxy_admin_port)?;
            let dump = of_envoy(&envoy, &[])?;
            // A workload is named by its pod from here on.
            let namespace = ProxyName::parse(proxy, &args.namespace)?.namespace;
            (format!("{}.{namespace}", envoy.name()), dump)
        }
    };
    let server = connect(&args.server)?;
    let mut not_connected = String::new();
    for replica in &server.replicas {
        let text = server.bytes_of(replica, "/debug/config_dump", &[("proxyID", &id)]);
        match text.and_then(of_control_plane) {
            Ok(of_server) => return Ok((of_server, of_envoy)),
            Err(QueryError::NotFound(text)) => not_connected = text,
            Err(error) => return Err(error),
        }
    }
    Err(with_similar_proxy(QueryError::NotFound(not_connected), &server, &id))
}

fn print(of_server: &ConfigDump, of_envoy: &ConfigDump, out: &mut dyn Write) -> io::Result<()> {
    type Resources = fn(&ConfigDump) -> Vec<&Value>;
    let kinds: [(&str, Resources); 3] = [
        ("Clusters", ConfigDump::dynamic_clusters),
        ("Listeners", ConfigDump::dynamic_listeners),
        ("Routes", ConfigDump::dynamic_routes),
    ];
    for (kind, resources) in kinds {
        let (server, envoy) = (as_text(resources(of_server)), as_text(resources(of_envoy)));
        if server == envoy {
            writeln!(out, "{kind} Match")?;
            continue;
        }
        writeln!(out, "{kind} Don't Match")?;
        let difference = TextDiff::from_lines(&server, &envoy);
        let mut unified = difference.unified_diff();
        unified.context_radius(CONTEXT_LINES).header(&format!("Istiod {kind}"), &format!("Envoy {kind}"));
        writeln!(out, "{unified}")?;
    }
    Ok(())
}

/// Resources as text, by name.
fn as_text(mut resources: Vec<&Value>) -> String {
    resources.sort_by(|a, b| text(a, "name").cmp(text(b, "name")));
    let mut text = String::new();
    for resource in resources {
        // A value of JSON is always printed.
        text.push_str(&serde_json::to_string_pretty(resource).unwrap_or_default());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = include_str!("../../tests/recorded/config_dump.web.json");
    const EDGE: &str = include_str!("../../tests/recorded/config_dump.edge.json");

    fn printed(server: &str, envoy: &str) -> String {
        let dump = |text: &str| ConfigDump::parse(text.as_bytes()).expect("a dump");
        let mut out = Vec::new();
        print(&dump(server), &dump(envoy), &mut out).expect("printed");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn equal_configuration_matches() {
        assert_eq!(printed(WEB, WEB), "Clusters Match\nListeners Match\nRoutes Match\n");
    }

    #[test]
    fn versions_and_times_are_no_difference() {
        let mut later: Value = serde_json::from_str(WEB).expect("JSON");
        for section in later["configs"].as_array_mut().expect("sections") {
            if section.get("versionInfo").is_some() {
                section["versionInfo"] = "later".into();
            }
        }
        assert_eq!(printed(WEB, &later.to_string()), "Clusters Match\nListeners Match\nRoutes Match\n");
    }

    #[test]
    fn other_configuration_is_printed_as_a_difference() {
        let text = printed(WEB, EDGE);
        for part in [
            "Clusters Don't Match\n--- Istiod Clusters\n+++ Envoy Clusters\n@@",
            "\n-  \"name\": \"InboundPassthroughCluster\",",
            "Listeners Don't Match\n",
            "Routes Don't Match\n",
            "\n+  \"name\": \"http.8080\",",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
