//! The bootstrap file of gRPC libraries in the application, which connect to the agent's xDS socket without a proxy (D04, X28).

use std::io::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::files::write_atomic;
use crate::node::EnvoyNode;
use crate::settings::{IdentitySettings, KeyFiles, Settings};

/// Name of the listener of a server. The library replaces `%s` with its address and port.
const SERVER_LISTENER_TEMPLATE: &str = "xds.istio.io/grpc/lds/inbound/%s";
/// Name of the certificate provider that the control plane refers to.
const CERTIFICATE_PROVIDER: &str = "default";
/// Maximum interval at which libraries read the certificate again, as in the reference.
const MAX_REFRESH_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Libraries reject shorter intervals.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Writes the bootstrap to `file`. All users may read it, because the application may be another user than the agent.
///
/// # Errors
/// The directory or the file is not writable.
pub(crate) fn write(file: &Path, settings: &Settings, node: &EnvoyNode) -> Result<()> {
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    write_atomic(file, format!("{:#}", build(settings, node)?).as_bytes(), 0o644)
}

/// The files that a library needs: the bootstrap and those of the certificate provider. None if there is no bootstrap.
pub(crate) fn needed_files(settings: &Settings) -> Vec<PathBuf> {
    let Some(bootstrap) = settings.grpc_bootstrap.clone() else { return Vec::new() };
    let mut files = vec![bootstrap];
    if let Some(output) = &settings.identity.output {
        let KeyFiles { chain, key, roots } = output.files();
        files.extend([chain, key, roots]);
    }
    files
}

fn build(settings: &Settings, node: &EnvoyNode) -> Result<Value> {
    let absolute = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
    let [region, zone, sub_zone] = &node.locality;
    let mut metadata = node.metadata.clone();
    metadata.insert("GENERATOR".to_owned(), "grpc".into());
    let mut bootstrap = json!({
        "xds_servers": [{
            "server_uri": format!("unix://{}", absolute(&settings.control_plane.socket)?),
            "channel_creds": [{ "type": "insecure" }],
            "server_features": ["xds_v3"],
        }],
        "node": {
            "id": node.id,
            "locality": { "region": region, "zone": zone, "sub_zone": sub_zone },
            "metadata": metadata,
        },
        "server_listener_resource_name_template": SERVER_LISTENER_TEMPLATE,
    });
    if let Some(output) = &settings.identity.output {
        let KeyFiles { chain, key, roots } = output.files();
        bootstrap["certificate_providers"] = json!({ CERTIFICATE_PROVIDER: {
            "plugin_name": "file_watcher",
            "config": {
                "certificate_file": absolute(&chain)?,
                "private_key_file": absolute(&key)?,
                "ca_certificate_file": absolute(&roots)?,
                "refresh_interval": format!("{}s", refresh_interval(&settings.identity).as_secs()),
            },
        } });
    }
    Ok(bootstrap)
}

/// Half of the time for which a certificate is still valid when it is renewed, so that libraries do not use expired ones.
fn refresh_interval(identity: &IdentitySettings) -> Duration {
    let overlap = identity.lifetime.mul_f64(identity.grace_ratio.clamp(0.0, 1.0));
    (overlap / 2).clamp(MIN_REFRESH_INTERVAL, MAX_REFRESH_INTERVAL)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::environment::environment;
    use crate::settings::tests::settings;

    const POD: [(&str, &str); 4] = [
        ("POD_NAME", "tea-1"),
        ("INSTANCE_IP", "10.0.0.7"),
        ("ISTIO_META_CLUSTER_ID", "c1"),
        ("ISTIO_METAJSON_LABELS", r#"{"app":"tea","istio-locality":"r/z/s"}"#),
    ];

    fn bootstrap(variables: &[(&str, &str)]) -> Value {
        let variables = [&POD, variables].concat();
        let settings = settings("sidecar", &variables).expect("settings");
        let node = EnvoyNode::new(&settings, &environment(&variables), &mut Vec::new());
        build(&settings, &node).expect("a bootstrap")
    }

    #[test]
    fn library_connects_to_the_agent_with_the_node_of_the_pod() {
        let bootstrap = bootstrap(&[]);
        let directory = std::env::current_dir().expect("a directory");
        let socket = format!("unix://{}/etc/istio/proxy/XDS", directory.display());
        assert_eq!(
            bootstrap["xds_servers"],
            json!([{ "server_uri": socket, "channel_creds": [{ "type": "insecure" }], "server_features": ["xds_v3"] }])
        );
        let node = &bootstrap["node"];
        assert_eq!(node["id"], "sidecar~10.0.0.7~tea-1.shop~shop.svc.cluster.local");
        assert_eq!(node["locality"], json!({ "region": "r", "zone": "z", "sub_zone": "s" }));
        assert_eq!(node["metadata"]["GENERATOR"], "grpc");
        assert_eq!(node["metadata"]["CLUSTER_ID"], "c1");
        assert_eq!(node["metadata"]["LABELS"]["app"], "tea");
        assert_eq!(bootstrap["server_listener_resource_name_template"], "xds.istio.io/grpc/lds/inbound/%s");
        assert_eq!(bootstrap["certificate_providers"], Value::Null, "there are no files without OUTPUT_CERTS");
    }

    #[test]
    fn certificate_provider_reads_the_files_of_the_agent() {
        let output = ("OUTPUT_CERTS", "/var/lib/istio/data");
        let provider = |variables: &[(&str, &str)]| {
            let bootstrap = bootstrap(&[&[output], variables].concat());
            bootstrap["certificate_providers"]["default"].clone()
        };
        assert_eq!(
            provider(&[]),
            json!({ "plugin_name": "file_watcher", "config": {
                "certificate_file": "/var/lib/istio/data/cert-chain.pem",
                "private_key_file": "/var/lib/istio/data/key.pem",
                "ca_certificate_file": "/var/lib/istio/data/root-cert.pem",
                "refresh_interval": "900s",
            } })
        );
        let interval = |lifetime, ratio| {
            let variables = [("SECRET_TTL", lifetime), ("SECRET_GRACE_PERIOD_RATIO", ratio)];
            provider(&variables)["config"]["refresh_interval"].clone()
        };
        assert_eq!(interval("10m", "0.5"), "150s");
        assert_eq!(interval("3s", "0.5"), "1s");
        assert_eq!(interval("24h", "-1"), "1s");
    }

    #[test]
    fn file_is_readable_by_all_users_and_is_needed_with_those_of_the_provider() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sub/grpc.json");
        let text = path.display().to_string();
        let variables = [("GRPC_XDS_BOOTSTRAP", text.as_str()), ("OUTPUT_CERTS", "/certs")];
        let settings = settings("sidecar", &variables).expect("settings");
        let node = EnvoyNode::new(&settings, &environment(&variables), &mut Vec::new());
        write(&path, &settings, &node).expect("write");
        assert_eq!(std::fs::metadata(&path).expect("stat").permissions().mode() & 0o777, 0o644);
        let names = ["cert-chain.pem", "key.pem", "root-cert.pem"].map(|name| Path::new("/certs").join(name));
        assert_eq!(needed_files(&settings), [[path].as_slice(), &names].concat());
    }

    #[test]
    fn empty_path_disables_the_bootstrap() {
        let settings =
            settings("sidecar", &[("GRPC_XDS_BOOTSTRAP", ""), ("OUTPUT_CERTS", "/certs")]).expect("settings");
        assert!(settings.grpc_bootstrap.is_none() && needed_files(&settings).is_empty());
    }
}
