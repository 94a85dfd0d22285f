//! An API server for tests that run with the fake one and with a real one.
//!
//! Each test has a service account of its own, whose requests are counted and whose rights can be taken away, and a proxy
//! between it and the server, which disconnects it. The objects of a test are in namespaces of its own, because tests share a
//! real control plane.

mod account;
mod real;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use sluice_parse::{KINDS, KindInfo};

use crate::api_server::{ApiServer, ResourceKind, Right};
use crate::cluster::Cluster;
use crate::fault_proxy::FaultProxy;
use real::RealApi;

/// Numbers the API servers of tests in this process.
static NUMBER: AtomicUsize = AtomicUsize::new(1);

/// Which server answers.
enum Server {
    Fake(ApiServer),
    Real(RealApi),
}

/// An API server, and an account that uses it. Methods panic where the server does not do as the test says.
pub struct KubeApi {
    server: Server,
    proxy: FaultProxy,
    number: usize,
}

/// How requests reach the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// Through the proxy of the test.
    Proxied,
    /// Without the proxy.
    Direct,
}

/// The table entry of an Istio kind.
fn custom_kind(kind: &str) -> &'static KindInfo {
    let is_meant = |info: &&KindInfo| info.name == kind && info.group.ends_with("istio.io");
    KINDS.iter().find(is_meant).unwrap_or_else(|| panic!("{kind} is no kind of Istio"))
}

fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// A text of an object.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl KubeApi {
    /// The fake server.
    ///
    /// # Errors
    /// No port is free.
    pub async fn fake(server: ApiServer) -> Result<Self> {
        let proxy = FaultProxy::start(server.address()).await?;
        Ok(Self { server: Server::Fake(server), proxy, number: NUMBER.fetch_add(1, Ordering::Relaxed) })
    }

    /// A real server, with a new account.
    ///
    /// # Errors
    /// The account cannot be created.
    pub async fn real(cluster: Cluster) -> Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let proxy = FaultProxy::start(cluster.address()).await?;
        let real = RealApi::new(cluster, &format!("suite-{number}")).await?;
        Ok(Self { server: Server::Real(real), proxy, number })
    }

    /// The name of this test for a name that all tests share otherwise.
    #[must_use]
    pub fn own_name(&self, name: &str) -> String {
        format!("{name}-{}", self.number)
    }

    /// Creates a namespace whose name begins with `name`, and returns its name.
    pub async fn namespace(&self, name: &str) -> String {
        let own = self.own_name(name);
        self.create_namespace(&own).await;
        own
    }

    /// Creates a namespace of exactly this name, in a server that the test does not share, or of a name that only it uses.
    pub async fn create_namespace(&self, name: &str) {
        match &self.server {
            Server::Fake(_) => {
                self.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
            }
            Server::Real(real) => real.cluster.create_namespace(name, json!({})).await.expect("create a namespace"),
        }
    }

    /// The proxy between the account and the server.
    #[must_use]
    pub fn proxy(&self) -> &FaultProxy {
        &self.proxy
    }

    /// A kubeconfig of the account.
    #[must_use]
    pub fn kubeconfig(&self, route: Route) -> Value {
        match &self.server {
            Server::Fake(server) => {
                let mut kubeconfig = server.kubeconfig(json!({}));
                if route == Route::Proxied {
                    kubeconfig["clusters"][0]["cluster"]["server"] = format!("http://{}", self.proxy.address()).into();
                }
                kubeconfig
            }
            Server::Real(real) => real.kubeconfig(match route {
                Route::Proxied => self.proxy.address(),
                Route::Direct => real.cluster.address(),
            }),
        }
    }

    /// The settings of a client of the account.
    pub async fn config(&self, route: Route) -> kube::Config {
        let kubeconfig: Kubeconfig = serde_json::from_value(self.kubeconfig(route)).expect("a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        config.expect("settings of a client")
    }

    /// Creates or updates an object with its status, and returns its resourceVersion.
    pub async fn apply(&self, object: Value) -> String {
        match &self.server {
            Server::Fake(server) => server.apply(object).to_string(),
            Server::Real(real) => real.apply(&object).await.expect("apply an object"),
        }
    }

    /// An object, if it exists. The namespace of cluster-scoped kinds is empty.
    pub async fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        match &self.server {
            Server::Fake(server) => {
                let group = group_of(api_version);
                server.get(group, server.plural(group, kind)?, namespace, name)
            }
            Server::Real(real) => real.cluster.get(api_version, kind, namespace, name).await.expect("read an object"),
        }
    }

    /// All objects of a kind in all namespaces.
    pub async fn list(&self, api_version: &str, kind: &str) -> Vec<Value> {
        match &self.server {
            Server::Fake(server) => {
                let group = group_of(api_version);
                server.plural(group, kind).map(|plural| server.list(group, plural)).unwrap_or_default()
            }
            Server::Real(real) => real.cluster.list(api_version, kind).await.expect("list objects"),
        }
    }

    /// Replaces fields of the status of an object, as its controller does. Returns whether the object exists.
    pub async fn write_status(
        &self,
        api_version: &str,
        kind: &str,
        (namespace, name): (&str, &str),
        status: Value,
    ) -> bool {
        match &self.server {
            Server::Fake(server) => {
                let Some(mut object) = self.get(api_version, kind, namespace, name).await else { return false };
                for (field, value) in status.as_object().into_iter().flatten() {
                    object["status"][field] = value.clone();
                }
                object["apiVersion"] = api_version.into();
                server.apply(object);
                true
            }
            Server::Real(real) => {
                let written = real.cluster.write_status(api_version, kind, (namespace, name), status).await;
                real::exists(written).expect("write a status")
            }
        }
    }

    /// Deletes an object.
    pub async fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) {
        match &self.server {
            Server::Fake(server) => {
                let plural = server.plural(group_of(api_version), kind);
                server.delete(plural.unwrap_or_else(|| panic!("there is no kind {kind}")), namespace, name);
            }
            Server::Real(real) => {
                real.cluster.delete(api_version, kind, namespace, name).await.expect("delete an object");
            }
        }
    }

    /// Installs the CRD of an Istio kind.
    pub async fn define(&self, kind: &str) {
        let info = custom_kind(kind);
        match &self.server {
            Server::Fake(server) => server.define(resource_kind(info), true),
            Server::Real(real) => {
                let names = [&*format!("{}.{}", info.plural, info.group)];
                real.cluster.install_crds("istio.yaml", &names).await.expect("install a CRD");
            }
        }
    }

    /// Removes the CRD of an Istio kind with its objects.
    pub async fn undefine(&self, kind: &str) {
        let info = custom_kind(kind);
        match &self.server {
            Server::Fake(server) => server.define(resource_kind(info), false),
            Server::Real(real) => {
                let names = [&*format!("{}.{}", info.plural, info.group)];
                real.cluster.remove_crds("istio.yaml", &names).await.expect("remove a CRD");
            }
        }
    }

    /// Adds an account without any rights, and returns its kubeconfig.
    pub async fn add_account(&self, name: &str) -> Value {
        match &self.server {
            Server::Fake(server) => {
                server.accept_token(name, false);
                let mut kubeconfig = self.kubeconfig(Route::Proxied);
                kubeconfig["users"][0]["user"] = json!({"token": name});
                kubeconfig
            }
            Server::Real(real) => real.add_account(name, self.proxy.address()).await.expect("create an account"),
        }
    }

    /// Gives an added account the rights of the account of the test, or takes them away.
    pub async fn permit(&self, account: &str, permitted: bool) {
        match &self.server {
            Server::Fake(server) => server.accept_token(account, permitted),
            Server::Real(real) => real.permit(account, permitted).await.expect("change the rights of an account"),
        }
    }

    /// Forbids the account a resource, such as `pods`, or permits it again.
    pub async fn forbid(&self, resource: &str, forbidden: bool) {
        match &self.server {
            Server::Fake(server) => server.forbid(resource, forbidden),
            Server::Real(real) => real.forbid(resource, forbidden).await.expect("change the rights of the account"),
        }
    }

    /// Permits a service account to list the Secrets of its namespace.
    pub async fn allow_reading_secrets(&self, namespace: &str, service_account: &str) {
        match &self.server {
            Server::Fake(server) => server.allow_reading_secrets(namespace, service_account, true),
            Server::Real(real) => {
                real.allow_reading_secrets(namespace, service_account).await.expect("create a role");
            }
        }
    }

    /// Creates a pod with a service account, and returns its token for the audience `istio-ca`, and the UID of the pod.
    pub async fn pod_token(&self, namespace: &str, service_account: &str, pod: &str) -> (String, String) {
        match &self.server {
            Server::Fake(server) => {
                let (token, uid) = (self.own_name(&format!("token-of-{pod}")), self.own_name(&format!("uid-of-{pod}")));
                let extra = json!({
                    "authentication.kubernetes.io/pod-name": [pod], "authentication.kubernetes.io/pod-uid": [uid],
                });
                let user = json!({
                    "username": format!("system:serviceaccount:{namespace}:{service_account}"),
                    "groups": ["system:serviceaccounts"], "extra": extra,
                });
                server.review(&token, json!({"authenticated": true, "audiences": ["istio-ca"], "user": user}));
                (token, uid)
            }
            Server::Real(real) => real.pod_token(namespace, service_account, pod).await.expect("create a token"),
        }
    }

    /// Forgets the history of changes: watches of earlier versions expire. A real server is killed and started again, so it
    /// must not be shared.
    pub async fn compact(&self) {
        match &self.server {
            Server::Fake(server) => server.compact(),
            Server::Real(real) => real.compact().await.expect("compact the history"),
        }
    }

    /// Closes all connections of the account.
    pub fn disconnect(&self) {
        self.proxy.close_connections();
    }

    /// Number of requests of the account, and of added ones, with a verb on a resource. A streaming list counts as a `watch`.
    #[must_use]
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        match &self.server {
            Server::Fake(server) => server.count(verb, resource),
            Server::Real(real) => real.count(|it| it.verb == verb && it.resource == resource),
        }
    }

    /// Number of lists of a resource that the server has begun to answer: pages, and streaming lists.
    #[must_use]
    pub fn lists(&self, resource: &str) -> usize {
        match &self.server {
            Server::Fake(server) => server.count("list", resource) + server.streamed_lists(resource),
            Server::Real(real) => real.count(|it| {
                let is_streamed = it.code == 200 && it.uri.contains("sendInitialEvents=true");
                it.resource == resource && (it.verb == "list" || it.verb == "watch" && is_streamed)
            }),
        }
    }

    /// The rights that the requests of the account used.
    #[must_use]
    pub fn used_rights(&self) -> BTreeSet<Right> {
        match &self.server {
            Server::Fake(server) => {
                server.requests().into_keys().map(|it| (it.namespace, it.group, it.resource, it.verb)).collect()
            }
            Server::Real(real) => real.used_rights(),
        }
    }
}

fn resource_kind(info: &KindInfo) -> ResourceKind {
    ResourceKind { group: info.group, versions: info.versions.to_vec(), name: info.name, plural: info.plural }
}

/// Reads the version of an object.
fn resource_version(object: &Value) -> Result<String> {
    let version = text(object, "/metadata/resourceVersion");
    (!version.is_empty()).then(|| version.to_owned()).context("the object has a resourceVersion")
}
