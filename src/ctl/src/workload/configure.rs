//! `workload entry configure`: the files with which the agent of a machine joins the mesh.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use serde_json::{Value, json};

use super::args::EntryArgs;
use super::files::{MachineAddress, MachineSettings, configuration_files, discovery_host};
use super::group::WorkloadGroup;
use crate::answer_output::fail;
use crate::connect::QueryError;
use crate::connect::kubernetes::{KubeconfigCluster, current_thread};
use crate::control_plane_config::{
    INJECTOR_CONFIG_MAP, MESH_CONFIG_MAP, config_map, config_map_name, data_of, yaml_object,
};
use crate::proxy_config::read_file;

const EXIT_NOT_FOUND: u8 = 1;
/// The ConfigMap with the roots of the mesh in each namespace, and its key.
const ROOTS_CONFIG_MAP: &str = "istio-ca-root-cert";
const ROOTS_KEY: &str = "root-cert.pem";
const TOKEN_FILE: &str = "istio-token";
/// Audience of the token.
const AUDIENCE: &str = "istio-ca";
/// Id of a cluster that has none.
const DEFAULT_CLUSTER: &str = "Kubernetes";

/// A file with its permissions.
struct OutputFile {
    name: &'static str,
    mode: u32,
    content: String,
}

/// The files, and what the user has to know about them. It has no `Debug` form, because it contains a token.
struct MachineFiles {
    files: Vec<OutputFile>,
    warnings: Vec<String>,
}

/// Runs the subcommand and returns the exit code. Nothing is written unless all files are known.
pub(super) fn run(args: &EntryArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let made = current_thread().and_then(|runtime| runtime.block_on(machine_files(args)));
    let written = made.and_then(|made| {
        let failed = |error: io::Error| QueryError::Flags(format!("--output {}: {error}", args.output.display()));
        write(&args.output, &made.files).map(|()| made.warnings).map_err(failed)
    });
    match written {
        Ok(warnings) => {
            for warning in warnings {
                writeln!(errors, "warn: {warning}")?;
            }
            writeln!(out, "Configuration generation into directory {} was successful", args.output.display())?;
            Ok(0)
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

fn write(directory: &Path, files: &[OutputFile]) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for OutputFile { name, mode, content } in files {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(*mode).open(directory.join(name))?;
        // A file of an earlier run may have other permissions.
        file.set_permissions(std::fs::Permissions::from_mode(*mode))?;
        file.write_all(content.as_bytes())?;
    }
    Ok(())
}

async fn machine_files(args: &EntryArgs) -> Result<MachineFiles, QueryError> {
    // A malformed file is reported before a cluster that does not answer.
    let from_file = args.file.as_deref().map(group_of_file).transpose()?;
    let cluster = KubeconfigCluster::of(&args.target.cluster).await?;
    let group = match from_file {
        Some(group) => group,
        None => group_of_cluster(args, &cluster).await?,
    };
    let mut warnings: Vec<String> =
        group.unknown.iter().map(|path| format!("WorkloadGroup: {path}: unknown field, ignored")).collect();
    if !group.template_labels.is_empty() {
        warnings.push("WorkloadGroup: spec.template.labels override spec.metadata.labels".to_owned());
    }
    let istio_namespace = args.target.istio_namespace.as_str();
    let mesh_name = config_map_name(MESH_CONFIG_MAP, &args.target);
    let hint = "-n is that of the WorkloadGroup";
    let mesh = config_map(&cluster, istio_namespace, &mesh_name, hint).await?;
    let mesh = yaml_object("MeshConfig", &data_of(&mesh, &mesh_name, "mesh")?)?;
    let cluster_id = match &args.cluster_id {
        Some(id) => id.clone(),
        None => cluster_id(args, &cluster).await?,
    };
    let revision = args.target.named_revision();
    let internal = args.internal_ip.map(MachineAddress::Internal);
    let settings = MachineSettings {
        mesh: &mesh,
        istio_namespace,
        revision,
        cluster_id: &cluster_id,
        autoregister: args.autoregister,
        capture_dns: args.capture_dns,
        address: internal.or(args.external_ip.map(MachineAddress::External)),
    };
    let configuration = configuration_files(&group, &settings).map_err(QueryError::Invalid)?;
    let mesh_yaml = serde_yaml_ng::to_string(&configuration.mesh);
    let mesh_yaml = mesh_yaml.map_err(|error| QueryError::Invalid(format!("mesh.yaml: {error}")))?;
    let roots = roots(&group.namespace, &cluster).await?;
    let token = token(args, &group, &cluster).await?;
    let host = discovery_host(istio_namespace, revision);
    let hosts = match gateway_address(args, &cluster).await? {
        Some(address) => format!("{address} {host}\n"),
        None => {
            warnings.push(format!(
                "Service {}: no address is known by which the machine reaches {host}; --ingressIP is that address",
                args.ingress_service
            ));
            String::new()
        }
    };
    warnings.push(format!(
        "{} is a token of service account {:?} in namespace {:?}: its holder can act as this service account",
        args.output.join(TOKEN_FILE).display(),
        group.template.service_account,
        group.namespace
    ));
    let file = |name, content| OutputFile { name, mode: 0o644, content };
    let files = vec![
        file("cluster.env", configuration.environment),
        file("mesh.yaml", mesh_yaml),
        file(ROOTS_KEY, roots),
        OutputFile { name: TOKEN_FILE, mode: 0o600, content: token },
        file("hosts", hosts),
    ];
    Ok(MachineFiles { files, warnings })
}

fn group_of_file(path: &Path) -> Result<WorkloadGroup, QueryError> {
    let name = format!("--file {}", path.display());
    let bytes = read_file(path).map_err(|error| QueryError::Flags(format!("{name}: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| QueryError::Flags(format!("{name}: {error}")))?;
    let object = yaml_object(&name, &text)?;
    WorkloadGroup::of(&object).map_err(|error| QueryError::Invalid(format!("{name}: {error}")))
}

async fn group_of_cluster(args: &EntryArgs, cluster: &KubeconfigCluster) -> Result<WorkloadGroup, QueryError> {
    let name = args.name.as_deref().unwrap_or_default();
    let namespace = args.namespace.as_deref().unwrap_or_default();
    let path = format!("/apis/networking.istio.io/v1/namespaces/{namespace}/workloadgroups/{name}");
    let object = cluster.find(&path).await?;
    let missing = || QueryError::NotFound(format!("namespace {namespace:?} has no WorkloadGroup {name:?}"));
    let group = WorkloadGroup::of(&object.ok_or_else(missing)?);
    group.map_err(|error| QueryError::Invalid(format!("WorkloadGroup {namespace}/{name}: {error}")))
}

/// The id of the cluster in the values of the injector, which gives pods the same one.
async fn cluster_id(args: &EntryArgs, cluster: &KubeconfigCluster) -> Result<String, QueryError> {
    let name = config_map_name(INJECTOR_CONFIG_MAP, &args.target);
    let hint = "--clusterID is the id of the cluster";
    let injector = config_map(cluster, &args.target.istio_namespace, &name, hint).await?;
    let values = yaml_object("values of the injector", &data_of(&injector, &name, "values")?)?;
    let id = values["global"]["multiCluster"]["clusterName"].as_str().filter(|id| !id.is_empty());
    Ok(id.unwrap_or(DEFAULT_CLUSTER).to_owned())
}

async fn roots(namespace: &str, cluster: &KubeconfigCluster) -> Result<String, QueryError> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{ROOTS_CONFIG_MAP}");
    let missing = || {
        let hint = "the control plane writes it where the namespace exists";
        QueryError::NotFound(format!("namespace {namespace:?} has no ConfigMap {ROOTS_CONFIG_MAP:?}; {hint}"))
    };
    data_of(&cluster.find(&path).await?.ok_or_else(missing)?, ROOTS_CONFIG_MAP, ROOTS_KEY)
}

async fn token(args: &EntryArgs, group: &WorkloadGroup, cluster: &KubeconfigCluster) -> Result<String, QueryError> {
    let (namespace, account) = (&group.namespace, &group.template.service_account);
    if cluster.find(&format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}")).await?.is_none() {
        return Err(QueryError::NotFound(format!("namespace {namespace:?} has no service account {account:?}")));
    }
    let spec = json!({"audiences": [AUDIENCE], "expirationSeconds": args.token_duration});
    cluster.request_token(namespace, account, &spec).await
}

/// The address of the gateway to the control plane: that of the flag, or of its Service.
async fn gateway_address(args: &EntryArgs, cluster: &KubeconfigCluster) -> Result<Option<IpAddr>, QueryError> {
    if let Some(address) = args.ingress_ip {
        return Ok(Some(address));
    }
    let (name, namespace) =
        args.ingress_service.split_once('.').unwrap_or((&args.ingress_service, &args.target.istio_namespace));
    let service = cluster.find(&format!("/api/v1/namespaces/{namespace}/services/{name}")).await?;
    Ok(service.as_ref().and_then(service_address))
}

/// The address of the load balancer of a Service, or its first external one.
fn service_address(service: &Value) -> Option<IpAddr> {
    let of_balancer = &service["status"]["loadBalancer"]["ingress"][0]["ip"];
    let address = of_balancer.as_str().or_else(|| service["spec"]["externalIPs"][0].as_str())?;
    address.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_the_load_balancer_precedes_external_addresses() {
        let external = json!({"spec": {"externalIPs": ["192.0.2.1"]}});
        assert_eq!(service_address(&external), "192.0.2.1".parse().ok());
        let both = json!({"spec": {"externalIPs": ["192.0.2.1"]}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}}});
        assert_eq!(service_address(&both), "192.0.2.2".parse().ok());
        assert_eq!(
            service_address(&json!({"status": {"loadBalancer": {"ingress": [{"hostname": "a.example"}]}}})),
            None
        );
    }

    #[test]
    fn only_the_user_may_read_the_token() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("vm");
        std::fs::create_dir(&path).expect("a directory");
        std::fs::write(path.join(TOKEN_FILE), "longer than the new one").expect("a file of an earlier run");
        let file = |name, mode| OutputFile { name, mode, content: "text".to_owned() };
        write(&path, &[file(TOKEN_FILE, 0o600), file("hosts", 0o644)]).expect("written");
        let mode = |name: &str| std::fs::metadata(path.join(name)).expect("a file").permissions().mode() & 0o777;
        assert_eq!((mode(TOKEN_FILE), mode("hosts")), (0o600, 0o644));
        assert_eq!(std::fs::read_to_string(path.join(TOKEN_FILE)).expect("text"), "text");
    }
}
