//! The fields of volumes, and of references that containers have too. Sources of single vendors are not listed: they have no
//! quantities and no lists that are merged.

use super::structure::FieldKind::{
    Any, Bool, List, OptionalBool, OptionalInteger, OptionalText, Pointer, Quantity, Text, TextMap,
};
use super::structure::{Structure, structure};

pub(super) static LOCAL_OBJECT_REFERENCE: Structure = structure("v1.LocalObjectReference", &[("name", Text)]);

pub(super) static FIELD_REF: Structure =
    structure("v1.ObjectFieldSelector", &[("apiVersion", Text), ("fieldPath", Text)]);

pub(super) static RESOURCE_FIELD_REF: Structure =
    structure("v1.ResourceFieldSelector", &[("containerName", Text), ("resource", Text), ("divisor", Quantity)]);

pub(super) static VOLUME: Structure = structure(
    "v1.Volume",
    &[
        ("name", Text),
        ("hostPath", Pointer(&HOST_PATH)),
        ("emptyDir", Pointer(&EMPTY_DIR)),
        ("secret", Pointer(&SECRET)),
        ("nfs", Pointer(&NFS)),
        ("persistentVolumeClaim", Pointer(&CLAIM)),
        ("downwardAPI", Pointer(&DOWNWARD_API)),
        ("configMap", Pointer(&CONFIG_MAP)),
        ("projected", Pointer(&PROJECTED)),
        ("csi", Pointer(&CSI)),
        ("ephemeral", Any),
        ("image", Pointer(&IMAGE)),
    ],
);

static HOST_PATH: Structure = structure("v1.HostPathVolumeSource", &[("path", Text), ("type", OptionalText)]);
static NFS: Structure = structure("v1.NFSVolumeSource", &[("server", Text), ("path", Text), ("readOnly", Bool)]);
static IMAGE: Structure = structure("v1.ImageVolumeSource", &[("reference", Text), ("pullPolicy", Text)]);
static EMPTY_DIR: Structure = structure("v1.EmptyDirVolumeSource", &[("medium", Text), ("sizeLimit", Quantity)]);
static CLAIM: Structure = structure("v1.PersistentVolumeClaimVolumeSource", &[("claimName", Text), ("readOnly", Bool)]);

static KEY_TO_PATH: Structure = structure("v1.KeyToPath", &[("key", Text), ("path", Text), ("mode", OptionalInteger)]);

static SECRET: Structure = structure(
    "v1.SecretVolumeSource",
    &[
        ("secretName", Text),
        ("items", List(&KEY_TO_PATH)),
        ("defaultMode", OptionalInteger),
        ("optional", OptionalBool),
    ],
);

static CONFIG_MAP: Structure = structure(
    "v1.ConfigMapVolumeSource",
    &[("name", Text), ("items", List(&KEY_TO_PATH)), ("defaultMode", OptionalInteger), ("optional", OptionalBool)],
);

static DOWNWARD_API: Structure =
    structure("v1.DownwardAPIVolumeSource", &[("items", List(&DOWNWARD_API_FILE)), ("defaultMode", OptionalInteger)]);

static DOWNWARD_API_FILE: Structure = structure(
    "v1.DownwardAPIVolumeFile",
    &[
        ("path", Text),
        ("fieldRef", Pointer(&FIELD_REF)),
        ("resourceFieldRef", Pointer(&RESOURCE_FIELD_REF)),
        ("mode", OptionalInteger),
    ],
);

static PROJECTED: Structure =
    structure("v1.ProjectedVolumeSource", &[("sources", List(&VOLUME_PROJECTION)), ("defaultMode", OptionalInteger)]);

static VOLUME_PROJECTION: Structure = structure(
    "v1.VolumeProjection",
    &[
        ("secret", Pointer(&PROJECTED_ITEMS)),
        ("downwardAPI", Pointer(&DOWNWARD_API)),
        ("configMap", Pointer(&PROJECTED_ITEMS)),
        ("serviceAccountToken", Pointer(&TOKEN)),
        ("clusterTrustBundle", Pointer(&TRUST_BUNDLE)),
        ("podCertificate", Any),
    ],
);

static PROJECTED_ITEMS: Structure =
    structure("v1.ConfigMapProjection", &[("name", Text), ("items", List(&KEY_TO_PATH)), ("optional", OptionalBool)]);

static TOKEN: Structure = structure(
    "v1.ServiceAccountTokenProjection",
    &[("audience", Text), ("expirationSeconds", OptionalInteger), ("path", Text)],
);

static TRUST_BUNDLE: Structure = structure(
    "v1.ClusterTrustBundleProjection",
    &[("name", Text), ("signerName", Text), ("labelSelector", Any), ("optional", OptionalBool), ("path", Text)],
);

static CSI: Structure = structure(
    "v1.CSIVolumeSource",
    &[
        ("driver", Text),
        ("readOnly", OptionalBool),
        ("fsType", Text),
        ("volumeAttributes", TextMap),
        ("nodePublishSecretRef", Pointer(&LOCAL_OBJECT_REFERENCE)),
    ],
);
