//! The ConfigMaps with overlays of the objects that are deployed for Gateways (G04).

use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::gateway_api::{Gateway, GatewayParameters, GroupKind};
use sluice_model::{ObjectKey, Text};

use crate::options::GraphOptions;
use crate::statuses::StatusProblem;

/// ConfigMaps with overlays, and those with the defaults of a class.
pub(super) struct ParameterIndex<'s> {
    all: Collection<'s, ObjectKey, GatewayParameters>,
    by_class: Index<'s, Text, ObjectKey, GatewayParameters>,
}

impl<'s> ParameterIndex<'s> {
    /// The ConfigMaps, of which those in the namespace of the control plane may have the defaults of a class.
    pub(super) fn new(all: &Collection<'s, ObjectKey, GatewayParameters>, options: &GraphOptions) -> Self {
        let (cluster, namespace) = (options.cluster.clone(), options.system_namespace.clone());
        let by_class = all.index("gateway_parameters/by-class", move |key, parameters| {
            let class = &parameters.defaults_for_class;
            let has_defaults = !class.is_empty() && key.cluster == cluster && key.namespace == namespace;
            has_defaults.then(|| (class.clone(), parameters.clone()))
        });
        Self { all: all.clone(), by_class }
    }
}

/// Looks up the parameters of Gateways.
pub(super) struct ParameterLookup {
    all: Dep<ObjectKey, GatewayParameters>,
    by_class: IndexDep<Text, ObjectKey, GatewayParameters>,
}

/// A ConfigMap with overlays.
pub(super) type OverlaySource = (ObjectKey, Arc<GatewayParameters>);

impl ParameterLookup {
    /// Declares the look-up.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, index: &ParameterIndex<'s>) -> Self {
        Self { all: deps.on(&index.all), by_class: deps.by(&index.by_class) }
    }

    /// The defaults of a class: of several ConfigMaps, the oldest.
    pub(super) fn of_class(&self, cx: &Context, class: &Text) -> Option<OverlaySource> {
        let all = cx.by(&self.by_class, class);
        all.into_iter().min_by(|(a, x), (b, y)| (x.created, &a.name).cmp(&(y.created, &b.name)))
    }

    /// The parameters that a Gateway refers to.
    ///
    /// # Errors
    /// They are of a kind that is not supported, or do not exist.
    pub(super) fn of_gateway(
        &self,
        cx: &Context,
        key: &ObjectKey,
        gateway: &Gateway,
    ) -> Result<Option<OverlaySource>, StatusProblem> {
        let Some(reference) = &gateway.infrastructure.parameters else { return Ok(None) };
        let problem = |message: String| Err(StatusProblem::new("InvalidParameters", message));
        let GroupKind { group, kind } = &reference.kind;
        if !reference.kind.is("", "ConfigMap") {
            return problem(format!(
                "Unsupported parametersRef group/kind {group}/{kind}, only ConfigMap is supported"
            ));
        }
        // Parameters are always in the namespace of their Gateway.
        let ObjectKey { cluster, namespace, .. } = key;
        let config_map = ObjectKey::new(cluster.clone(), namespace.clone(), reference.name.clone());
        match cx.get(&self.all, &config_map) {
            Some(parameters) => Ok(Some((config_map, parameters))),
            None => problem(format!("parametersRef ConfigMap {namespace}/{} does not exist", reference.name)),
        }
    }
}
