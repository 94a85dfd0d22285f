//! The charts, rendered by the real helm without a cluster.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use sluice_parse::yaml::{Limits, parse_documents, parse_value};
use sluice_testkit::cluster::Helm;

use crate::fixture::{CHART, manifest, programs};

const GATEWAY: &str = "manifests/charts/gateway";
const CNI: &str = "manifests/charts/cni";
const ZTUNNEL: &str = "manifests/charts/ztunnel";

/// The objects of a YAML text.
pub(crate) fn objects(text: &str) -> Result<Vec<Value>> {
    let documents = parse_documents(text, &Limits::default());
    let objects = documents.into_iter().map(|document| Ok(document?.value)).collect::<Result<Vec<_>>>()?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

/// `KIND NAME` of an object.
pub(crate) fn label(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

fn render(helm: &Helm, chart: &str, namespace: &str, values: &[&str]) -> Result<Vec<Value>> {
    let mut arguments = vec!["--namespace", namespace];
    arguments.extend(values.iter().flat_map(|value| ["--set", value]));
    objects(&helm.render(("istiod", &manifest(chart)), &arguments)?)
}

fn find<'o>(objects: &'o [Value], name: &str) -> Result<&'o Value> {
    objects.iter().find(|object| label(object) == name).with_context(|| format!("there is no {name}"))
}

fn labels(objects: &[Value]) -> BTreeSet<String> {
    objects.iter().map(label).collect()
}

/// Helm with a directory for its files. `None` if it is not built.
fn helm() -> Result<Option<(Helm, tempfile::TempDir)>> {
    let Some(programs) = programs() else { return Ok(None) };
    let directory = tempfile::tempdir()?;
    Ok(Some((Helm::new(&programs, directory.path()), directory)))
}

#[test]
fn charts_have_no_lint() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    for chart in [CHART, GATEWAY, CNI, ZTUNNEL] {
        helm.run(&["lint", "--strict", &manifest(chart).display().to_string()])?;
    }
    Ok(())
}

#[test]
fn unknown_values_and_those_without_effect_are_refused_by_name() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let cases = [
        (CHART, "pilot.replicacount=2", "at '/pilot': additional properties 'replicacount' not allowed"),
        (CHART, "global.proxy.logLevle=debug", "at '/global/proxy': additional properties 'logLevle' not allowed"),
        (CHART, "meshconfig.accessLogFile=x", "at '': additional properties 'meshconfig' not allowed"),
        (CHART, "replicaCount=two", "at '/replicaCount': got string, want number"),
        (CHART, "global.resourceScope=some", "at '/global/resourceScope': value must be one of"),
        (CHART, "profile=minimal", "profile: \"minimal\" is not known"),
        (CHART, "compatibilityVersion=1.24", "at '/compatibilityVersion': value must be one of"),
        (
            CHART,
            "global.remotePilotAddress=192.0.2.1",
            "remotePilotAddress: this value has no effect without istiodRemote",
        ),
        (CHART, "global.configCluster=true", "global.configCluster: this value has no effect without istiodRemote"),
        (CHART, "global.istioNamespace=mesh", "global.istioNamespace: mesh is not the namespace of the release"),
        (CNI, "ambient.enable=true", "at '/ambient': additional properties 'enable' not allowed"),
        (CNI, "chained=yes", "at '/chained': got string, want boolean"),
        (ZTUNNEL, "ambient.enabled=true", "at '': additional properties 'ambient' not allowed"),
        (ZTUNNEL, "logAsJson=yes", "at '/logAsJson': got string, want boolean"),
        (ZTUNNEL, "global.logging.level=all:debug", "at '/global': additional properties 'logging' not allowed"),
        (GATEWAY, "service.prots=x", "at '/service': additional properties 'prots' not allowed"),
        (GATEWAY, "service.ports=null", "service.ports: without networkGateway"),
        ("manifests/charts/base", "base.enableIstioConfigCRDs=true", "files/istio.yaml: the CRDs are missing"),
    ];
    for (chart, value, expect) in cases {
        let refused = render(&helm, chart, "istio-system", &[value]);
        let refused = format!("{:#}", refused.err().with_context(|| format!("{value} is accepted"))?);
        assert!(refused.contains(expect), "{value}: {refused}");
    }
    Ok(())
}

#[test]
fn values_of_istiod_have_an_effect_under_pilot_and_at_the_top_level() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let names = ["autoscaleEnabled=false", "replicaCount=3", "resources.requests.cpu=2", "env.PILOT_PUSH_THROTTLE=7"];
    let pilot = names.map(|name| format!("pilot.{name}"));
    let pilot: Vec<&str> = pilot.iter().map(String::as_str).collect();
    let rendered = render(&helm, CHART, "istio-system", &names)?;
    assert_eq!(rendered, render(&helm, CHART, "istio-system", &pilot)?);
    let deployment = &find(&rendered, "Deployment istiod")?["spec"];
    let container = &deployment["template"]["spec"]["containers"][0];
    assert_eq!(deployment["replicas"], 3);
    // The other default stays.
    assert_eq!(container["resources"]["requests"], serde_json::json!({"cpu": 2, "memory": "256Mi"}));
    let variable = |name: &str| container["env"].as_array().into_iter().flatten().find(|it| it["name"] == name);
    assert_eq!(variable("PILOT_PUSH_THROTTLE").context("it is set")?["value"], "7");
    let all = labels(&rendered);
    assert!(all.contains("PodDisruptionBudget istiod") && !all.contains("HorizontalPodAutoscaler istiod"), "{all:?}");
    Ok(())
}

#[test]
fn values_that_are_set_override_the_profile() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let mesh = |values: &[&str]| -> Result<Value> {
        let rendered = render(&helm, CHART, "istio-system", values)?;
        let text =
            find(&rendered, "ConfigMap istio")?["data"]["mesh"].as_str().context("it has a mesh config")?.to_owned();
        Ok(parse_value(&text, &Limits::default())?)
    };
    assert_eq!(mesh(&[])?["accessLogFile"], Value::Null);
    assert_eq!(mesh(&["profile=demo"])?["accessLogFile"], "/dev/stdout");
    assert_eq!(mesh(&["profile=demo", "meshConfig.accessLogFile=/log"])?["accessLogFile"], "/log");
    Ok(())
}

#[test]
fn a_compatibility_version_sets_variables_that_can_be_overridden() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let variables = |values: &[&str]| -> Result<BTreeSet<String>> {
        let rendered = render(&helm, CHART, "istio-system", values)?;
        let env = find(&rendered, "Deployment istiod")?["spec"]["template"]["spec"]["containers"][0]["env"].clone();
        let env = env.as_array().context("it has variables")?;
        let is_false = env.iter().filter(|it| it["value"] == "false");
        Ok(is_false.filter_map(|it| it["name"].as_str().map(str::to_owned)).collect())
    };
    assert_eq!(variables(&[])?, BTreeSet::new());
    let current = ["PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", "PILOT_ENABLE_STRICT_GATEWAY_MERGING"];
    let mut older = BTreeSet::from(current.map(str::to_owned));
    older.insert("PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE".to_owned());
    assert_eq!(variables(&["compatibilityVersion=1.29"])?, older);
    assert!(older.remove(current[0]));
    let values = ["compatibilityVersion=1.29", "pilot.env.PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS=true"];
    assert_eq!(variables(&values)?, older);
    Ok(())
}

#[test]
fn ambient_mode_is_a_profile() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let rendered = render(&helm, CHART, "istio-system", &["profile=ambient"])?;
    let env = &find(&rendered, "Deployment istiod")?["spec"]["template"]["spec"]["containers"][0]["env"];
    let is_set = |it: &Value| it["name"] == "PILOT_ENABLE_AMBIENT" && it["value"] == "true";
    assert!(env.as_array().is_some_and(|env| env.iter().any(is_set)), "{env}");
    let mesh = find(&rendered, "ConfigMap istio")?["data"]["mesh"].as_str().context("it has a mesh config")?;
    let proxy = &parse_value(mesh, &Limits::default())?["defaultConfig"];
    assert_eq!(proxy["proxyMetadata"], serde_json::json!({"ISTIO_META_ENABLE_HBONE": "true"}));
    assert_eq!(proxy["image"]["imageType"], "distroless");
    Ok(())
}

#[test]
fn a_remote_cluster_has_no_control_plane_and_a_service_that_leads_to_it() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let remote = |values: &[&str]| {
        let all: Vec<&str> = [&["profile=remote"], values].concat();
        render(&helm, CHART, "istio-system", &all)
    };
    let always = [
        "ClusterRole istio-reader-clusterrole-istio-system",
        "ClusterRoleBinding istio-reader-clusterrole-istio-system",
        "MutatingWebhookConfiguration istio-sidecar-injector",
        "Role istio-reader",
        "RoleBinding istio-reader",
    ];
    let with = |names: &[&str]| always.iter().chain(names).map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(labels(&remote(&["global.networkPolicy.enabled=true", "pilot.autoscaleMin=2"])?), with(&[]));

    let rendered = remote(&["global.remotePilotAddress=2001:db8::1", "revision=next", "revisionTags={prod}"])?;
    for name in ["istiod-next", "istiod-revision-tag-prod"] {
        assert_eq!(find(&rendered, &format!("Service {name}"))?["spec"]["selector"], Value::Null);
        let slice = find(&rendered, &format!("EndpointSlice {name}"))?;
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], name);
        assert_eq!(
            (&slice["addressType"], &slice["endpoints"][0]["addresses"][0]),
            (&"IPv6".into(), &"2001:db8::1".into())
        );
    }
    let rendered = remote(&["global.remotePilotAddress=mesh.example", "pilot.ipFamilyPolicy=SingleStack"])?;
    assert_eq!(labels(&rendered), with(&["Service istiod"]));
    let service = &find(&rendered, "Service istiod")?["spec"];
    assert_eq!((&service["type"], &service["externalName"]), (&"ExternalName".into(), &"mesh.example".into()));
    // The API server refuses families of an alias.
    assert_eq!(service["ipFamilyPolicy"], Value::Null);

    let webhook = |values: &[&str]| -> Result<Value> {
        Ok(find(&remote(values)?, "MutatingWebhookConfiguration istio-sidecar-injector")?["webhooks"][0].clone())
    };
    let url = "https://mesh.example:15017/inject/cluster/west/net/n2";
    let values = [&format!("istiodRemote.injectionURL={url}"), "istiodRemote.injectionCABundle=cm9vdA=="];
    assert_eq!(webhook(&values)?["clientConfig"], serde_json::json!({"url": url, "caBundle": "cm9vdA=="}));
    assert_eq!(webhook(&["istiodRemote.injectionPath=/inject/x"])?["clientConfig"]["service"]["path"], "/inject/x");

    // The cluster has the configuration of the mesh.
    let config = labels(&remote(&["global.configCluster=true"])?);
    let more = ["ServiceAccount istiod", "Role istiod", "ValidatingWebhookConfiguration istiod-default-validator"];
    assert!(more.iter().all(|name| config.contains(*name)) && !config.contains("Deployment istiod"), "{config:?}");
    // A control plane of the cluster injects, and proxies connect to the remote one.
    let values =
        ["istiodRemote.enabledLocalInjectorIstiod=true", "global.remotePilotAddress=192.0.2.1", "configMap=true"];
    let rendered = remote(&values)?;
    let all = labels(&rendered);
    let names = ["Deployment istiod", "Service istiod", "Service istiod-remote", "EndpointSlice istiod-remote"];
    assert!(names.iter().all(|name| all.contains(*name)), "{all:?}");
    let mesh = find(&rendered, "ConfigMap istio")?["data"]["mesh"].to_string();
    assert!(mesh.contains("discoveryAddress: istiod-remote.istio-system.svc:15012"), "{mesh}");
    Ok(())
}

#[test]
fn a_revision_is_part_of_all_names() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let values = [
        "revision=canary",
        "revisionTags={prod}",
        "pilot.autoscaleMin=2",
        "global.networkPolicy.enabled=true",
        "pilot.serviceMonitor.enabled=true",
        "profile=stable",
        "jwksResolverExtraRootCA=pem",
    ];
    let expect = [
        "ClusterRole istio-reader-clusterrole-canary-mesh",
        "ClusterRole istiod-clusterrole-canary-mesh",
        "ClusterRoleBinding istio-reader-clusterrole-canary-mesh",
        "ClusterRoleBinding istiod-clusterrole-canary-mesh",
        "ConfigMap istio-canary",
        "ConfigMap istio-sidecar-injector-canary",
        "ConfigMap pilot-jwks-extra-cacerts-canary",
        "Deployment istiod-canary",
        "HorizontalPodAutoscaler istiod-canary",
        "MutatingWebhookConfiguration istio-revision-tag-prod-mesh",
        "MutatingWebhookConfiguration istio-sidecar-injector-canary-mesh",
        "NetworkPolicy istiod-canary",
        "PodDisruptionBudget istiod-canary",
        "Role istiod-canary",
        "RoleBinding istiod-canary",
        "Service istiod-canary",
        "Service istiod-revision-tag-prod",
        "ServiceAccount istiod-canary",
        "ServiceMonitor istiod-canary",
        "ValidatingAdmissionPolicy stable-channel-policy-canary-mesh.istio.io",
        "ValidatingAdmissionPolicyBinding stable-channel-policy-binding-canary-mesh.istio.io",
        "ValidatingWebhookConfiguration istio-validator-canary-mesh",
    ];
    assert_eq!(labels(&render(&helm, CHART, "mesh", &values)?), expect.map(str::to_owned).into());
    let default = labels(&render(&helm, CHART, "mesh", &["revision=default"])?);
    assert!(default.contains("Service istiod"), "{default:?}");
    Ok(())
}

#[test]
fn taints_are_removed_with_their_right_only_if_a_value_says_so() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let patches_nodes = |rendered: &[Value], role: &str| -> Result<bool> {
        let rules = find(rendered, role)?["rules"].to_string();
        Ok(rules.contains(r#""resources":["nodes"],"verbs":["patch"]"#) || rules.contains("istio-node-untaint"))
    };
    let roles = ["ClusterRole istiod-clusterrole-istio-system", "Role istiod"];
    for values in [vec![], vec!["taint.namespace=kube-system"]] {
        let rendered = render(&helm, CHART, "istio-system", &values)?;
        for role in roles {
            assert!(!patches_nodes(&rendered, role)?, "{role}");
        }
    }
    let values = ["taint.enabled=true", "taint.namespace=kube-system", "pilot.taint.name=other/not-ready"];
    let rendered = render(&helm, CHART, "istio-system", &values)?;
    for role in roles {
        assert!(patches_nodes(&rendered, role)?, "{role}");
    }
    let container = find(&rendered, "Deployment istiod")?["spec"]["template"]["spec"]["containers"][0].clone();
    let variable = |name: &str| {
        let variables = container["env"].as_array().into_iter().flatten();
        variables.clone().find(|it| it["name"] == name).map(|it| it["value"].clone())
    };
    assert_eq!(variable("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS"), Some("true".into()));
    assert_eq!(variable("PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME"), Some("other/not-ready".into()));
    assert!(container["args"].to_string().contains("--cniNamespace=kube-system"), "{container}");
    Ok(())
}

#[test]
fn gateways_are_deployed_with_their_rights_unless_a_variable_disables_that() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let deploys = |values: &[&str]| -> Result<bool> {
        let rendered = render(&helm, CHART, "istio-system", values)?;
        let rules = find(&rendered, "ClusterRole istiod-clusterrole-istio-system")?["rules"].to_string();
        Ok(rules.contains(r#""deployments""#))
    };
    assert!(deploys(&[])?);
    for variable in ["PILOT_ENABLE_GATEWAY_API", "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER"] {
        assert!(deploys(&[&format!("env.{variable}=true")])?, "{variable}");
        assert!(!deploys(&[&format!("env.{variable}=false")])?, "{variable}");
    }
    Ok(())
}

#[test]
fn objects_are_either_cluster_scoped_or_in_the_namespace() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let scoped = |scope: &str| render(&helm, CHART, "mesh", &[&format!("global.resourceScope={scope}")]);
    let (all, cluster, namespace) = (scoped("all")?, scoped("cluster")?, scoped("namespace")?);
    assert!(!cluster.is_empty() && cluster.iter().all(|object| object["metadata"]["namespace"].is_null()));
    assert!(!namespace.is_empty() && namespace.iter().all(|object| object["metadata"]["namespace"] == "mesh"));
    assert_eq!(labels(&all), labels(&cluster).union(&labels(&namespace)).cloned().collect());
    Ok(())
}

#[test]
fn injection_has_the_templates_and_webhooks_of_its_revision() -> Result<()> {
    let Some((helm, _directory)) = helm()? else { return Ok(()) };
    let values = ["sidecarInjectorWebhook.templates.sidecar=own", "global.proxy.autoInject=disabled"];
    let rendered = render(&helm, CHART, "istio-system", &values)?;
    let config = &find(&rendered, "ConfigMap istio-sidecar-injector")?["data"]["config"];
    let config = parse_value(config.as_str().context("it has a configuration")?, &Limits::default())?;
    let own = std::fs::read_to_string(manifest(CHART).join(Path::new("files/injection.yaml")))?;
    let mut expect = parse_value(&own, &Limits::default())?;
    expect["templates"]["sidecar"] = "own".into();
    expect["policy"] = "disabled".into();
    assert_eq!(config, expect);

    let names = |values: &[&str], name: &str| -> Result<Vec<String>> {
        let rendered = render(&helm, CHART, "istio-system", values)?;
        let webhooks = find(&rendered, &format!("MutatingWebhookConfiguration {name}"))?["webhooks"].clone();
        let webhooks = webhooks.as_array().context("it has webhooks")?;
        let name = |it: &Value| {
            it["name"].as_str().unwrap_or_default().trim_end_matches(".sidecar-injector.istio.io").to_owned()
        };
        Ok(webhooks.iter().map(name).collect())
    };
    let (revision, default) = (["rev.namespace", "rev.object"], ["rev.namespace", "rev.object", "namespace", "object"]);
    assert_eq!(names(&[], "istio-sidecar-injector")?, default);
    assert_eq!(names(&["revision=canary"], "istio-sidecar-injector-canary")?, revision);
    let tags = ["revision=canary", "revisionTags={prod,default}"];
    assert_eq!(names(&tags, "istio-revision-tag-prod")?, revision);
    assert_eq!(names(&tags, "istio-revision-tag-default")?, default);
    let all = ["sidecarInjectorWebhook.enableNamespacesByDefault=true"];
    assert_eq!(names(&all, "istio-sidecar-injector")?.last().map(String::as_str), Some("auto"));
    Ok(())
}
