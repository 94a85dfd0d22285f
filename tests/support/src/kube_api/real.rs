//! A real API server with the account of one test.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{account, resource_version, text};
use crate::api_server::Right;
use crate::cluster::{AuditedRequest, Cluster};

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// Whether a request has found its object.
pub(super) fn exists(result: Result<()>) -> Result<bool> {
    let is_absent = |error: &anyhow::Error| match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    };
    match result {
        Err(error) if is_absent(&error) => Ok(false),
        result => result.map(|()| true),
    }
}

/// A cluster, and the account of one test in it.
pub(super) struct RealApi {
    pub(super) cluster: Cluster,
    /// The namespace and the name of the account, and the name of its role.
    name: String,
    token: String,
    forbidden: Mutex<BTreeSet<String>>,
}

impl RealApi {
    pub(super) async fn new(cluster: Cluster, name: &str) -> Result<Self> {
        cluster.create_namespace(name, json!({})).await?;
        let metadata = json!({"name": name, "namespace": name});
        cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await?;
        let token = cluster.create_token((name, name), None, None).await?;
        let real = Self { cluster, name: name.to_owned(), token, forbidden: Mutex::default() };
        real.write_role(&BTreeSet::new()).await?;
        let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": name});
        real.bind("ClusterRoleBinding", json!({"name": name}), ("ClusterRole", name), &subject).await?;
        account::until_permitted(&real.cluster, &real.user(), "secrets", true).await?;
        Ok(real)
    }

    fn user(&self) -> String {
        format!("system:serviceaccount:{0}:{0}", self.name)
    }

    pub(super) fn kubeconfig(&self, address: SocketAddr) -> Value {
        self.cluster.kubeconfig(address, &self.token)
    }

    async fn write_role(&self, forbidden: &BTreeSet<String>) -> Result<()> {
        let rules = account::rules(forbidden);
        let metadata = json!({"name": self.name});
        let role = json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": metadata, "rules": rules});
        self.cluster.apply(&role).await.map(drop)
    }

    async fn bind(&self, kind: &str, metadata: Value, role: (&str, &str), subject: &Value) -> Result<()> {
        let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1});
        let binding = json!({
            "apiVersion": RBAC, "kind": kind, "metadata": metadata, "roleRef": reference, "subjects": [subject],
        });
        self.cluster.apply(&binding).await.map(drop)
    }

    pub(super) async fn forbid(&self, resource: &str, is_forbidden: bool) -> Result<()> {
        let mut forbidden = self.forbidden.lock().await;
        if is_forbidden {
            forbidden.insert(resource.to_owned());
        } else {
            forbidden.remove(resource);
        }
        self.write_role(&forbidden).await?;
        account::until_permitted(&self.cluster, &self.user(), resource, !is_forbidden).await
    }

    /// A kubeconfig of another account in the namespace of the account.
    pub(super) async fn add_account(&self, account: &str, address: SocketAddr) -> Result<Value> {
        let metadata = json!({"name": account, "namespace": self.name});
        self.cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await?;
        let token = self.cluster.create_token((&self.name, account), None, None).await?;
        Ok(self.cluster.kubeconfig(address, &token))
    }

    pub(super) async fn permit(&self, account: &str, is_permitted: bool) -> Result<()> {
        let name = format!("{}-{account}", self.name);
        if is_permitted {
            let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": self.name});
            self.bind("ClusterRoleBinding", json!({"name": name}), ("ClusterRole", &self.name), &subject).await?;
        } else {
            self.cluster.delete(RBAC, "ClusterRoleBinding", "", &name).await?;
        }
        let user = format!("system:serviceaccount:{}:{account}", self.name);
        account::until_permitted(&self.cluster, &user, "secrets", is_permitted).await
    }

    pub(super) async fn allow_reading_secrets(&self, namespace: &str, service_account: &str) -> Result<()> {
        let metadata = json!({"name": service_account, "namespace": namespace});
        let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}]);
        let role = json!({"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": rules});
        self.cluster.apply(&role).await?;
        let subject = json!({"kind": "ServiceAccount", "name": service_account, "namespace": namespace});
        self.bind("RoleBinding", metadata, ("Role", service_account), &subject).await
    }

    pub(super) async fn pod_token(
        &self,
        namespace: &str,
        service_account: &str,
        pod: &str,
    ) -> Result<(String, String)> {
        let metadata = json!({"name": service_account, "namespace": namespace});
        self.cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await?;
        let created = self
            .cluster
            .apply(&json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": namespace},
                "spec": {"serviceAccountName": service_account, "containers": [{"name": "app", "image": "app"}]},
            }))
            .await?;
        let uid = text(&created, "/metadata/uid").to_owned();
        let account = (namespace, service_account);
        let token = self.cluster.create_token(account, Some("istio-ca"), Some((pod, &uid))).await?;
        Ok((token, uid))
    }

    /// Applies an object, then its status. Returns the last resourceVersion.
    pub(super) async fn apply(&self, object: &Value) -> Result<String> {
        let mut object = object.clone();
        let status = object.as_object_mut().and_then(|fields| fields.remove("status"));
        let stored = self.cluster.apply(&object).await?;
        let Some(status) = status else { return resource_version(&stored) };
        let (api_version, kind) = (text(&object, "/apiVersion"), text(&object, "/kind"));
        let (namespace, name) = (text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
        self.cluster.write_status(api_version, kind, (namespace, name), status).await?;
        let stored = self.cluster.get(api_version, kind, namespace, name).await?;
        resource_version(&stored.context("the object is there")?)
    }

    /// The watch cache of the API server is in its memory, so it starts again.
    pub(super) async fn compact(&self) -> Result<()> {
        self.cluster.kill_api_server();
        self.cluster.compact().await?;
        self.cluster.start_api_server().await
    }

    /// The requests of all accounts of the test.
    fn requests(&self) -> Vec<AuditedRequest> {
        let prefix = format!("system:serviceaccount:{}:", self.name);
        self.cluster.audited_of(&prefix).expect("read the audit log")
    }

    pub(super) fn count(&self, is_meant: impl Fn(&AuditedRequest) -> bool) -> usize {
        self.requests().iter().filter(|request| is_meant(request)).count()
    }

    pub(super) fn used_rights(&self) -> BTreeSet<Right> {
        let requests = self.requests().into_iter().filter(|request| !request.resource.is_empty());
        requests.map(|it| (it.namespace, it.group, it.resource, it.verb)).collect()
    }
}
