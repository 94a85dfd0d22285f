//! `sluicectl install` and its family with a real API server. A node runs the pods of the control plane.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::binary::workspace_binary;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node::TestNode;
use sluice_testkit::pods::cluster_mesh::ClusterMesh;
use sluice_testkit::pods::envoy;
use sluice_testkit::pods::network::pods_are_permitted;
use tokio::process::Child;

use crate::charts::{label, objects};
use crate::fixture::{SYSTEM, manifest, programs, until};
use crate::installation::existing;
use crate::takeover::istiod;
use crate::upgrade::{helm, images};
use crate::webhooks::until_webhooks_are_called;

/// Values of all installations: one replica, which no autoscaler changes, and a policy that an upgrade removes.
const VALUES: &str = "
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
metadata: {name: mesh, namespace: istio-system}
spec:
  profile: minimal
  values:
    pilot: {autoscaleEnabled: false, traceSampling: 1}
    global: {networkPolicy: {enabled: true}}
";

/// `sluicectl` with the kubeconfig of an administrator.
struct Sluicectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
    charts: PathBuf,
    file: PathBuf,
    _directory: tempfile::TempDir,
}

/// The result of a command.
#[derive(Debug)]
struct Finished {
    code: Option<i32>,
    out: String,
    errors: String,
}

impl Finished {
    #[track_caller]
    fn expect(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.errors);
        for text in texts {
            assert!(self.out.contains(text) || self.errors.contains(text), "{text}:\n{}\n{}", self.out, self.errors);
        }
    }
}

/// Waits for the end of a command.
async fn finish(child: Child) -> Result<Finished> {
    let output = child.wait_with_output().await.context("run sluicectl")?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).context("the output is UTF-8");
    Ok(Finished { code: output.status.code(), out: text(output.stdout)?, errors: text(output.stderr)? })
}

impl Sluicectl {
    fn new(cluster: &Cluster, programs: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut render = std::process::Command::new(manifest("manifests/render"));
        let rendered = render.arg(directory.path()).env("SLUICE_CLUSTER", programs).output()?;
        ensure!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
        let file = directory.path().join("mesh.yaml");
        std::fs::write(&file, VALUES)?;
        Ok(Self {
            binary: workspace_binary("sluicectl")?,
            kubeconfig: cluster.admin_kubeconfig(),
            charts: directory.path().join("charts"),
            file,
            _directory: directory,
        })
    }

    /// Starts a command.
    fn start(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = tokio::process::Command::new(&self.binary);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("start sluicectl")
    }

    async fn run(&self, arguments: &[&str]) -> Result<Finished> {
        finish(self.start(arguments)?).await
    }

    /// The arguments of a command with the file of the test, and further ones.
    fn arguments(&self, command: &str, further: &[&str]) -> Vec<String> {
        let [kubeconfig, charts, file] =
            [&self.kubeconfig, &self.charts, &self.file].map(|path| path.display().to_string());
        let own = [command, "--kubeconfig", &kubeconfig, "--manifests", &charts, "-f", &file];
        own.iter().chain(further).map(|argument| (*argument).to_owned()).collect()
    }

    async fn with_file(&self, command: &str, further: &[&str]) -> Result<Finished> {
        let arguments = self.arguments(command, further);
        self.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Waits until an installation is as rendered: the control plane sets the failure policy of validation once it is called.
    async fn is_verified(&self, further: &[&str]) -> Result<()> {
        until("the installation is as rendered", async || {
            Ok(self.with_file("verify-install", further).await?.code == Some(0))
        })
        .await
    }

    async fn uninstall(&self, arguments: &[&str]) -> Result<Finished> {
        let kubeconfig = self.kubeconfig.display().to_string();
        let mut all = vec!["uninstall", "--kubeconfig", &kubeconfig];
        all.extend(arguments);
        self.run(&all).await
    }

    /// The objects that an installation would apply.
    async fn manifest(&self, arguments: &[&str]) -> Result<String> {
        let [charts, file] = [&self.charts, &self.file].map(|path| path.display().to_string());
        let mut all = vec!["manifest", "generate", "--manifests", &charts, "-f", &file];
        all.extend(arguments);
        let finished = self.run(&all).await?;
        finished.expect(0, &[]);
        Ok(finished.out)
    }
}

/// The stored objects of a manifest, without what controllers write.
async fn stored(cluster: &Cluster, text: &str) -> Result<BTreeMap<String, Value>> {
    let mut stored = BTreeMap::new();
    for object in objects(text)? {
        let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (part(&object["apiVersion"]), part(&object["kind"]));
        let (namespace, name) = (part(&object["metadata"]["namespace"]), part(&object["metadata"]["name"]));
        let Some(mut found) = cluster.get(&version, &kind, &namespace, &name).await? else { continue };
        found.as_object_mut().map(|fields| fields.remove("status"));
        let metadata = found["metadata"].as_object_mut().context("it has metadata")?;
        metadata.retain(|name, _| ["labels", "annotations", "name", "uid"].contains(&name.as_str()));
        metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
            .map(|it| it.remove("deployment.kubernetes.io/revision"));
        stored.insert(label(&object), found);
    }
    Ok(stored)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_is_made_changed_undone_and_removed() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    let cluster = Cluster::start(&programs).await?;
    let sluicectl = Sluicectl::new(&cluster, &programs)?;
    let mut mesh = ClusterMesh::new(&cluster)?;
    let programs = images(&mesh.pods)?;
    let node = TestNode::new(&cluster, &[SYSTEM], &mut mesh.pods, 8, programs).await?;
    let text = sluicectl.manifest(&[]).await?;
    node.during(async {
        sluicectl.with_file("precheck", &[]).await?.expect(0, &["0 errors, 0 warnings"]);
        sluicectl.with_file("upgrade", &["-y"]).await?.expect(1, &["there is no installation that could be upgraded"]);
        sluicectl.with_file("install", &[]).await?.expect(2, &["--skip-confirmation makes changes without asking"]);
        let planned = sluicectl.with_file("install", &["--dry-run"]).await?;
        planned
            .expect(0, &["+++ Deployment istio-system/istiod (new)", "+++ Namespace istio-system (new)", "0 deleted"]);
        assert!(cluster.get("v1", "Namespace", "", SYSTEM).await?.is_none(), "a dry run changes nothing");

        let installed = sluicectl.with_file("install", &["-y"]).await?;
        installed.expect(0, &["base: ready", "waiting: Deployment istio-system/istiod:", "control plane: ready"]);
        assert_eq!(node.ready().len(), 1, "the pod is ready at the end");
        until_webhooks_are_called(&cluster, "istio-sidecar-injector").await?;
        assert_eq!(existing(&cluster, &text).await?.len(), objects(&text)?.len());
        sluicectl.is_verified(&[]).await?;
        let again = sluicectl.with_file("install", &["-y"]).await?;
        again.expect(0, &["0 created, 0 changed, 0 deleted"]);

        let before = stored(&cluster, &text).await?;
        let changes = ["--set", "values.pilot.traceSampling=5", "--set", "values.global.networkPolicy.enabled=false"];
        let planned = sluicectl.with_file("upgrade", &[&["--dry-run"], &changes[..]].concat()).await?;
        let lines = ["-          value: \"1\"", "+          value: \"5\"", "+++ /dev/null"];
        planned.expect(0, &lines);
        assert_eq!(stored(&cluster, &text).await?, before, "a dry run changes nothing");
        sluicectl.with_file("verify-install", &changes).await?.expect(1, &["it differs from what the charts render"]);

        // The pod of the failing upgrade is never ready. What it has changed, created and deleted is as before.
        let mut failing = vec!["-y", "--readiness-timeout", "5s", "--set", "meshConfig.accessLogFile=/changed"];
        failing.extend(["--set", "values.pilot.cni.enabled=true", "--set", "values.pilot.serviceAnnotations.a=b"]);
        failing.extend(["--set", "values.pilot.jwksResolverExtraRootCA=pem"]);
        failing.extend(["--set", "components.pilot.k8s.readinessProbe.httpGet.path=/nothing"]);
        let failed = sluicectl.with_file("upgrade", &failing).await?;
        let texts =
            ["not ready after 5 s: Deployment istio-system/istiod", "undo: restored ConfigMap istio-system/istio"];
        failed.expect(1, &texts);
        failed.expect(
            1,
            &["undo: removed ConfigMap istio-system/pilot-jwks-extra-cacerts", "the cluster is as it was before"],
        );
        assert_eq!(stored(&cluster, &text).await?, before);
        // The fields of the failed upgrade would stay if the undo had not restored who has applied them.
        sluicectl.is_verified(&[]).await?;

        // An object that is deleted at the end is created again if another one cannot be deleted.
        let obsolete = obsolete(&cluster).await?;
        set_finalizers(&cluster, &["example.com/held"]).await?;
        let stuck = [&["-y", "--readiness-timeout", "8s"], &changes[..]].concat();
        let stuck = sluicectl.with_file("upgrade", &stuck).await?;
        stuck.expect(
            1,
            &["NetworkPolicy istio-system/istiod: it is not gone yet", "undo: restored ConfigMap istio-system/old"],
        );
        stuck.expect(
            1,
            &["not undone: NetworkPolicy istio-system/istiod: it is being deleted", "the undo is not complete"],
        );
        let restored = cluster.get("v1", "ConfigMap", SYSTEM, "old").await?.context("it is created again")?;
        assert_eq!(
            (&restored["data"], &restored["metadata"]["labels"]),
            (&obsolete["data"], &obsolete["metadata"]["labels"])
        );
        set_finalizers(&cluster, &[]).await?;
        sluicectl
            .with_file("install", &["-y"])
            .await?
            .expect(0, &["+ NetworkPolicy", "deleted ConfigMap istio-system/old"]);

        let upgraded = sluicectl.with_file("upgrade", &[&["-y"], &changes[..]].concat()).await?;
        upgraded.expect(0, &["- NetworkPolicy istio-system/istiod", "deleted NetworkPolicy istio-system/istiod"]);
        assert!(cluster.get("networking.k8s.io/v1", "NetworkPolicy", SYSTEM, "istiod").await?.is_none());
        let ready = node.ready();
        let (pod, _) = ready.iter().next().context("a pod is ready")?;
        assert_eq!(node.environment(pod).get("PILOT_TRACE_SAMPLING").map(String::as_str), Some("5"));
        sluicectl.is_verified(&changes).await?;

        sluicectl.uninstall(&["-y"]).await?.expect(2, &["--revision"]);
        sluicectl
            .uninstall(&["--revision", "other", "-y"])
            .await?
            .expect(0, &["there are no objects of revision other"]);
        sluicectl
            .uninstall(&["--revision", "default", "--dry-run"])
            .await?
            .expect(0, &["--- Deployment istio-system/istiod"]);
        assert!(cluster.get("apps/v1", "Deployment", SYSTEM, "istiod").await?.is_some(), "a dry run removes nothing");
        sluicectl.uninstall(&["--revision", "default", "-y"]).await?.expect(0, &["removed revision default"]);
        let is_left = |name: &String| name == "ServiceAccount istio-reader-service-account" || is_definition(name);
        let left = existing(&cluster, &text).await?;
        assert!(left.iter().all(is_left) && left.len() > 10, "{left:?}");
        sluicectl.uninstall(&["--purge", "-y"]).await?.expect(0, &["removed all revisions"]);
        let left = existing(&cluster, &text).await?;
        assert!(left.iter().all(|name| is_definition(name)), "{left:?}");
        until("the pods have ended", async || Ok(node.running() == 0)).await
    })
    .await
}

/// An object of the installation that no chart renders.
async fn obsolete(cluster: &Cluster) -> Result<Value> {
    let labels = json!({
        "operator.istio.io/managed": "Reconcile", "operator.istio.io/component": "Pilot", "istio.io/rev": "default",
        "install.operator.istio.io/owning-resource": "mesh",
    });
    let metadata = json!({"name": "old", "namespace": SYSTEM, "labels": labels});
    cluster
        .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "value"}}))
        .await
}

async fn set_finalizers(cluster: &Cluster, finalizers: &[&str]) -> Result<()> {
    let patch = json!({"metadata": {"finalizers": finalizers}});
    cluster.patch("networking.k8s.io/v1", "NetworkPolicy", (SYSTEM, "istiod"), &patch).await.map(drop)
}

fn is_definition(label: &str) -> bool {
    label.starts_with("CustomResourceDefinition ")
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_are_installed_after_the_control_plane_and_pruned() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    let cluster = Cluster::start(&programs).await?;
    let sluicectl = Sluicectl::new(&cluster, &programs)?;
    let mut mesh = ClusterMesh::new(&cluster)?;
    let host = mesh.pods.host_ip();
    // The image has Envoy at the default path.
    let envoy = format!("meshConfig.defaultConfig.binaryPath={}", mesh.pods.linked_path(&envoy::binary()?)?.display());
    let programs = images(&mesh.pods)?;
    let mut node = TestNode::new(&cluster, &[SYSTEM, "edge"], &mut mesh.pods, 4, programs).await?;
    node.serve((SYSTEM, "istiod"), 15012, (host, 15012).into()).await?;
    mesh.pods.add_name("istiod.istio-system.svc", host)?;
    node.during(async {
        // There is no load balancer that would get an address, and no autoscaler.
        let gateway = ["name=front", "namespace=edge", "k8s.service.type=ClusterIP"];
        let gateway = gateway.map(|value| format!("components.ingressGateways.[0].{value}"));
        let shared = "values.gateways.istio-ingressgateway.autoscaleEnabled=false";
        let mut arguments = vec!["-y", "--set", &envoy, "--set", shared];
        arguments.extend(gateway.iter().flat_map(|value| ["--set", value]));
        let installed = sluicectl.with_file("install", &arguments).await?;
        installed.expect(0, &["control plane: ready\ningress gateway: ", "ingress gateway: ready"]);
        let pods = node.ready();
        let (gateway, _) = pods.iter().find(|(name, _)| name.starts_with("front-")).context("the gateway is ready")?;
        // The control plane has injected its pod.
        assert_eq!(node.environment(gateway)["CA_ADDR"], "istiod.istio-system.svc:15012");
        sluicectl.is_verified(&arguments[1..]).await?;

        let removal = ["-y", "--set", &envoy, "--set", "components.ingressGateways.[0].enabled=false"];
        let pruned = sluicectl.with_file("upgrade", &removal).await?;
        pruned.expect(0, &["deleted Deployment edge/front", "deleted ServiceAccount edge/front"]);
        assert!(cluster.get("apps/v1", "Deployment", "edge", "front").await?.is_none());
        assert!(cluster.get("apps/v1", "Deployment", SYSTEM, "istiod").await?.is_some());
        until("the pod of the gateway has ended", async || Ok(node.running() == 1)).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_installation_that_fails_leaves_nothing_but_crds() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let cluster = Cluster::start(&programs).await?;
    let sluicectl = Sluicectl::new(&cluster, &programs)?;
    // There is no node, so no pod becomes ready.
    let failed = sluicectl.with_file("install", &["-y", "--readiness-timeout", "3s"]).await?;
    let texts = ["0 of 1 replicas are available", "CRDs were created and stay", "the cluster is as it was before"];
    failed.expect(1, &texts);
    let text = sluicectl.manifest(&[]).await?;
    let nothing_is_left = async || {
        let namespace = cluster.get("v1", "Namespace", "", SYSTEM).await?;
        Ok(namespace.is_none() && existing(&cluster, &text).await?.iter().all(|name| is_definition(name)))
    };
    until("nothing but CRDs is left", nothing_is_left).await?;

    // The same when the user interrupts it while it waits.
    let arguments = sluicectl.arguments("install", &["-y"]);
    let child = sluicectl.start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
    let id = child.id().context("it runs")?.to_string();
    until("the Deployment exists", async || {
        Ok(cluster.get("apps/v1", "Deployment", SYSTEM, "istiod").await?.is_some())
    })
    .await?;
    let sent = std::process::Command::new("kill").args(["-INT", &id]).status()?;
    ensure!(sent.success(), "interrupt {id}");
    let finished = finish(child).await?;
    finished.expect(1, &["sluicectl: interrupted", "the cluster is as it was before"]);
    until("nothing but CRDs is left", nothing_is_left).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_of_istioctl_is_taken_over_and_restored() -> Result<()> {
    const MANAGER: &str = "istio-operator";
    let Some(programs) = programs() else { return Ok(()) };
    let cluster = Cluster::start(&programs).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    let sluicectl = Sluicectl::new(&cluster, &programs)?;
    let mut text = String::new();
    for mut object in istiod() {
        for (name, value) in [
            ("operator.istio.io/managed", "Reconcile"),
            ("operator.istio.io/component", "Pilot"),
            ("operator.istio.io/version", "1.31.0"),
            ("install.operator.istio.io/owning-resource", "mesh"),
        ] {
            object["metadata"]["labels"][name] = value.into();
        }
        cluster.apply_as(MANAGER, &object).await?;
        text.push_str(&format!("{object}\n---\n"));
    }
    let before = stored(&cluster, &text).await?;
    let planned = sluicectl.with_file("upgrade", &["--dry-run"]).await?;
    // What only istiod has is removed: fields, and objects.
    let lines =
        ["-        - name: INJECTION_WEBHOOK_CONFIG_NAME", "-      - emptyDir:", "-          name: local-certs"];
    planned.expect(0, &lines);
    let deleted = ["ClusterRole istiod-gateway-controller-istio-system", "ConfigMap istio-system/values"];
    planned
        .expect(0, &deleted.map(|name| format!("--- {name} (cluster)\n+++ /dev/null")).each_ref().map(String::as_str));
    assert_eq!(stored(&cluster, &text).await?, before);

    // No pod becomes ready, so all is restored, with the fields that istioctl has applied.
    let applied = async || -> Result<Value> {
        let object = cluster.get("apps/v1", "Deployment", SYSTEM, "istiod").await?.context("it exists")?;
        let managed = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        Ok(managed.filter(|entry| entry["manager"] == MANAGER).map(|entry| entry["fieldsV1"].clone()).collect())
    };
    let fields = applied().await?;
    let failed = sluicectl.with_file("upgrade", &["-y", "--readiness-timeout", "2s"]).await?;
    failed.expect(1, &["undo: restored Deployment istio-system/istiod", "the cluster is as it was before"]);
    assert_eq!(stored(&cluster, &text).await?, before);
    assert_eq!(applied().await?, fields);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_refused_or_of_helm_change_nothing() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let cluster = Cluster::start(&programs).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    let sluicectl = Sluicectl::new(&cluster, &programs)?;
    let text = sluicectl.manifest(&[]).await?;
    let port = "components.pilot.k8s.service.ports.[0].port";
    for (setting, expected) in [
        (format!("{port}=70000"), "Service istio-system/istiod: 422: "),
        ("values.pilot.serviceMonitor.enabled=true".to_owned(), "the API server does not serve ServiceMonitor"),
    ] {
        let refused = sluicectl.with_file("install", &["-y", "--set", &setting]).await?;
        refused.expect(1, &[expected]);
        assert_eq!(existing(&cluster, &text).await?.len(), 0, "nothing is written");
    }
    let chart = manifest("manifests/charts/sluice").display().to_string();
    helm(&cluster, &["install", "istiod", &chart, "--namespace", SYSTEM]).await?;
    let before = stored(&cluster, &text).await?;
    let refused = sluicectl.with_file("install", &["-y"]).await?;
    refused.expect(1, &["it belongs to the release istiod of helm"]);
    let checked = sluicectl.with_file("precheck", &["-o", "json"]).await?;
    checked.expect(1, &["\"subject\": \"Deployment istio-system/istiod\""]);
    assert_eq!(stored(&cluster, &text).await?, before);
    // Helm's objects are not removed either.
    sluicectl.uninstall(&["--purge", "-y"]).await?.expect(0, &["there are no objects of all revisions"]);

    // A revision in another namespace runs beside it, the same revision does not.
    let file = sluicectl.file.with_file_name("other.yaml");
    std::fs::write(&file, VALUES.replace("namespace: istio-system", "namespace: mesh"))?;
    let file = file.display().to_string();
    let other = ["-f", file.as_str()];
    let checked = sluicectl.with_file("precheck", &other).await?;
    checked.expect(1, &["a control plane of revision default is in another namespace", "it injects the same pods"]);
    let checked = sluicectl.with_file("precheck", &[&other[..], &["--revision", "next"]].concat()).await?;
    checked.expect(0, &["a control plane of revision default runs beside this one"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_named_by_kind() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let cluster = Cluster::start(&programs).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    let token = cluster.create_token((SYSTEM, "default"), None, None).await?;
    let mut sluicectl = Sluicectl::new(&cluster, &programs)?;
    // It may read webhook configurations, which the charts read, and nothing else.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": SYSTEM}],
    });
    for object in [role, binding] {
        cluster.apply(&object).await?;
    }
    sluicectl.kubeconfig = sluicectl.file.with_file_name("kubeconfig");
    std::fs::write(&sluicectl.kubeconfig, cluster.kubeconfig(cluster.address(), &token).to_string())?;
    let checked = sluicectl.with_file("precheck", &[]).await?;
    checked.expect(
        1,
        &["Deployment (apps/v1): the current user may not create, patch, delete objects of this kind in istio-system"],
    );
    let refused = sluicectl.with_file("install", &["-y"]).await?;
    refused.expect(1, &["403: "]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_agents_are_installed_once_they_are_ready_and_removed() -> Result<()> {
    const CNI: (&str, &str) = ("kube-system", "istio-cni-node");
    const ZTUNNEL: (&str, &str) = ("kube-system", "ztunnel");
    let Some(programs) = programs() else { return Ok(()) };
    let cluster = Cluster::start(&programs).await?;
    let sluicectl = Sluicectl::new(&cluster, &programs)?;
    let agents = [
        "profile=empty",
        "components.cni.namespace=kube-system",
        "components.ztunnel.namespace=kube-system",
        "values.cni.excludeNamespaces.[0]=kube-system",
        "values.ztunnel.resourceQuotas.enabled=true",
    ];
    let agents: Vec<&str> = agents.iter().flat_map(|value| ["--set", value]).collect();
    let with = |arguments: &[&'static str]| [arguments, &agents].concat();
    let exists = async |agent: (&str, &str)| Ok(cluster.get("apps/v1", "DaemonSet", agent.0, agent.1).await?.is_some());
    // No controller of DaemonSets runs. Some of two nodes have the agent.
    let report = async |agent: (&'static str, &'static str), available: i64| {
        until("the DaemonSet exists", async || exists(agent).await).await?;
        let status = json!({
            "observedGeneration": 1, "currentNumberScheduled": 2, "numberMisscheduled": 0, "desiredNumberScheduled": 2,
            "numberReady": available, "updatedNumberScheduled": 2, "numberAvailable": available,
        });
        cluster.write_status("apps/v1", "DaemonSet", agent, status).await
    };
    let confirmed = with(&["-y"]);
    let impatient = with(&["-y", "--readiness-timeout", "10s"]);
    let (failed, _, _) =
        tokio::try_join!(sluicectl.with_file("install", &impatient), report(CNI, 2), report(ZTUNNEL, 1))?;
    failed.expect(1, &["DaemonSet kube-system/ztunnel: 1 of 2 pods are available", "the cluster is as it was before"]);
    until("nothing is left", async || Ok(!exists(CNI).await? && !exists(ZTUNNEL).await?)).await?;

    let (installed, _, _) =
        tokio::try_join!(sluicectl.with_file("install", &confirmed), report(CNI, 2), report(ZTUNNEL, 2))?;
    let lines = [
        "+ DaemonSet kube-system/istio-cni-node",
        "+ DaemonSet kube-system/ztunnel",
        "CNI agent: ready\nztunnel: ",
        "ztunnel: ready",
    ];
    installed.expect(0, &lines);
    sluicectl.with_file("verify-install", &agents).await?.expect(0, &[]);
    let text = sluicectl.manifest(&agents).await?;
    assert_eq!(existing(&cluster, &text).await?.len(), objects(&text)?.len());

    let without = ["-y", "--set", "components.cni.enabled=false", "--set", "components.ztunnel.enabled=false"];
    let pruned = sluicectl.with_file("upgrade", &with(&without)).await?;
    let deleted = [
        "deleted DaemonSet kube-system/ztunnel",
        "deleted ServiceAccount kube-system/ztunnel",
        "deleted DaemonSet kube-system/istio-cni-node",
        "deleted ClusterRole istio-cni",
    ];
    pruned.expect(0, &deleted);
    assert_eq!(existing(&cluster, &text).await?.len(), 0);
    let (installed, _, _) =
        tokio::try_join!(sluicectl.with_file("install", &confirmed), report(CNI, 2), report(ZTUNNEL, 2))?;
    installed.expect(0, &["CNI agent: ready", "ztunnel: ready"]);
    sluicectl.uninstall(&["--revision", "default", "-y"]).await?.expect(0, &["removed revision default"]);
    assert_eq!(existing(&cluster, &text).await?.len(), 0);
    Ok(())
}
