//! What `sluicectl` renders equals what the real helm renders, object by object.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_install::{Capabilities, Charts, Component, InstallInputs, Installation};
use sluice_testkit::cluster::Helm;

use crate::charts::objects;
use crate::fixture::{manifest, programs};

/// The charts with the CRDs, as `make manifests` writes them.
struct WrittenCharts {
    directory: tempfile::TempDir,
    helm: Helm,
}

impl WrittenCharts {
    fn write(programs: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let rendered = Command::new(manifest("manifests/render"))
            .arg(directory.path())
            .env("SLUICE_CLUSTER", programs)
            .output()?;
        ensure!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
        let helm = Helm::new(programs, directory.path());
        Ok(Self { directory, helm })
    }

    /// The objects that helm renders.
    fn by_helm(&self, (release, chart): (&str, &str), namespace: &str, values: &Value) -> Result<Objects> {
        let file = self.directory.path().join("values.yaml");
        std::fs::write(&file, values.to_string())?;
        let chart = self.directory.path().join("charts").join(chart);
        let file = file.display().to_string();
        let text = self.helm.render((release, &chart), &["--namespace", namespace, "-f", &file])?;
        by_name(objects(&text)?)
    }

    /// The objects of a component that an IstioOperator file has.
    fn by_sluicectl(&self, operator: &Value, component: Component) -> Result<Objects> {
        let inputs =
            InstallInputs { files: vec![("test".to_owned(), operator.to_string())], ..InstallInputs::default() };
        let installation = Installation::read(&inputs)?;
        let charts = Charts::from_directory(&self.directory.path().join("charts"))?;
        let manifests = installation.render(&charts, &Capabilities::default())?;
        let own = manifests.into_iter().filter(|manifest| manifest.component == component);
        by_name(own.flat_map(|manifest| manifest.objects).map(|object| object.json().clone()).collect())
    }
}

/// Objects by kind, namespace and name.
type Objects = BTreeMap<String, Value>;

fn by_name(list: Vec<Value>) -> Result<Objects> {
    let mut objects = Objects::new();
    for object in list {
        let metadata = &object["metadata"];
        let name = format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"]);
        ensure!(objects.insert(name.clone(), object).is_none(), "{name} is rendered twice");
    }
    Ok(objects)
}

fn operator(spec: Value) -> Value {
    json!({"apiVersion": "install.istio.io/v1alpha1", "kind": "IstioOperator", "spec": spec})
}

/// Fails with the first object that differs.
fn check_equal(case: &str, helm: &Objects, own: &Objects) -> Result<()> {
    ensure!(!helm.is_empty(), "{case}: helm renders objects");
    let (helm_names, own_names): (Vec<_>, Vec<_>) = (helm.keys().collect(), own.keys().collect());
    ensure!(helm_names == own_names, "{case}: helm renders {helm_names:?}\nand sluicectl {own_names:?}");
    for (name, expected) in helm {
        let found = &own[name];
        ensure!(expected == found, "{case}: {name}\nhelm:      {expected}\nsluicectl: {found}");
    }
    Ok(())
}

/// Values of the control plane, with its profile.
fn control_planes() -> Vec<(&'static str, &'static str, Value)> {
    let long =
        "a value of the mesh config whose text is so long that a writer of YAML breaks its only line in two or more";
    let pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    vec![
        ("defaults", "default", json!({})),
        (
            "mesh config",
            "demo",
            json!({"meshConfig": {
                "accessLogFile": "/dev/stdout", "accessLogFormat": "[%START_TIME%]\n  \"%REQ(:METHOD)%\" <&>\n",
                "trustDomain": "mesh.example", "rootNamespace": "root", "ingressSelector": long,
                "defaultConfig": {"concurrency": 0, "tracing": {"sampling": 12.5}, "proxyMetadata": {"A": "true", "B": "1"}},
                "extensionProviders": [{"name": "otel", "opentelemetry": {"service": "otel.example", "port": 4317}}],
                "outboundTrafficPolicy": {"mode": "REGISTRY_ONLY"}, "enableTracing": false,
            }}),
        ),
        (
            "revision",
            "stable",
            json!({
                "revision": "canary", "revisionTags": ["prod", "default"], "global": {"networkPolicy": {"enabled": true}},
                "pilot": {"autoscaleMin": 2, "serviceMonitor": {"enabled": true, "labels": {"team": "mesh"}},
                          "jwksResolverExtraRootCA": pem, "hub": "registry.example", "image": "pilot", "tag": 1.5},
            }),
        ),
        (
            "pod",
            "default",
            json!({"pilot": {
                "autoscaleEnabled": false, "replicaCount": 3, "env": {"A": true, "B": 5, "C": "x: y", "REVISION": null},
                "resources": {"requests": {"cpu": null, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
                "tolerations": [{"key": "a", "operator": "Exists"}], "nodeSelector": {"disk": "ssd"},
                "affinity": {"nodeAffinity": {"x": [{"y": "1"}]}}, "volumes": [{"name": "v", "emptyDir": {}}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}], "podAnnotations": {"example.com/a": "yes"},
                "extraContainerArgs": ["--x=1"], "envVarFrom": [{"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}],
                "taint": {"enabled": true}, "initContainers": [{"name": "i", "image": "i"}], "rollingMaxSurge": 1,
            }, "global": {"certSigners": ["a.example/b"], "imagePullSecrets": ["pull"], "priorityClassName": "high",
                          "logAsJson": true, "proxy": {"clusterDomain": "corp.example"}}}),
        ),
        (
            "values at the top level",
            "openshift",
            json!({"replicaCount": 2, "autoscaleEnabled": false, "env": {"X": "1"}, "compatibilityVersion": "1.28",
                   "ipFamilies": ["IPv4", "IPv6"], "trafficDistribution": "PreferClose"}),
        ),
        (
            "injector",
            "preview",
            json!({"sidecarInjectorWebhook": {
                "neverInjectSelector": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
                "injectedAnnotations": {"x": "y"}, "enableNamespacesByDefault": true, "reinvocationPolicy": "IfNeeded",
                "templates": {"own": "spec:\n  containers:\n  - name: {{ .Values.global.hub }}\n"}, "defaultTemplates": ["sidecar", "own"],
            }, "global": {"meshNetworks": {"n1": {"endpoints": [{"fromRegistry": "a"}], "gateways": [{"address": "192.0.2.1", "port": 15443}]}}}}),
        ),
        (
            "remote",
            "remote",
            json!({"global": {"remotePilotAddress": "2001:db8::1", "configCluster": true},
                   "istiodRemote": {"injectionPath": "/inject/cluster/c1"}, "base": {"validationCABundle": "cm9vdA=="}}),
        ),
        ("ambient", "ambient", json!({"pilot": {"cni": {"enabled": true}}, "global": {"resourceScope": "namespace"}})),
        ("cluster scope", "default", json!({"global": {"resourceScope": "cluster", "operatorManageWebhooks": true}})),
    ]
}

#[test]
fn control_plane_is_rendered_as_by_helm() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let charts = WrittenCharts::write(&programs)?;
    for (case, profile, values) in control_planes() {
        let mut all = values.clone();
        all["profile"] = profile.into();
        let release = if values["revision"].is_null() { "istiod" } else { "istiod-canary" };
        let helm = charts.by_helm((release, "sluice"), "istio-system", &all)?;
        let own = operator(json!({"profile": profile, "values": values}));
        let own = charts.by_sluicectl(&own, Component::Pilot).with_context(|| format!("case {case}"))?;
        check_equal(case, &helm, &own)?;
    }
    Ok(())
}

#[test]
fn base_with_its_crds_is_rendered_as_by_helm() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let charts = WrittenCharts::write(&programs)?;
    for (case, values) in [
        ("defaults", json!({"global": {}})),
        ("without CRDs", json!({"global": {"imagePullSecrets": ["a"]}, "base": {"enableIstioConfigCRDs": false}})),
    ] {
        let helm = charts.by_helm(("istio-base", "base"), "mesh", &values)?;
        let mut own = operator(json!({"values": values}));
        own["metadata"] = json!({"namespace": "mesh"});
        check_equal(case, &helm, &charts.by_sluicectl(&own, Component::Base)?)?;
    }
    Ok(())
}

#[test]
fn gateways_are_rendered_as_by_helm() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let charts = WrittenCharts::write(&programs)?;
    let labels = json!({"app": "istio-ingressgateway", "istio": "ingressgateway"});
    let helm = charts.by_helm(("istio-ingressgateway", "gateway"), "istio-system", &json!({"labels": labels}))?;
    check_equal("default", &helm, &charts.by_sluicectl(&operator(json!({})), Component::IngressGateway)?)?;

    // The same in the words of Istio's chart istio-egress and of the chart gateway.
    let spec = json!({
        "revision": "canary",
        "components": {"egressGateways": [{"name": "out", "namespace": "edge", "label": {"istio": "out"}}]},
        "values": {"gateways": {"istio-egressgateway": {
            "autoscaleMin": 2, "memory": {"targetAverageUtilization": 70}, "env": {"A": 1}, "serviceAnnotations": {"x": "y"},
            "ports": [{"name": "https", "port": 443}], "rollingMaxSurge": "50%", "podAnnotations": {"z": "w"},
        }}},
    });
    let values = json!({
        "labels": {"app": "istio-egressgateway", "istio": "out"}, "revision": "canary",
        "autoscaling": {"minReplicas": 2, "targetMemoryUtilizationPercentage": 70}, "env": {"A": 1},
        "service": {"type": "ClusterIP", "annotations": {"x": "y"}, "ports": [{"name": "https", "port": 443}]},
        "strategy": {"rollingUpdate": {"maxSurge": "50%"}}, "podAnnotations": {"z": "w"},
    });
    let helm = charts.by_helm(("out", "gateway"), "edge", &values)?;
    check_equal("translated", &helm, &charts.by_sluicectl(&operator(spec), Component::EgressGateway)?)
}

#[test]
fn ztunnel_is_rendered_as_by_helm() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let charts = WrittenCharts::write(&programs)?;
    for (case, values) in [
        ("defaults", json!({})),
        (
            "all values",
            json!({
                "annotations": {"a": "b"}, "labels": {"c": "d"}, "podLabels": {"e": "f"}, "imagePullSecrets": ["pull"],
                "platform": "openshift", "peerCaCrl": {"enabled": true}, "env": {"ENABLE_CLUSTER_TRUST_BUNDLE_API": true},
                "resources": {"requests": {"cpu": "1", "memory": null}, "limits": {"cpu": 2}}, "nodeSelector": {"x": "y"},
                "dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"]}, "seLinuxOptions": {"type": "spc_t"},
                "volumes": [{"name": "v", "emptyDir": {}}], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "affinity": {"nodeAffinity": {"x": [{"y": "1"}]}}, "resourceQuotas": {"enabled": true, "pods": 7},
                "global": {"networkPolicy": {"enabled": true}}, "xdsAddress": "xds.example:15012", "logAsJson": true,
            }),
        ),
        ("cluster scope", json!({"resourceScope": "cluster", "platform": "openshift"})),
    ] {
        let mut all = values.clone();
        all["revision"] = "canary".into();
        all["meshConfig"] = json!({"defaultConfig": {"proxyMetadata": {"A": "b"}}});
        all["global"]["istioNamespace"] = "istio-system".into();
        let helm = charts.by_helm(("ztunnel", "ztunnel"), "istio-system", &all)?;
        let own = operator(json!({
            "revision": "canary", "profile": "minimal", "components": {"ztunnel": {"enabled": true}},
            "meshConfig": {"defaultConfig": {"proxyMetadata": {"A": "b"}}}, "values": {"ztunnel": values},
        }));
        check_equal(case, &helm, &charts.by_sluicectl(&own, Component::Ztunnel)?)?;
    }
    Ok(())
}

#[test]
fn refusals_of_the_charts_are_those_of_helm() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let charts = WrittenCharts::write(&programs)?;
    for (values, expected) in [
        (json!({"global": {"caName": "x"}}), "global.caName: this value has no effect: set the signer in pilot.env"),
        (
            json!({"global": {"configCluster": true}}),
            "global.configCluster: this value has no effect without istiodRemote",
        ),
    ] {
        let helm = charts.by_helm(("istiod", "sluice"), "istio-system", &values).err().context("helm refuses it")?;
        let own = charts.by_sluicectl(&operator(json!({"values": values})), Component::Pilot);
        let own = own.err().context("sluicectl refuses it")?;
        for error in [format!("{helm:#}"), format!("{own:#}")] {
            ensure!(error.contains(expected), "{error}");
        }
    }
    Ok(())
}
