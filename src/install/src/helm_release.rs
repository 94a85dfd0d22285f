//! The translation of an installation into releases of helm, by which helm takes it over.

use crate::chart::Charts;
use crate::error::InstallError;
use crate::object::{KubeObject, ObjectKey};
use crate::operator::{Component, ComponentSpec, Installation};
use crate::ownership::OWNERSHIP_LABELS;
use crate::render::{Capabilities, EmptyCluster};

/// A component as a release of helm.
#[derive(Clone, Debug)]
pub struct HelmRelease {
    /// The component.
    pub component: Component,
    /// Name of the release.
    pub name: String,
    /// Namespace of the release.
    pub namespace: String,
    /// Name of the chart, which is that of its directory.
    pub chart: String,
    /// The values of the chart, as YAML.
    pub values: String,
    /// The objects of the release.
    pub objects: Vec<ObjectKey>,
    /// The objects as both install them, if these differ: helm has no counterpart of `k8s`.
    pub renderings: Option<Renderings>,
}

/// The objects of a component as YAML documents.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Renderings {
    /// As helm renders them with the values.
    pub helm: String,
    /// As `sluicectl install` applies them, without the labels of the installation.
    pub installation: String,
}

impl Installation {
    /// Each component as a release of helm.
    ///
    /// # Errors
    /// As [`Installation::render`].
    pub fn helm_releases(
        &self,
        charts: &Charts,
        capabilities: &Capabilities,
    ) -> Result<Vec<HelmRelease>, InstallError> {
        let release = |spec: &ComponentSpec| {
            let subject = || format!("release {}", spec.release);
            let yaml = |reason: String| InstallError::Refused { subject: subject(), reason };
            let objects = self.release_objects(spec, charts, capabilities, &EmptyCluster)?;
            let mut customized = objects.clone();
            self.customize(spec, &mut customized)?;
            let renderings = Renderings {
                helm: documents(&objects).map_err(yaml)?,
                installation: documents(&customized).map_err(yaml)?,
            };
            Ok(HelmRelease {
                component: spec.component,
                name: spec.release.clone(),
                namespace: spec.namespace.clone(),
                chart: charts.of(spec.component).name.clone(),
                values: sluice_template::functions::to_yaml(&spec.values).map_err(yaml)?,
                objects: objects.iter().map(|object| object.key().clone()).collect(),
                renderings: Some(renderings).filter(|both| both.helm != both.installation),
            })
        };
        self.components.iter().map(release).collect()
    }
}

impl HelmRelease {
    /// The commands by which helm takes over the objects that exist, and installs the release. `values` is the name of the file
    /// with the values, which is in the directory of the script.
    #[must_use]
    pub fn script(&self, values: &str) -> String {
        let removed = OWNERSHIP_LABELS.map(|label| format!("{label}-")).join(" ");
        let adopted: String = self.objects.iter().map(adoption).collect();
        let [name, namespace, chart, values] = [&self.name, &self.namespace, &self.chart, values].map(quoted);
        format!(
            r#"#!/usr/bin/env bash
# Charts are read from $CHARTS, by default manifests/charts of a checkout.
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
charts=${{CHARTS:-manifests/charts}}

# Makes an object that exists a part of the release. Without the labels of its installation, sluicectl does not find it again.
adopt() {{
  if [[ -n "$(kubectl get "$@" --ignore-not-found -o name)" ]]; then
    kubectl annotate --overwrite "$@" meta.helm.sh/release-name={name} meta.helm.sh/release-namespace={namespace}
    kubectl label --overwrite "$@" app.kubernetes.io/managed-by=Helm {removed}
  fi
}}

{adopted}
helm upgrade --install {name} "$charts"/{chart} --namespace {namespace} --create-namespace -f "$here"/{values} "$@"
"#
        )
    }
}

fn adoption(key: &ObjectKey) -> String {
    let kind = match key.group() {
        "" => key.kind.clone(),
        group => format!("{}.{group}", key.kind),
    };
    let namespace = match key.namespace.as_str() {
        "" => String::new(),
        namespace => format!(" --namespace {}", quoted(namespace)),
    };
    format!("adopt {} {}{namespace}\n", quoted(&kind), quoted(&key.name))
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/');
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn documents(objects: &[KubeObject]) -> Result<String, String> {
    let texts = objects.iter().map(KubeObject::to_yaml).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.into_iter().map(|text| format!("---\n{text}")).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};
    use sluice_parse::yaml::{Limits, parse_value};

    use super::*;
    use crate::InstallInputs;
    use crate::render::{Release, render};

    const FILE: &str = "\
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  profile: minimal
  components:
    base: {enabled: false}
    pilot: {k8s: {replicaCount: 2}}
    ingressGateways: [{name: front, namespace: edge}]
  values: {pilot: {traceSampling: 5, autoscaleEnabled: false}}
";

    fn releases() -> Vec<HelmRelease> {
        let files = vec![("mesh.yaml".to_owned(), FILE.to_owned())];
        let installation = Installation::read(&InstallInputs { files, ..InstallInputs::default() }).expect("a file");
        installation.helm_releases(&Charts::embedded().expect("charts"), &Capabilities::default()).expect("releases")
    }

    #[test]
    fn values_render_the_objects_that_the_installation_has() {
        let charts = Charts::embedded().expect("charts");
        let files = vec![("mesh.yaml".to_owned(), FILE.replace("replicaCount: 2", ""))];
        let inputs = InstallInputs { files, ..InstallInputs::default() };
        let installation = Installation::read(&inputs).expect("a file");
        let manifests = installation.render(&charts, &Capabilities::default()).expect("manifests");
        for (manifest, release) in manifests.iter().zip(releases()) {
            // What helm reads is the text of the file.
            let values = parse_value(&release.values, &Limits::default()).expect("YAML");
            let chart = charts.of(release.component);
            let as_helm =
                Release { name: release.name.clone(), namespace: release.namespace.clone(), is_upgrade: false };
            let objects = render(chart, &as_helm, &values, &Capabilities::default(), &EmptyCluster).expect("objects");
            let sorted = |objects: &[KubeObject]| {
                let mut objects: Vec<Json> = objects.iter().map(|object| object.json().clone()).collect();
                objects.sort_by_key(Json::to_string);
                objects
            };
            assert_eq!(sorted(&objects), sorted(&manifest.objects), "{}", release.name);
        }
    }

    #[test]
    fn releases_have_values_of_their_chart_and_what_helm_renders_differently() {
        let releases = releases();
        let keys: Vec<_> = releases.iter().map(|it| (&*it.name, &*it.namespace, &*it.chart)).collect();
        assert_eq!(keys, [("istiod", "istio-system", "sluice"), ("front", "edge", "gateway")]);
        let values = parse_value(&releases[0].values, &Limits::default()).expect("YAML");
        assert_eq!(values["pilot"], json!({"traceSampling": 5, "autoscaleEnabled": false}));
        let differing = releases[0].renderings.as_ref().expect("replicas are no value");
        assert!(differing.installation.contains("\n  replicas: 2\n") && !differing.helm.contains("\n  replicas: 2\n"));
        assert_eq!(releases[1].renderings, None);
    }

    #[test]
    fn script_adopts_each_object_and_installs_the_release() {
        let release = &releases()[1];
        let script = release.script("front-values.yaml");
        assert!(script.contains("\nadopt Deployment.apps front --namespace edge\n"), "{script}");
        assert_eq!(script.matches("\nadopt ").count(), release.objects.len());
        let command = "helm upgrade --install front \"$charts\"/gateway --namespace edge --create-namespace -f \"$here\"/front-values.yaml";
        assert!(script.contains(command), "{script}");
        assert!(script.contains("operator.istio.io/managed- operator.istio.io/component- "), "{script}");
    }

    #[test]
    fn words_of_the_shell_are_quoted() {
        for (text, expected) in
            [("a-b.c", "a-b.c"), ("", "''"), ("a b", "'a b'"), ("$(x)", "'$(x)'"), ("-f", "'-f'"), ("a'b", r"'a'\''b'")]
        {
            assert_eq!(quoted(text), expected);
        }
    }
}
