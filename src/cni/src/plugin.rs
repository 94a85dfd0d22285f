//! The CNI plugin: the container runtime runs it after the primary plugin when a pod gets its network.
//!
//! It follows the specification of CNI: the command and its parameters are in the environment, the configuration on standard
//! input, and the result or an error on standard output. A pod of the ambient mesh is passed to the agent. The traffic of a
//! pod with a sidecar is redirected here, so that the pod needs no privileged container.

mod config;
mod sidecar;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sluice_kube::ObjectPath;
use tokio::net::UnixStream;
use tracing::{info, warn};

use crate::event::{AddEvent, PATH, SOCKET};
use crate::pod::{NodePod, PodName, text_map};

pub(crate) use config::{KUBECONFIG, NAME, PluginConfig};
pub(crate) use sidecar::redirect;

/// Versions of the specification.
const VERSIONS: [&str; 8] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.0.1"];
/// Time limit of the request to the agent.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest message of the agent that is shown.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Requests for a pod to the API server, and the time between them.
const ATTEMPTS: (u32, Duration) = (30, Duration::from_secs(1));

/// Error codes of the specification.
const DECODING_FAILED: u32 = 6;
const INVALID_CONFIGURATION: u32 = 7;
const INVALID_ENVIRONMENT: u32 = 4;
/// First code for errors of a plugin.
const FAILED: u32 = 100;

/// Parameters in the environment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct PluginParameters {
    pub(crate) command: String,
    pub(crate) netns: String,
    pub(crate) args: BTreeMap<String, String>,
}

impl PluginParameters {
    /// Of the process; `None` if it does not run as a plugin.
    pub(crate) fn of_process() -> Option<Self> {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        let command = std::env::var("CNI_COMMAND").ok()?;
        Some(Self { command, netns: text("CNI_NETNS"), args: parse_args(&text("CNI_ARGS")) })
    }

    /// The pod, if the runtime is one of Kubernetes.
    fn pod(&self) -> Option<PodName> {
        let text = |name: &str| self.args.get(name).filter(|text| !text.is_empty()).cloned();
        Some(PodName { namespace: text("K8S_POD_NAMESPACE")?, name: text("K8S_POD_NAME")? })
    }
}

/// `KEY=VALUE;KEY=VALUE`.
fn parse_args(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Runs the command.
pub(crate) fn run(parameters: &PluginParameters) -> ExitCode {
    let mut input = Vec::new();
    let read = std::io::stdin().read_to_end(&mut input).context("read the configuration");
    let result = match read {
        Ok(_) => answer(parameters, &input),
        Err(error) => Err((DECODING_FAILED, error)),
    };
    match result {
        Ok(output) => {
            print(&output);
            ExitCode::SUCCESS
        }
        Err((code, error)) => {
            let version = serde_json::from_slice::<Value>(&input).ok();
            let version = version.and_then(|config| config["cniVersion"].as_str().map(str::to_owned));
            let version = version.unwrap_or_else(|| config::VERSION.to_owned());
            let message = format!("{error:#}");
            print(&json!({"cniVersion": version, "code": code, "msg": message, "details": ""}).to_string());
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) {
    // The runtime may have ended.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// The text of the result of a command.
fn answer(parameters: &PluginParameters, input: &[u8]) -> Result<String, (u32, anyhow::Error)> {
    match parameters.command.as_str() {
        "VERSION" => Ok(json!({"cniVersion": "1.1.0", "supportedVersions": VERSIONS}).to_string()),
        "ADD" => {
            let config = PluginConfig::parse(input).map_err(|error| (DECODING_FAILED, error))?;
            if !VERSIONS.contains(&config.cni_version.as_str()) {
                let error = anyhow!("cniVersion {:?} is not supported", config.cni_version);
                return Err((INVALID_CONFIGURATION, error));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.context("start the runtime").map_err(|error| (FAILED, error))?;
            runtime.block_on(add(parameters, &config)).map_err(|error| (FAILED, error))?;
            Ok(config.result().to_string())
        }
        // Nothing outlives the namespace of the pod, and the agent watches pods.
        "DEL" | "CHECK" | "GC" | "STATUS" => Ok(String::new()),
        other => Err((INVALID_ENVIRONMENT, anyhow!("CNI_COMMAND {other:?} is not known"))),
    }
}

async fn add(parameters: &PluginParameters, config: &PluginConfig) -> Result<()> {
    let Some(name) = parameters.pod() else {
        info!("not a pod of Kubernetes");
        return Ok(());
    };
    // The agent writes the kubeconfig that everything below needs.
    if is_agent(&name, config) || config.exclude_namespaces.contains(&name.namespace) {
        info!(pod = %name, "pod of the agent, or of an excluded namespace");
        return Ok(());
    }
    let kubeconfig = Path::new(&config.cni_agent_run_dir).join(KUBECONFIG);
    let client = sluice_kube::connect(Some(&kubeconfig)).await?;
    if config.ambient_enabled && ambient(&client, &name, parameters, config).await? {
        return Ok(());
    }
    let pod = get_pod(&client, &name, ATTEMPTS.0).await?;
    match sidecar::why_not(&pod) {
        Some(reason) => info!(pod = %name, reason, "traffic is not redirected"),
        None => {
            let netns = parameters.netns.clone();
            tokio::task::spawn_blocking(move || sidecar::redirect_path(&pod, Path::new(&netns))).await??;
            info!(pod = %name, "traffic is redirected to the sidecar");
        }
    }
    Ok(())
}

fn is_agent(name: &PodName, config: &PluginConfig) -> bool {
    name.name.starts_with("istio-cni-node-") && name.namespace == config.pod_namespace
}

/// Passes a pod of the ambient mesh to the agent. Returns whether it is one.
async fn ambient(
    client: &kube::Client,
    name: &PodName,
    parameters: &PluginParameters,
    config: &PluginConfig,
) -> Result<bool> {
    let attempts = if config.enable_ambient_detection_retry { ATTEMPTS.0 } else { 1 };
    let selected = async {
        let pod = get_pod(client, name, attempts).await?;
        let namespace = get(client, &ObjectPath::new("/api/v1", "namespaces").of("", &name.namespace, "")).await?;
        let selectors = config.selectors()?;
        anyhow::Ok(selectors.select(&pod, &text_map(&namespace["metadata"]["labels"])))
    };
    match selected.await {
        Ok(true) => {}
        Ok(false) => return Ok(false),
        Err(error) if config.enable_ambient_detection_retry => return Err(error),
        Err(error) => {
            warn!(pod = %name, error = format!("{error:#}"), "cannot decide whether the pod is of the ambient mesh");
            return Ok(false);
        }
    }
    let event = AddEvent {
        netns: parameters.netns.clone(),
        pod_name: name.name.clone(),
        pod_namespace: name.namespace.clone(),
        ips: config.addresses().into_iter().map(Into::into).collect(),
    };
    let socket = Path::new(&config.cni_agent_run_dir).join(SOCKET);
    let sent = tokio::time::timeout(EVENT_TIMEOUT, send(&socket, &event)).await;
    sent.unwrap_or_else(|_| Err(anyhow!("no answer within 5 s")))
        .with_context(|| format!("the agent of the node at {}", socket.display()))?;
    Ok(true)
}

/// Sends an event to the agent.
async fn send(socket: &Path, event: &AddEvent) -> Result<()> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let body = Full::<hyper::body::Bytes>::from(serde_json::to_vec(event)?);
    let request = http::Request::post(PATH).header("host", "unix").header("content-type", "application/json");
    let response = sender.send_request(request.body(body)?).await?;
    let status = response.status();
    if !status.is_success() {
        let message = Limited::new(response.into_body(), MAX_MESSAGE_BYTES).collect().await;
        let message = message.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        bail!("{status}: {}", String::from_utf8_lossy(&message));
    }
    Ok(())
}

async fn get_pod(client: &kube::Client, name: &PodName, attempts: u32) -> Result<NodePod> {
    let path = ObjectPath::new("/api/v1", "pods").of(&name.namespace, &name.name, "");
    let mut attempt = 1;
    loop {
        let result = get(client, &path).await;
        match result {
            Ok(object) => return NodePod::read(&object).with_context(|| format!("pod {name} has no UID")),
            Err(error) if attempt == attempts => return Err(error),
            Err(error) => warn!(pod = %name, error = format!("{error:#}"), "will retry"),
        }
        attempt += 1;
        tokio::time::sleep(ATTEMPTS.1).await;
    }
}

async fn get(client: &kube::Client, path: &str) -> Result<Value> {
    let request = http::Request::get(path).body(Vec::new())?;
    sluice_kube::request(client, request)
        .await
        .map_err(sluice_kube::RequestError::from)
        .with_context(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(command: &str, args: &str) -> PluginParameters {
        PluginParameters { command: command.to_owned(), netns: "/nowhere".to_owned(), args: parse_args(args) }
    }

    const CONFIG: &str = r#"{"cniVersion":"0.3.1","name":"istio-cni","type":"istio-cni","pod_namespace":"istio-system",
        "exclude_namespaces":["kube-system"],"cni_agent_run_dir":"/nowhere",
        "prevResult":{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.7/24"}],"dns":{}}}"#;

    #[test]
    fn versions_are_listed() {
        let text = answer(&parameters("VERSION", ""), b"{}").expect("an answer");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert!(value["supportedVersions"].as_array().is_some_and(|versions| versions.contains(&json!("1.0.0"))));
    }

    #[test]
    fn result_of_the_previous_plugin_is_passed_on() {
        for args in [
            "",
            "K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=dns",
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=istio-system;K8S_POD_NAME=istio-cni-node-7",
        ] {
            let text = answer(&parameters("ADD", args), CONFIG.as_bytes()).expect(args);
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(value["ips"][0]["address"], "10.0.0.7/24", "{args}");
        }
        for command in ["DEL", "CHECK"] {
            assert_eq!(answer(&parameters(command, ""), CONFIG.as_bytes()).expect(command), "");
        }
    }

    #[test]
    fn errors_have_the_codes_of_the_specification() {
        let code = |command: &str, input: &str| {
            let error = answer(&parameters(command, ""), input.as_bytes()).expect_err(command);
            (error.0, format!("{:#}", error.1))
        };
        assert_eq!(code("ADD", "{").0, DECODING_FAILED);
        assert_eq!(
            code("ADD", r#"{"cniVersion":"9.0.0"}"#),
            (INVALID_CONFIGURATION, "cniVersion \"9.0.0\" is not supported".to_owned())
        );
        assert_eq!(code("MOVE", "{}").0, INVALID_ENVIRONMENT);
    }

    #[test]
    fn pod_fails_without_the_kubeconfig_of_the_agent() {
        let args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
        let (code, error) = answer(&parameters("ADD", args), CONFIG.as_bytes()).expect_err("no kubeconfig");
        assert_eq!(code, FAILED);
        assert!(error.to_string().contains("/nowhere/istio-cni-kubeconfig"), "{error:#}");
    }
}
