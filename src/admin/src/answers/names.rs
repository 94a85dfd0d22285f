//! Names of objects and resource types as people write them: `VirtualService/shop/cart`, `vs/shop/cart`, `cds`, `clusters`.

use std::fmt;

use sluice_graph::Inputs;
use sluice_model::{Kind, ObjectKey, ResourceType, Text};
use sluice_parse::{KINDS, KindInfo};
use sluice_xds::short_name;

/// Short names of kinds, as in the CRDs and in Kubernetes.
const SHORT_NAMES: &[(&str, &[Kind])] = &[
    ("cm", &[Kind::ConfigMap]),
    ("dr", &[Kind::DestinationRule]),
    ("gtw", &[Kind::KubernetesGateway]),
    ("gw", &[Kind::Gateway]),
    ("ing", &[Kind::Ingress]),
    ("no", &[Kind::Node]),
    ("ns", &[Kind::Namespace]),
    ("pa", &[Kind::PeerAuthentication]),
    ("po", &[Kind::Pod]),
    ("ap", &[Kind::AuthorizationPolicy]),
    ("ra", &[Kind::RequestAuthentication]),
    ("se", &[Kind::ServiceEntry]),
    ("svc", &[Kind::Service]),
    ("telemetry", &[Kind::Telemetry]),
    ("vs", &[Kind::VirtualService]),
    ("we", &[Kind::WorkloadEntry]),
    ("wg", &[Kind::WorkloadGroup]),
];

/// Words for resource types, besides the short names of xDS.
const TYPE_WORDS: &[(&str, ResourceType)] = &[
    ("cluster", ResourceType::Cluster),
    ("endpoint", ResourceType::Endpoint),
    ("lbendpoint", ResourceType::LbEndpoint),
    ("listener", ResourceType::Listener),
    ("route", ResourceType::Route),
    ("virtualhost", ResourceType::VirtualHost),
    ("secret", ResourceType::Secret),
    ("extension", ResourceType::ExtensionConfig),
    ("nametable", ResourceType::NameTable),
    ("address", ResourceType::Address),
    ("authorization", ResourceType::Authorization),
];

/// An object as a user names it. Several kinds have the name `Gateway`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ObjectName {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) namespace: Text,
    pub(crate) name: Text,
}

/// A text that does not name what it should.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum NameError {
    /// The text has not the form of an object's name.
    #[error(
        "{0:?} is not an object: write KIND/NAMESPACE/NAME, such as VirtualService/shop/cart, or KIND/NAME for a kind without namespaces or with a namespace given apart"
    )]
    NotAnObject(String),
    /// There is no such kind.
    #[error("kind {text:?} is unknown{}", did_you_mean(.similar))]
    UnknownKind {
        /// The kind as given.
        text: String,
        /// Kinds with similar names.
        similar: Vec<String>,
    },
    /// The kind exists, and is not read.
    #[error("kind {0} is not read by this control plane")]
    UnreadKind(String),
    /// There is no such resource type.
    #[error("type {text:?} is unknown{}; types are cds, eds, lds, rds, vhds, sds, ecds, nds, wds, wads, agentgateway, or words such as cluster and route", did_you_mean(.similar))]
    UnknownType {
        /// The type as given.
        text: String,
        /// Types with similar names.
        similar: Vec<String>,
    },
}

impl ObjectName {
    /// Reads `KIND/NAMESPACE/NAME`, `KIND/NAME` with a default namespace, or `KIND/NAME` of a kind without namespaces. The kind
    /// may be plural, in any case, a short name, or have its group (`gateways.gateway.networking.k8s.io`).
    pub(crate) fn parse(text: &str, default_namespace: &str) -> Result<Self, NameError> {
        let malformed = || NameError::NotAnObject(text.to_owned());
        let parts: Vec<&str> = text.split('/').map(str::trim).collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(malformed());
        }
        let (kind, namespace, name) = match parts[..] {
            [kind, namespace, name] => (kind, Some(namespace), name),
            [kind, name] => (kind, None, name),
            _ => return Err(malformed()),
        };
        let infos = find_kinds(kind)?;
        let is_namespaced = infos.iter().any(|info| info.namespaced);
        let namespace = match namespace {
            Some(_) if !is_namespaced => return Err(malformed()),
            Some(namespace) => namespace,
            None if !is_namespaced => "",
            None if default_namespace.is_empty() => return Err(malformed()),
            None => default_namespace,
        };
        let kinds: Vec<Kind> = infos.iter().map(|info| info.kind).collect();
        Ok(Self { kinds, namespace: namespace.into(), name: name.into() })
    }

    /// The key of the object in a cluster.
    pub(crate) fn key(&self, cluster: &Text) -> ObjectKey {
        ObjectKey::new(cluster.clone(), self.namespace.clone(), self.name.clone())
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kinds.first().map(|kind| kind.name()).unwrap_or_default();
        f.write_str(&object_text(&kind, &self.namespace, &self.name))
    }
}

/// `KIND/NAMESPACE/NAME`, or `KIND/NAME` without a namespace.
pub(crate) fn object_text(kind: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() { format!("{kind}/{name}") } else { format!("{kind}/{namespace}/{name}") }
}

/// The kinds that are read and have this name.
fn find_kinds(text: &str) -> Result<Vec<&'static KindInfo>, NameError> {
    let text = text.to_ascii_lowercase();
    let (kind, group) = text.split_once('.').unwrap_or((&text, ""));
    let short = SHORT_NAMES.iter().find(|(short, _)| *short == kind).map(|(_, kinds)| *kinds);
    let is_named = |info: &&KindInfo| match short {
        Some(kinds) => kinds.contains(&info.kind),
        None => info.name.to_ascii_lowercase() == kind || info.plural == kind,
    };
    let found: Vec<_> = KINDS.iter().filter(is_named).filter(|info| group.is_empty() || info.group == group).collect();
    if found.is_empty() {
        let names = KINDS.iter().map(|info| info.name);
        return Err(NameError::UnknownKind { similar: similar(&text, names), text });
    }
    let read: Vec<_> = found.iter().copied().filter(|info| Inputs::collection(info.kind).is_some()).collect();
    if read.is_empty() { Err(NameError::UnreadKind(found[0].name.to_owned())) } else { Ok(read) }
}

/// The resource type of a short name, a word in singular or plural, or a type URL.
pub(crate) fn resource_type(text: &str) -> Result<ResourceType, NameError> {
    let word = text.to_ascii_lowercase().replace(['-', '_'], "");
    let singular = match word.strip_suffix("es") {
        Some(stem) if TYPE_WORDS.iter().any(|(known, _)| *known == stem) => stem,
        _ => word.strip_suffix('s').unwrap_or(&word),
    };
    let by_word = || TYPE_WORDS.iter().find(|(known, _)| *known == singular).map(|(_, kind)| *kind);
    let by_name = || ResourceType::ALL.into_iter().find(|kind| short_name(*kind) == word);
    ResourceType::from_type_url(text).or_else(by_name).or_else(by_word).ok_or_else(|| {
        let names = ResourceType::ALL.into_iter().map(short_name).chain(TYPE_WORDS.iter().map(|(word, _)| *word));
        NameError::UnknownType { similar: similar(&word, names), text: text.to_owned() }
    })
}

/// How many similar names an error lists.
const MAX_SIMILAR_NAMES: usize = 8;

/// The names that are similar to a text, the most similar first: those that contain it, and those with few other letters.
pub(crate) fn similar<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let wanted = text.to_ascii_lowercase();
    let mut ranked: Vec<(bool, u64, &str)> = Vec::new();
    for name in names {
        let lower = name.to_ascii_lowercase();
        let contains = !wanted.is_empty() && lower.contains(&wanted);
        let likeness = strsim::jaro_winkler(&wanted, &lower);
        if contains || likeness > 0.85 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1,000,000")]
            ranked.push((!contains, 1_000_000 - (likeness * 1e6) as u64, name));
        }
    }
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().take(MAX_SIMILAR_NAMES).map(|(_, _, name)| name.to_owned()).collect()
}

/// The end of an error message with similar names.
pub(crate) fn did_you_mean(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; did you mean {one:?}?"),
        names => format!("; did you mean one of {}?", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_in_kubectl() {
        let parse = |text: &str| ObjectName::parse(text, "").map(|name| (name.kinds.clone(), name.to_string()));
        let cart = |kind| Ok((vec![kind], format!("{kind:?}/shop/cart")));
        for text in
            ["VirtualService/shop/cart", "virtualservice/shop/cart", "vs/shop/cart", "virtualservices/shop/cart"]
        {
            assert_eq!(parse(text), cart(Kind::VirtualService), "{text}");
        }
        assert_eq!(parse("virtualservices.networking.istio.io/shop/cart"), cart(Kind::VirtualService));
        assert_eq!(parse("svc/shop/cart"), cart(Kind::Service));
        assert_eq!(parse("Namespace/shop"), Ok((vec![Kind::Namespace], "Namespace/shop".to_owned())));
        let both = vec![Kind::Gateway, Kind::KubernetesGateway];
        assert_eq!(parse("Gateway/shop/door"), Ok((both, "Gateway/shop/door".to_owned())));
        let one = parse("gateway.gateway.networking.k8s.io/shop/door");
        assert_eq!(one, Ok((vec![Kind::KubernetesGateway], "Gateway/shop/door".to_owned())));
        assert_eq!(
            ObjectName::parse("vs/cart", "shop").map(|name| name.to_string()),
            Ok("VirtualService/shop/cart".into())
        );
    }

    #[test]
    fn malformed_names_are_explained() {
        for text in ["cart", "vs/cart", "vs//cart", "a/b/c/d", "namespace/x/y", ""] {
            assert_eq!(ObjectName::parse(text, ""), Err(NameError::NotAnObject(text.into())), "{text}");
        }
        let error = ObjectName::parse("VirtualServce/shop/cart", "").expect_err("unknown").to_string();
        assert!(error.contains("did you mean") && error.contains("VirtualService"), "{error}");
        let error = ObjectName::parse("ServiceAccount/shop/cart", "").expect_err("not read");
        assert_eq!(error, NameError::UnreadKind("ServiceAccount".into()));
    }

    #[test]
    fn resource_types_have_short_names_words_and_urls() {
        for (text, kind) in [
            ("cds", ResourceType::Cluster),
            ("RDS", ResourceType::Route),
            ("clusters", ResourceType::Cluster),
            ("Route", ResourceType::Route),
            ("addresses", ResourceType::Address),
            ("virtual-hosts", ResourceType::VirtualHost),
            ("type.googleapis.com/envoy.config.listener.v3.Listener", ResourceType::Listener),
        ] {
            assert_eq!(resource_type(text), Ok(kind), "{text}");
        }
        let error = resource_type("clusterz").expect_err("unknown").to_string();
        assert!(error.contains("\"cluster\"") || error.contains("cluster"), "{error}");
    }
}
