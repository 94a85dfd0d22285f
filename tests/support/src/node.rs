//! A node of a cluster: pods that controllers create run as their templates say, each in a network namespace.
//!
//! It has the work of a scheduler, of a kubelet (processes, environment, volumes, probes, termination, statuses) and of
//! kube-proxy for chosen Services. A pod that asks for something that is not supported here is an error, with the field.

mod container;
mod exec;
mod fields;
mod image;
mod kubelet;
mod load_balancer;
mod volumes;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::{Method, Request, header};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::pods::balancer::Balancer;
use crate::pods::network::PodNet;
use crate::pods::pod_set::PodSet;
use container::{Container, PodContext};
pub use image::Image;
use kubelet::KubeletServer;
use load_balancer::LoadBalancers;

/// The name of the node.
const NAME: &str = "node-of-the-test";
/// Time between two comparisons of the pods of the cluster with those that run.
const PERIOD: Duration = Duration::from_millis(50);

/// The node. Its pods end when it is dropped.
pub struct TestNode<'c> {
    cluster: &'c Cluster,
    namespaces: Vec<&'static str>,
    images: Vec<Image>,
    services: Vec<ServicePort>,
    load_balancers: Option<LoadBalancers>,
    kubelet: KubeletServer,
    state: Mutex<State>,
    api_server: Balancer,
    directory: TempDir,
}

/// A port of a Service that pods and the test reach at the address of a balancer.
struct ServicePort {
    namespace: &'static str,
    name: &'static str,
    port: u16,
    balancer: Balancer,
}

#[derive(Default)]
struct State {
    /// Networks without a pod. The one that was used last is used again last.
    networks: VecDeque<PodNet>,
    running: BTreeMap<String, RunningPod>,
    ended: Vec<EndedPod>,
}

/// A running pod.
struct RunningPod {
    namespace: String,
    name: String,
    net: PodNet,
    containers: Vec<Container>,
    /// Whether an init container may have written rules into its network.
    has_rules: bool,
    /// What was reported last.
    is_ready: Option<bool>,
    is_terminating: bool,
}

/// A pod that ran.
#[derive(Clone, Debug)]
pub struct EndedPod {
    /// Its name.
    pub name: String,
    /// The exit code after the signal to terminate, if it ended in its grace period and not by a signal: of several containers the first
    /// one that is not 0.
    pub code: Option<i32>,
    /// What it wrote.
    pub log: String,
}

impl<'c> TestNode<'c> {
    /// A node with networks for this number of pods at a time, which are those without a node. `namespaces` are the namespaces of
    /// the pods; without one, those of all.
    ///
    /// # Errors
    /// The networks cannot be made, or the API server rejects the Node.
    pub async fn new(
        cluster: &'c Cluster,
        namespaces: &[&'static str],
        pods: &mut PodSet,
        networks: usize,
        images: Vec<Image>,
    ) -> Result<Self> {
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})).await?;
        let kubelet = KubeletServer::start().await?;
        let status = json!({
            "addresses": [{"type": "InternalIP", "address": kubelet.address.ip()}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.address.port()}},
        });
        cluster.write_status("v1", "Node", ("", NAME), status).await?;
        let api_server = Balancer::start(SocketAddr::new(pods.host_ip().into(), 0)).await?;
        api_server.set_targets([cluster.address()]);
        let networks = (0..networks).map(|_| pods.add_network()).collect::<Result<_>>()?;
        let directory = tempfile::Builder::new().prefix("sluice-node-").tempdir().context("make a directory")?;
        // Containers run as another user.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let state = Mutex::new(State { networks, ..State::default() });
        let namespaces = namespaces.to_vec();
        Ok(Self {
            cluster,
            namespaces,
            images,
            services: Vec::new(),
            load_balancers: None,
            kubelet,
            state,
            api_server,
            directory,
        })
    }

    /// Forwards connections to an address to the ready endpoints of a port of a Service.
    ///
    /// # Errors
    /// It cannot listen on the address.
    pub async fn serve(
        &mut self,
        (namespace, name): (&'static str, &'static str),
        port: u16,
        address: SocketAddr,
    ) -> Result<SocketAddr> {
        let balancer = Balancer::start(address).await?;
        let address = balancer.address;
        self.services.push(ServicePort { namespace, name, port, balancer });
        Ok(address)
    }

    /// Gives each Service of type LoadBalancer an address of this machine, at which its ready endpoints are reached. `network` is
    /// unique among the tests that run.
    pub fn balance_loads(&mut self, network: Ipv4Addr) {
        self.load_balancers = Some(LoadBalancers::new(network));
    }

    /// Serves `kubectl exec` by a program.
    ///
    /// # Errors
    /// The program does not start.
    pub async fn serve_commands(&self, program: &Path) -> Result<()> {
        self.kubelet.serve_commands(program).await
    }

    /// Runs the pods of the cluster while `test` runs. Returns its result.
    ///
    /// # Errors
    /// The test fails, or a pod ends by itself or cannot run. The message has the end of its log.
    pub async fn during<T>(&self, test: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            result = test => result.with_context(|| self.log_tails()),
            stopped = self.run() => match stopped {
                Err(error) => Err(error.context(self.log_tails())),
                Ok(never) => match never {},
            },
        }
    }

    /// The pods that have ended so far.
    #[must_use]
    pub fn ended(&self) -> Vec<EndedPod> {
        self.state().ended.clone()
    }

    /// The number of pods that run, ready or not.
    #[must_use]
    pub fn running(&self) -> usize {
        self.state().running.len()
    }

    /// The names and addresses of the pods that are ready.
    #[must_use]
    pub fn ready(&self) -> BTreeMap<String, IpAddr> {
        let state = self.state();
        let ready = state.running.values().filter(|pod| pod.is_ready == Some(true) && !pod.is_terminating);
        ready.map(|pod| (pod.name.clone(), pod.net.ip.into())).collect()
    }

    /// The environment of the first container of a running pod.
    #[must_use]
    pub fn environment(&self, pod: &str) -> BTreeMap<String, String> {
        let state = self.state();
        let pod = state.running.values().find(|running| running.name == pod);
        pod.and_then(|pod| pod.containers.first()).map(|it| it.environment.clone()).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_tails(&self) -> String {
        let state = self.state();
        let containers = state.running.values().flat_map(|pod| pod.containers.iter().map(|it| (&pod.name, it)));
        let tails = containers.map(|(pod, it)| format!("log of {} of {pod}:\n{}", it.name, it.log_tail()));
        tails.collect::<Vec<_>>().join("\n")
    }

    async fn run(&self) -> Result<Infallible> {
        loop {
            let pods = self.pods().await?;
            for (uid, pod) in &pods {
                let is_running = self.state().running.contains_key(uid);
                match (is_running, pod["metadata"]["deletionTimestamp"].is_string()) {
                    (false, false) => unless_gone(self.start(uid, pod).await)?,
                    (false, true) => unless_gone(self.forget(pod).await)?,
                    (true, true) => self.terminate(uid)?,
                    (true, false) => {}
                }
            }
            self.check_running(&pods).await?;
            for service in &self.services {
                service.balancer.set_targets(self.endpoints((service.namespace, service.name), service.port).await?);
            }
            if let Some(load_balancers) = &self.load_balancers {
                load_balancers.follow(self).await?;
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// The pods of the node, and those without one, by UID.
    async fn pods(&self) -> Result<BTreeMap<String, Value>> {
        let mut pods = BTreeMap::new();
        for pod in self.list("/api/v1/pods").await? {
            let is_selected = self.namespaces.is_empty() || self.namespaces.contains(&key(&pod)?.0);
            if is_selected && pod["spec"]["nodeName"].as_str().is_none_or(|node| node == NAME) {
                pods.insert(text(&pod["metadata"]["uid"])?.to_owned(), pod);
            }
        }
        Ok(pods)
    }

    async fn list(&self, uri: &str) -> Result<Vec<Value>> {
        let request = Request::get(uri).body(Vec::new())?;
        let mut list: Value = self.cluster.client().request(request).await.with_context(|| format!("list {uri}"))?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Binds a pod to the node, and starts its containers, once the objects that its volumes need exist.
    async fn start(&self, uid: &str, pod: &Value) -> Result<()> {
        let (namespace, name) = key(pod)?;
        let mut pod = pod.clone();
        if !pod["spec"]["nodeName"].is_string() {
            let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
            let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                                 "target": {"apiVersion": "v1", "kind": "Node", "name": NAME}});
            let request = Request::builder().method(Method::POST).uri(uri);
            let request = request.header(header::CONTENT_TYPE, "application/json");
            let request = request.body(binding.to_string().into_bytes())?;
            self.cluster.client().request::<Value>(request).await.with_context(|| format!("bind pod {name}"))?;
            pod["spec"]["nodeName"] = NAME.into();
        }
        let directory = self.directory.path().join(uid);
        if !volumes::write(self.cluster, &pod, &directory).await.with_context(|| format!("volumes of pod {name}"))? {
            return Ok(());
        }
        let net = self.state().networks.pop_front().context("there is a network for one more pod")?;
        for sysctl in pod["spec"]["securityContext"]["sysctls"].as_array().into_iter().flatten() {
            net.set_kernel_parameter(text(&sysctl["name"])?, text(&sysctl["value"])?)?;
        }
        let context = PodContext { pod: &pod, net: &net, directory: &directory };
        let init = pod["spec"]["initContainers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut containers = Vec::new();
        for spec in init.iter().chain(pod["spec"]["containers"].as_array().into_iter().flatten()) {
            let container = self.container(context, spec).await;
            let container = container.with_context(|| format!("start {} of pod {name}", spec["name"]))?;
            if init.iter().any(|it| std::ptr::eq(it, spec)) && spec["restartPolicy"] != "Always" {
                container.succeed().await.with_context(|| format!("{} of pod {name}", spec["name"]))?;
            } else {
                let key = (namespace.to_owned(), name.to_owned(), container.name.clone());
                self.kubelet.set_entry(key, Some(container.entry.clone()));
                containers.push(container);
            }
        }
        let (namespace, name, has_rules) = (namespace.to_owned(), name.to_owned(), !init.is_empty());
        let running = RunningPod { namespace, name, net, containers, has_rules, is_ready: None, is_terminating: false };
        self.state().running.insert(uid.to_owned(), running);
        Ok(())
    }

    /// Starts a container.
    async fn container(&self, context: PodContext<'_>, spec: &Value) -> Result<Container> {
        let image = text(&spec["image"])?;
        let image = self.images.iter().find(|it| image.contains(it.name));
        let image = image.with_context(|| format!("there is no program for the image {}", spec["image"]))?;
        let kubeconfig = match image.reads_cluster {
            true => Some(self.kubeconfig(context.pod, context.directory).await?),
            false => None,
        };
        Container::start(context, spec, image, kubeconfig.as_deref())
    }

    /// Writes what a pod needs to reach the API server with the token of its service account.
    async fn kubeconfig(&self, pod: &Value, directory: &Path) -> Result<PathBuf> {
        let (namespace, _) = key(pod)?;
        let account = text(&pod["spec"]["serviceAccountName"])?;
        let token = self.cluster.create_token((namespace, account), None, Some(identity(pod)?)).await?;
        let mut kubeconfig = self.cluster.kubeconfig(self.api_server.address, &token);
        // The certificate of the API server has its own address only.
        kubeconfig["clusters"][0]["cluster"]["tls-server-name"] = self.cluster.address().ip().to_string().into();
        let file = directory.join("kubeconfig");
        std::fs::write(&file, kubeconfig.to_string()).context("write the kubeconfig")?;
        container::give(&file)?;
        Ok(file)
    }

    /// Signals the containers of a pod that it is deleted.
    fn terminate(&self, uid: &str) -> Result<()> {
        let mut state = self.state();
        let pod = state.running.get_mut(uid).context("the pod runs")?;
        if !pod.is_terminating {
            pod.is_terminating = true;
            for container in &mut pod.containers {
                container.terminate()?;
            }
        }
        Ok(())
    }

    /// Removes a deleted pod that does not run.
    async fn forget(&self, pod: &Value) -> Result<()> {
        let (namespace, name) = key(pod)?;
        self.cluster.delete("v1", "Pod", namespace, name).await
    }

    /// Reports which pods are ready, and the end of those that are terminating or that no longer exist.
    async fn check_running(&self, pods: &BTreeMap<String, Value>) -> Result<()> {
        let uids: Vec<String> = self.state().running.keys().cloned().collect();
        for uid in uids {
            // The lock is not held while the API server answers.
            let (ends, key, address, probes, reported, is_terminating) = {
                let mut state = self.state();
                let pod = state.running.get_mut(&uid).context("the pod runs")?;
                let key = (pod.namespace.clone(), pod.name.clone());
                let mut ends = Vec::new();
                for container in &mut pod.containers {
                    ends.extend(container.end()?);
                    let key = (key.0.clone(), key.1.clone(), container.name.clone());
                    self.kubelet.observe(key, container.log_file())?;
                }
                let probes: Vec<_> = pod.containers.iter().filter_map(|it| it.probe.clone()).collect();
                let is_ended = ends.len() == pod.containers.len();
                ensure!(ends.is_empty() || pod.is_terminating, "a container of pod {} has ended: {ends:?}", key.1);
                (is_ended.then_some(ends), key, pod.net.ip, probes, pod.is_ready, pod.is_terminating)
            };
            let key = (key.0.as_str(), key.1.as_str());
            if let Some(ends) = ends {
                let pod = self.state().running.remove(&uid).context("the pod ran")?;
                for container in &pod.containers {
                    self.kubelet.set_entry((pod.namespace.clone(), pod.name.clone(), container.name.clone()), None);
                }
                if pod.has_rules {
                    pod.net.remove_rules()?;
                }
                let code = ends.into_iter().find(|code| *code != Some(0)).unwrap_or(Some(0));
                let log = pod.containers.iter().map(Container::log).collect();
                self.state().networks.push_back(pod.net);
                self.state().ended.push(EndedPod { name: pod.name.clone(), code, log });
                if pods.contains_key(&uid) {
                    unless_gone(self.cluster.delete("v1", "Pod", key.0, key.1).await)?;
                }
                continue;
            }
            let mut is_ready = !is_terminating;
            for (port, path) in probes {
                let answer = crate::server::get(SocketAddr::new(address.into(), port), &path);
                is_ready = is_ready && answer.await.is_ok_and(|(status, _)| (200..400).contains(&status));
            }
            if reported != Some(is_ready) && pods.contains_key(&uid) {
                unless_gone(self.cluster.report_pod(key, &address.to_string(), is_ready).await)?;
                if let Some(pod) = self.state().running.get_mut(&uid) {
                    pod.is_ready = Some(is_ready);
                }
            }
        }
        Ok(())
    }

    /// The ready endpoints of a port of a Service.
    async fn endpoints(&self, (namespace, name): (&str, &str), port: u16) -> Result<Vec<SocketAddr>> {
        let object = self.cluster.get("v1", "Service", namespace, name).await?.unwrap_or_default();
        let port = object["spec"]["ports"].as_array().into_iter().flatten().find(|it| it["port"] == port);
        let Some(port) = port else { return Ok(Vec::new()) };
        let uri = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}"
        );
        let mut endpoints = Vec::new();
        for slice in self.list(&uri).await? {
            let ports = slice["ports"].as_array().into_iter().flatten();
            let numbers: Vec<u16> = ports
                .filter(|it| it["name"] == port["name"])
                .filter_map(|it| it["port"].as_u64()?.try_into().ok())
                .collect();
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                let addresses = endpoint["addresses"].as_array().into_iter().flatten();
                if endpoint["conditions"]["ready"] == true {
                    let addresses = addresses.filter_map(|it| it.as_str()?.parse::<IpAddr>().ok());
                    endpoints
                        .extend(addresses.flat_map(|ip| numbers.iter().map(move |port| SocketAddr::new(ip, *port))));
                }
            }
        }
        Ok(endpoints)
    }
}

/// Another client may delete an object between the list of objects and a request about it.
fn unless_gone(result: Result<()>) -> Result<()> {
    let is_gone =
        |error: &anyhow::Error| matches!(error.downcast_ref(), Some(kube::Error::Api(it)) if it.is_not_found());
    match result {
        Err(error) if is_gone(&error) => Ok(()),
        result => result,
    }
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("the object has the field")
}

/// Namespace and name of an object.
fn key(object: &Value) -> Result<(&str, &str)> {
    Ok((text(&object["metadata"]["namespace"])?, text(&object["metadata"]["name"])?))
}

/// Name and UID of an object.
fn identity(object: &Value) -> Result<(&str, &str)> {
    Ok((text(&object["metadata"]["name"])?, text(&object["metadata"]["uid"])?))
}
