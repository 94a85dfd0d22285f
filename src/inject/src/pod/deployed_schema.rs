//! The fields of the objects that are deployed for Gateways, as far as their lists are merged by keys.

use super::schema::{OBJECT_META, POD_SPEC};
use super::structure::FieldKind::{Any, Keyed, Pointer, Struct, Text};
use super::structure::{Structure, structure};

pub(crate) static DEPLOYMENT: Structure = structure(
    "v1.Deployment",
    &[("apiVersion", Text), ("kind", Text), ("metadata", Struct(&OBJECT_META)), ("spec", Struct(&DEPLOYMENT_SPEC))],
);

static DEPLOYMENT_SPEC: Structure = structure(
    "v1.DeploymentSpec",
    &[("replicas", Any), ("selector", Any), ("template", Struct(&POD_TEMPLATE)), ("strategy", Any)],
);

static POD_TEMPLATE: Structure =
    structure("v1.PodTemplateSpec", &[("metadata", Struct(&OBJECT_META)), ("spec", Struct(&POD_SPEC))]);

pub(crate) static SERVICE: Structure = structure(
    "v1.Service",
    &[("apiVersion", Text), ("kind", Text), ("metadata", Struct(&OBJECT_META)), ("spec", Struct(&SERVICE_SPEC))],
);

static SERVICE_SPEC: Structure = structure("v1.ServiceSpec", &[("ports", Keyed(&SERVICE_PORT, "port"))]);

static SERVICE_PORT: Structure = structure("v1.ServicePort", &[("name", Text), ("port", Any), ("protocol", Text)]);

pub(crate) static SERVICE_ACCOUNT: Structure = structure(
    "v1.ServiceAccount",
    &[
        ("apiVersion", Text),
        ("kind", Text),
        ("metadata", Struct(&OBJECT_META)),
        ("secrets", Keyed(&OBJECT_REFERENCE, "name")),
    ],
);

static OBJECT_REFERENCE: Structure = structure("v1.ObjectReference", &[("name", Text)]);

/// HorizontalPodAutoscalers and PodDisruptionBudgets: their own lists are replaced as a whole.
pub(crate) static OTHER: Structure = structure(
    "object",
    &[("apiVersion", Text), ("kind", Text), ("metadata", Struct(&OBJECT_META)), ("spec", Pointer(&OTHER_SPEC))],
);

static OTHER_SPEC: Structure = structure("object", &[]);
