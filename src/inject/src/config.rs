//! The configuration of the injector: `config` and `values` of the ConfigMap `istio-sidecar-injector` (W02).

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};
use sluice_model::LabelSelector;
use sluice_parse::parse_label_selector;
use sluice_parse::yaml::{Limits, SyntaxError, parse_value};
use thiserror::Error;

use crate::functions;
use sluice_template::{Template, TemplateError, Value, show};

/// The template that pods get if nothing selects another one.
const DEFAULT_TEMPLATE: &str = "sidecar";
/// Name of the proxy's image if `values` does not have one.
const DEFAULT_IMAGE: &str = "proxyv2";
/// Kinds of images that are the last part of a tag.
const IMAGE_TYPES: [&str; 2] = ["distroless", "debug"];

/// Why a configuration does not apply.
#[derive(Clone, Debug, Error)]
pub enum ConfigError {
    /// A text is not YAML.
    #[error("{part}: {error}")]
    Syntax {
        /// `config` or `values`.
        part: &'static str,
        /// What is wrong.
        error: SyntaxError,
    },
    /// A field has another type.
    #[error("{path}: expected {expected}")]
    Field {
        /// Path of the field.
        path: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// A template does not parse.
    #[error("template {name}: {error}")]
    Template {
        /// Name of the template.
        name: String,
        /// What is wrong.
        error: TemplateError,
    },
    /// The mesh config does not decode.
    #[error("mesh config: {0}")]
    Mesh(String),
}

/// Which pods are injected if neither label nor annotation says so.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Policy {
    Enabled,
    Disabled,
    /// Any other text: no pod is injected.
    Illegal,
}

/// The part `config`.
#[derive(Debug)]
pub(crate) struct InjectionConfig {
    pub(crate) policy: Policy,
    pub(crate) default_templates: Vec<String>,
    pub(crate) templates: BTreeMap<String, Template>,
    pub(crate) aliases: BTreeMap<String, Vec<String>>,
    pub(crate) never: Vec<LabelSelector>,
    pub(crate) always: Vec<LabelSelector>,
    pub(crate) annotations: Map<String, Json>,
}

fn parse_object(part: &'static str, text: &str) -> Result<Json, ConfigError> {
    let value = parse_value(text, &Limits::default()).map_err(|error| ConfigError::Syntax { part, error })?;
    match value {
        Json::Null => Ok(Json::Object(Map::new())),
        Json::Object(_) => Ok(value),
        _ => Err(ConfigError::Field { path: part.to_owned(), expected: "an object" }),
    }
}

impl InjectionConfig {
    /// Parses the configuration and all its templates.
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigError> {
        let config = parse_object("config", text)?;
        let policy = match config["policy"].as_str() {
            Some("enabled") => Policy::Enabled,
            Some("disabled") => Policy::Disabled,
            _ => Policy::Illegal,
        };
        let mut default_templates = texts(&config["defaultTemplates"], "defaultTemplates")?;
        if default_templates.is_empty() {
            default_templates.push(DEFAULT_TEMPLATE.to_owned());
        }
        let mut templates = BTreeMap::new();
        for (name, source) in object(&config["templates"], "templates")? {
            let path = || format!("templates.{name}");
            let source = source.as_str().ok_or_else(|| ConfigError::Field { path: path(), expected: "a string" })?;
            let template = Template::parse("inject", source, functions::find)
                .map_err(|error| ConfigError::Template { name: name.clone(), error })?;
            templates.insert(name.clone(), template);
        }
        let mut aliases = BTreeMap::new();
        for (name, targets) in object(&config["aliases"], "aliases")? {
            aliases.insert(name.clone(), texts(targets, &format!("aliases.{name}"))?);
        }
        let annotations = object(&config["injectedAnnotations"], "injectedAnnotations")?;
        Ok(Self {
            policy,
            default_templates,
            templates,
            aliases,
            never: selectors(&config, "neverInjectSelector")?,
            always: selectors(&config, "alwaysInjectSelector")?,
            annotations: annotations.clone(),
        })
    }

    /// The templates that an annotation names, or the default ones, with aliases resolved.
    pub(crate) fn template_names(&self, annotation: Option<&str>) -> Vec<String> {
        let named = match annotation {
            Some(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
            None => self.default_templates.clone(),
        };
        named.into_iter().flat_map(|name| self.aliases.get(&name).cloned().unwrap_or_else(|| vec![name])).collect()
    }
}

fn object<'v>(value: &'v Json, path: &str) -> Result<&'v Map<String, Json>, ConfigError> {
    static EMPTY: std::sync::LazyLock<Map<String, Json>> = std::sync::LazyLock::new(Map::new);
    match value {
        Json::Null => Ok(&EMPTY),
        Json::Object(fields) => Ok(fields),
        _ => Err(ConfigError::Field { path: path.to_owned(), expected: "an object" }),
    }
}

fn list(value: &Json, path: &str) -> Result<Vec<Json>, ConfigError> {
    match value {
        Json::Null => Ok(Vec::new()),
        Json::Array(items) => Ok(items.clone()),
        _ => Err(ConfigError::Field { path: path.to_owned(), expected: "a list" }),
    }
}

/// Empty selectors select no pod here, and invalid ones are ignored.
fn selectors(config: &Json, field: &str) -> Result<Vec<LabelSelector>, ConfigError> {
    let found = list(&config[field], field)?;
    Ok(found.iter().filter_map(parse_label_selector).filter(|selector| !selector.is_empty()).collect())
}

fn texts(value: &Json, path: &str) -> Result<Vec<String>, ConfigError> {
    let expected = || ConfigError::Field { path: path.to_owned(), expected: "a list of strings" };
    list(value, path)?.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(expected)).collect()
}

/// The part `values`: the values of the installation.
#[derive(Debug)]
pub(crate) struct Values {
    json: Json,
    /// As templates see them.
    pub(crate) value: Value,
}

impl Values {
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigError> {
        let json = parse_object("values", text)?;
        let value = Value::from_json(&json);
        Ok(Self { json, value })
    }

    /// A text of the values, empty if it is unset.
    pub(crate) fn text(&self, pointer: &str) -> String {
        match self.json.pointer(pointer) {
            None | Some(Json::Null) => String::new(),
            Some(value) => show(&Value::from_json(value)),
        }
    }

    pub(crate) fn flag(&self, pointer: &str) -> bool {
        self.json.pointer(pointer).and_then(Json::as_bool).unwrap_or_default()
    }

    /// The image of the proxy.
    pub(crate) fn proxy_image(&self, image_type: &str, annotation: Option<&str>) -> String {
        self.image("/global/proxy/image", image_type, annotation)
    }

    /// The image of agentgateways.
    pub(crate) fn agentgateway_image(&self, image_type: &str, annotation: Option<&str>) -> String {
        self.image_named("agentgateway", image_type, annotation)
    }

    /// The image of the container that sets up the interception of traffic.
    pub(crate) fn init_image(&self, annotation: Option<&str>) -> String {
        self.image("/global/proxy_init/image", "", annotation)
    }

    fn image(&self, name: &str, image_type: &str, annotation: Option<&str>) -> String {
        let set = |text: String| Some(text).filter(|text| !text.is_empty());
        let name = set(self.text(name)).unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
        self.image_named(&name, image_type, annotation)
    }

    fn image_named(&self, name: &str, image_type: &str, annotation: Option<&str>) -> String {
        let set = |text: String| Some(text).filter(|text| !text.is_empty());
        let variant = set(image_type.to_owned()).unwrap_or_else(|| self.text("/global/variant"));
        let tag = tag_of_type(&self.text("/global/tag"), annotation.unwrap_or(&variant));
        format!("{}/{name}:{tag}", self.text("/global/hub"))
    }
}

/// The tag with the kind of image as its last part.
fn tag_of_type(tag: &str, image_type: &str) -> String {
    if image_type.is_empty() {
        return tag.to_owned();
    }
    let known = IMAGE_TYPES.iter().find_map(|known| tag.strip_suffix(known)?.strip_suffix('-'));
    let tag = known.unwrap_or(tag);
    if image_type == "default" { tag.to_owned() } else { format!("{tag}-{image_type}") }
}
