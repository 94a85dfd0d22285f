//! Reads IstioOperator files: what an installation consists of, and the values of its charts.
//!
//! The files and flags are merged in order over a profile. A field that has no effect here is refused with its path.

mod component;
mod fields;
mod gateway_values;
mod input;
mod node_values;
mod profile;

use serde_json::{Map, Value as Json, json};
use sluice_parse::is_dns_label;

use crate::error::InstallError;
use crate::values::{merge, parse_path, set};

use fields::{OperatorFields, text_of};
use input::{apply_setting, read_file};
use profile::Profile;

pub use component::Component;
pub(crate) use node_values::ztunnel_name;

/// The namespace of most installations.
pub const DEFAULT_NAMESPACE: &str = "istio-system";
/// The revision of an installation without a name.
pub const DEFAULT_REVISION: &str = "default";
/// The release of the CNI agent.
const CNI_RELEASE: &str = "istio-cni";
/// The release of ztunnel.
const ZTUNNEL_RELEASE: &str = "ztunnel";
/// The owner of objects whose file has no name, as in Istio's charts.
const UNNAMED_OWNER: &str = "unknown";

/// What the user asks for.
#[derive(Clone, Debug, Default)]
pub struct InstallInputs {
    /// Names and texts of IstioOperator files, in order.
    pub files: Vec<(String, String)>,
    /// `PATH=VALUE`, with paths below `spec`. They apply over the files.
    pub settings: Vec<String>,
    /// The namespace of the control plane, if no file states one.
    pub namespace: Option<String>,
    /// The revision, over that of the files.
    pub revision: Option<String>,
}

/// A component that is installed, with the values of its chart.
#[derive(Clone, Debug)]
pub(crate) struct ComponentSpec {
    pub(crate) component: Component,
    /// Name of the release, which is that of a gateway.
    pub(crate) release: String,
    pub(crate) namespace: String,
    pub(crate) values: Json,
    /// `k8s`: changes of the rendered objects.
    pub(crate) kubernetes: Map<String, Json>,
    /// Where the component is in the file.
    pub(crate) path: String,
}

/// An installation, as files and flags describe it.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The owner of its objects: the name of the IstioOperator.
    pub owner: String,
    /// The namespace of the control plane.
    pub namespace: String,
    /// The revision.
    pub revision: String,
    /// The profile.
    pub profile: String,
    /// What the user should know, a line for each.
    pub notes: Vec<String>,
    pub(crate) components: Vec<ComponentSpec>,
    /// Components of which objects are pruned that are no longer rendered.
    pub(crate) managed: Vec<Component>,
    /// Label of the namespace: the network of the cluster.
    pub(crate) network: String,
}

impl Installation {
    /// Reads files and flags.
    ///
    /// # Errors
    /// A file is no IstioOperator, or a field or flag is unknown, malformed, or has no effect here.
    pub fn read(inputs: &InstallInputs) -> Result<Self, InstallError> {
        let mut operator = json!({"metadata": {}, "spec": {}});
        for (name, text) in &inputs.files {
            merge(&mut operator, &read_file(name, text)?);
        }
        for setting in &inputs.settings {
            apply_setting(&mut operator["spec"], setting)?;
        }
        if let Some(revision) = &inputs.revision {
            operator["spec"]["revision"] = revision.as_str().into();
        }
        Reader::new(&operator, inputs)?.installation()
    }
}

/// The state of reading a merged IstioOperator.
struct Reader<'o> {
    spec: OperatorFields<'o>,
    owner: String,
    namespace: String,
    revision: String,
    profile: Profile,
    /// The values of all charts, as the user names them.
    values: Json,
    notes: Vec<String>,
}

impl<'o> Reader<'o> {
    fn new(operator: &'o Json, inputs: &InstallInputs) -> Result<Self, InstallError> {
        let metadata = OperatorFields::new(&operator["metadata"], "metadata")?;
        let spec = OperatorFields::new(&operator["spec"], "spec")?;
        spec.permit(&[
            "profile",
            "hub",
            "tag",
            "namespace",
            "revision",
            "compatibilityVersion",
            "meshConfig",
            "components",
            "values",
            "unvalidatedValues",
            "installPackagePath",
        ])?;
        if spec.text("installPackagePath")?.is_some_and(|path| !path.is_empty()) {
            return Err(spec.refused("installPackagePath", "use the flag --manifests for the charts of a directory"));
        }
        let profile = Profile::named(spec.text("profile")?.as_deref().unwrap_or("default"))?;
        let values = merged_values(&spec, &profile)?;
        let stated =
            [text_of(&values["global"]["istioNamespace"]), spec.text("namespace")?, metadata.text("namespace")?];
        let stated = stated.into_iter().flatten().find(|namespace| !namespace.is_empty());
        let namespace = match (stated, &inputs.namespace) {
            (Some(stated), Some(flag)) if stated != *flag => {
                let reason = format!("the flag states {flag}, but the files state {stated}");
                return Err(InstallError::input("--istioNamespace", reason));
            }
            (Some(namespace), _) => namespace,
            (None, flag) => flag.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        };
        let revision = text_of(&values["revision"]).filter(|revision| !revision.is_empty());
        let revision = revision.unwrap_or_else(|| DEFAULT_REVISION.to_owned());
        for (path, name) in [("spec.revision", &revision), ("metadata.namespace", &namespace)] {
            check_name(path, name)?;
        }
        let owner = metadata.text("name")?.filter(|name| !name.is_empty());
        let owner = owner.unwrap_or_else(|| UNNAMED_OWNER.to_owned());
        Ok(Self { spec, owner, namespace, revision, notes: profile.notes(), profile, values })
    }

    fn installation(self) -> Result<Installation, InstallError> {
        let components = self.spec.child("components")?;
        components.permit(&[
            "base",
            "pilot",
            "ingressGateways",
            "egressGateways",
            "cni",
            "ztunnel",
            "istiodRemote",
            "gateway",
        ])?;
        self.refuse_missing_components(&components)?;
        let (mut specs, mut managed) = (Vec::new(), Vec::new());
        for component in Component::ALL {
            let (found, is_managed) = match component.is_gateway() {
                true => self.gateways(component, &components)?,
                false => self.single(component, &components)?,
            };
            specs.extend(found);
            if is_managed {
                managed.push(component);
            }
        }
        for (index, spec) in specs.iter().enumerate() {
            let key = (&spec.release, &spec.namespace);
            if specs[..index].iter().any(|other| (&other.release, &other.namespace) == key) {
                return Err(InstallError::input(format!("{}.name", spec.path), "another component has the same name"));
            }
        }
        let network = text_of(&self.values["global"]["network"]).unwrap_or_default();
        Ok(Installation {
            owner: self.owner,
            namespace: self.namespace,
            revision: self.revision,
            profile: self.profile.name.to_owned(),
            notes: self.notes,
            components: specs,
            managed,
            network,
        })
    }

    /// Components of Istio that this installation does not have.
    fn refuse_missing_components(&self, components: &OperatorFields<'_>) -> Result<(), InstallError> {
        const MISSING: [(&str, &str); 2] = [
            ("istiodRemote", "set the profile remote, or values.istiodRemote"),
            ("gateway", "list gateways in ingressGateways or egressGateways"),
        ];
        for (name, reason) in MISSING {
            if components.get(name).is_some() && components.child(name)?.flag("enabled")?.unwrap_or(true) {
                return Err(components.refused(name, reason));
            }
        }
        Ok(())
    }

    /// The base, the control plane, the CNI agent or ztunnel. The second result says whether objects of the component are pruned.
    fn single(
        &self,
        component: Component,
        all: &OperatorFields<'_>,
    ) -> Result<(Vec<ComponentSpec>, bool), InstallError> {
        let is_default = self.profile.has(component);
        let is_stated = all.get(component.key()).is_some();
        let fields = all.child(component.key())?;
        let permitted: &[&str] = match component {
            Component::Base => &["enabled", "namespace", "k8s"],
            _ => &["enabled", "namespace", "hub", "tag", "k8s"],
        };
        fields.permit(permitted)?;
        if !fields.flag("enabled")?.unwrap_or(is_default || is_stated) {
            return Ok((Vec::new(), (is_default || is_stated) && component != Component::Base));
        }
        let namespace = fields.text("namespace")?.unwrap_or_else(|| self.namespace.clone());
        if !component.is_node_agent() && namespace != self.namespace {
            return Err(fields.refused(
                "namespace",
                "the component is in the namespace of the installation: set metadata.namespace",
            ));
        }
        let (release, values) = match component {
            Component::Base => ("istio-base".to_owned(), self.base_values()),
            Component::Cni => (CNI_RELEASE.to_owned(), self.cni_values(&fields)?),
            Component::Ztunnel => (ZTUNNEL_RELEASE.to_owned(), self.ztunnel_values(&fields)?),
            _ => ("istiod".to_owned(), self.control_plane_values(&fields, self.node_settings(all)?)?),
        };
        let spec = ComponentSpec {
            component,
            release: if self.revision == DEFAULT_REVISION || component != Component::Pilot {
                release
            } else {
                format!("{release}-{}", self.revision)
            },
            namespace,
            values,
            kubernetes: fields.map("k8s")?,
            path: fields.path,
        };
        // Other revisions use the base, too.
        Ok((vec![spec], component != Component::Base))
    }

    fn base_values(&self) -> Json {
        let mut values = json!({"global": {}});
        merge(&mut values["global"], &self.values["global"]);
        if values["global"].is_null() {
            values["global"] = json!({});
        }
        let crds = &self.values["base"]["enableIstioConfigCRDs"];
        if !crds.is_null() {
            values["base"] = json!({"enableIstioConfigCRDs": crds});
        }
        values
    }

    /// The values of the chart of the control plane. `node_settings` apply below those of the user.
    fn control_plane_values(&self, fields: &OperatorFields<'_>, node_settings: Json) -> Result<Json, InstallError> {
        let mut values = self.values.clone();
        if let Some(values) = values.as_object_mut() {
            values.retain(|name, _| !["cni", "ztunnel"].contains(&name.as_str()));
        }
        let mut pilot = json!({"pilot": node_settings});
        if let Some(own) = values.get("pilot") {
            merge(&mut pilot["pilot"], own);
        }
        merge(&mut values, &pilot);
        if let Some(gateways) = values.get_mut("gateways").and_then(Json::as_object_mut) {
            gateways.retain(|name, _| !gateway_values::ROOTS.contains(&name.as_str()));
        }
        let (hub, tag) = (fields.text("hub")?, fields.text("tag")?);
        if hub.is_some() || tag.is_some() {
            // Hub and tag apply to an image without both.
            let mut pilot = json!({"pilot": {"image": "sluice"}});
            merge(&mut pilot, &json!({"pilot": values.get("pilot").cloned().unwrap_or_else(|| json!({}))}));
            for (name, value) in [("hub", hub), ("tag", tag)] {
                if let Some(value) = value {
                    pilot["pilot"][name] = value.into();
                }
            }
            merge(&mut values, &pilot);
        }
        if self.owner != UNNAMED_OWNER && values["ownerName"].is_null() {
            values["ownerName"] = self.owner.as_str().into();
        }
        Ok(values)
    }

    /// The gateways of a kind.
    fn gateways(
        &self,
        component: Component,
        all: &OperatorFields<'_>,
    ) -> Result<(Vec<ComponentSpec>, bool), InstallError> {
        let root = gateway_values::root(component);
        let shared = &self.values["gateways"][root];
        let is_enabled_by_value = shared["enabled"] == true;
        let mut specs = Vec::new();
        let path = format!("spec.components.{}", component.key());
        let default = [json!({"name": root})];
        let is_default = self.profile.has(component) || is_enabled_by_value;
        let (list, is_stated): (&[Json], bool) = match all.get(component.key()) {
            None | Some(Json::Null) if is_default => (&default, true),
            None | Some(Json::Null) => (&[], false),
            Some(Json::Array(list)) => (list, true),
            Some(_) => return Err(InstallError::input(path, "a list is expected")),
        };
        for (index, item) in list.iter().enumerate() {
            let fields = OperatorFields::new(item, format!("{path}[{index}]"))?;
            fields.permit(&["enabled", "name", "namespace", "label", "hub", "tag", "k8s"])?;
            if !fields.flag("enabled")?.unwrap_or(true) && !is_enabled_by_value {
                continue;
            }
            for name in ["hub", "tag"] {
                if fields.get(name).is_some() {
                    return Err(
                        fields.refused(name, "a gateway has the image of injected proxies: set spec.hub and spec.tag")
                    );
                }
            }
            let name = fields.text("name")?.filter(|name| !name.is_empty()).unwrap_or_else(|| root.to_owned());
            check_name(&format!("{}.name", fields.path), &name)?;
            let labels = fields.map("label")?;
            let revision = (self.revision != DEFAULT_REVISION).then_some(self.revision.as_str());
            let values = gateway_values::values(component, shared, &labels, revision, &self.values["global"])?;
            specs.push(ComponentSpec {
                component,
                release: name,
                namespace: fields.text("namespace")?.unwrap_or_else(|| self.namespace.clone()),
                values,
                kubernetes: fields.map("k8s")?,
                path: fields.path,
            });
        }
        Ok((specs, is_stated))
    }
}

/// The values of the files, over what the fields beside them stand for.
fn merged_values(spec: &OperatorFields<'_>, profile: &Profile) -> Result<Json, InstallError> {
    let mut values = json!({"profile": profile.chart_profile});
    for (field, path) in [
        ("hub", "/global/hub"),
        ("tag", "/global/tag"),
        ("revision", "/revision"),
        ("compatibilityVersion", "/compatibilityVersion"),
    ] {
        if let Some(text) = spec.text(field)? {
            let steps =
                parse_path(&path[1..].replace('/', ".")).map_err(|reason| InstallError::input(field, reason))?;
            set(&mut values, &steps, text.into()).map_err(|reason| InstallError::input(field, reason))?;
        }
    }
    let mesh = spec.map("meshConfig")?;
    if !mesh.is_empty() {
        values["meshConfig"] = Json::Object(mesh);
    }
    for field in ["values", "unvalidatedValues"] {
        let own = spec.map(field)?;
        if own.get("profile").is_some_and(|own| *own != values["profile"]) {
            return Err(spec.refused(&format!("{field}.profile"), "set spec.profile"));
        }
        merge(&mut values, &Json::Object(own));
    }
    if let Some(pilot) = values.get_mut("pilot").and_then(Json::as_object_mut) {
        // Istio's operator sets it for its charts; it says the same as components.pilot.enabled.
        pilot.remove("enabled");
    }
    Ok(values)
}

/// Names of namespaces, revisions and gateways are labels of DNS.
fn check_name(path: &str, name: &str) -> Result<(), InstallError> {
    match is_dns_label(name) {
        true => Ok(()),
        false => {
            let reason = format!(
                "{name:?} has other characters than lower-case letters, digits and inner dashes, or more than 63"
            );
            Err(InstallError::input(path, reason))
        }
    }
}
