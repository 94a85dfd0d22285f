//! The fields of pods: their types, and the keys by which lists are merged.

use super::structure::FieldKind::{
    Any, Bool, IntOrString, Integer, Keyed, List, OptionalBool, OptionalInteger, OptionalText, Pointer, Quantities,
    Struct, Text, TextMap, TextSet, Texts,
};
use super::structure::{Structure, structure};
use super::volume_schema::{FIELD_REF, LOCAL_OBJECT_REFERENCE, RESOURCE_FIELD_REF, VOLUME};

pub(crate) static POD: Structure = structure(
    "v1.Pod",
    &[
        ("apiVersion", Text),
        ("kind", Text),
        ("metadata", Struct(&OBJECT_META)),
        ("spec", Struct(&POD_SPEC)),
        ("status", Any),
    ],
);

pub(crate) static OBJECT_META: Structure = structure(
    "v1.ObjectMeta",
    &[
        ("name", Text),
        ("generateName", Text),
        ("namespace", Text),
        ("selfLink", Text),
        ("uid", Text),
        ("resourceVersion", Text),
        ("generation", Integer),
        ("creationTimestamp", Any),
        ("deletionTimestamp", Any),
        ("deletionGracePeriodSeconds", OptionalInteger),
        ("labels", TextMap),
        ("annotations", TextMap),
        ("ownerReferences", Keyed(&OWNER_REFERENCE, "uid")),
        ("finalizers", TextSet),
        ("managedFields", Any),
    ],
);

static OWNER_REFERENCE: Structure = structure(
    "v1.OwnerReference",
    &[
        ("apiVersion", Text),
        ("kind", Text),
        ("name", Text),
        ("uid", Text),
        ("controller", OptionalBool),
        ("blockOwnerDeletion", OptionalBool),
    ],
);

pub(crate) static POD_SPEC: Structure = structure(
    "v1.PodSpec",
    &[
        ("volumes", Keyed(&VOLUME, "name")),
        ("initContainers", Keyed(&CONTAINER, "name")),
        ("containers", Keyed(&CONTAINER, "name")),
        ("ephemeralContainers", Keyed(&CONTAINER, "name")),
        ("restartPolicy", Text),
        ("terminationGracePeriodSeconds", OptionalInteger),
        ("activeDeadlineSeconds", OptionalInteger),
        ("dnsPolicy", Text),
        ("nodeSelector", TextMap),
        ("serviceAccountName", Text),
        ("serviceAccount", Text),
        ("automountServiceAccountToken", OptionalBool),
        ("nodeName", Text),
        ("hostNetwork", Bool),
        ("hostPID", Bool),
        ("hostIPC", Bool),
        ("shareProcessNamespace", OptionalBool),
        ("securityContext", Pointer(&POD_SECURITY_CONTEXT)),
        ("imagePullSecrets", Keyed(&LOCAL_OBJECT_REFERENCE, "name")),
        ("hostname", Text),
        ("subdomain", Text),
        ("affinity", Any),
        ("schedulerName", Text),
        ("tolerations", List(&TOLERATION)),
        ("hostAliases", Keyed(&HOST_ALIAS, "ip")),
        ("priorityClassName", Text),
        ("priority", OptionalInteger),
        ("dnsConfig", Pointer(&DNS_CONFIG)),
        ("readinessGates", List(&READINESS_GATE)),
        ("runtimeClassName", OptionalText),
        ("enableServiceLinks", OptionalBool),
        ("preemptionPolicy", Text),
        ("overhead", Quantities),
        ("topologySpreadConstraints", Keyed(&TOPOLOGY_SPREAD, "topologyKey")),
        ("setHostnameAsFQDN", OptionalBool),
        ("os", Pointer(&POD_OS)),
        ("hostUsers", OptionalBool),
        ("schedulingGates", Keyed(&SCHEDULING_GATE, "name")),
        ("resourceClaims", Keyed(&RESOURCE_CLAIM, "name")),
        ("resources", Pointer(&RESOURCES)),
        ("hostnameOverride", Text),
    ],
);

static POD_OS: Structure = structure("v1.PodOS", &[("name", Text)]);
static SCHEDULING_GATE: Structure = structure("v1.PodSchedulingGate", &[("name", Text)]);
static READINESS_GATE: Structure = structure("v1.PodReadinessGate", &[("conditionType", Text)]);
static HOST_ALIAS: Structure = structure("v1.HostAlias", &[("ip", Text), ("hostnames", Texts)]);
static NAME_AND_VALUE: Structure = structure("v1.PodDNSConfigOption", &[("name", Text), ("value", OptionalText)]);
static SYSCTL: Structure = structure("v1.Sysctl", &[("name", Text), ("value", OptionalText)]);

static RESOURCE_CLAIM: Structure = structure(
    "v1.PodResourceClaim",
    &[("name", Text), ("resourceClaimName", Text), ("resourceClaimTemplateName", Text)],
);

static DNS_CONFIG: Structure =
    structure("v1.PodDNSConfig", &[("nameservers", Texts), ("searches", Texts), ("options", List(&NAME_AND_VALUE))]);

static TOLERATION: Structure = structure(
    "v1.Toleration",
    &[("key", Text), ("operator", Text), ("value", Text), ("effect", Text), ("tolerationSeconds", OptionalInteger)],
);

static TOPOLOGY_SPREAD: Structure = structure(
    "v1.TopologySpreadConstraint",
    &[
        ("maxSkew", Integer),
        ("topologyKey", Text),
        ("whenUnsatisfiable", Text),
        ("labelSelector", Any),
        ("minDomains", OptionalInteger),
        ("nodeAffinityPolicy", Text),
        ("nodeTaintsPolicy", Text),
        ("matchLabelKeys", Texts),
    ],
);

static POD_SECURITY_CONTEXT: Structure = structure(
    "v1.PodSecurityContext",
    &[
        ("seLinuxOptions", Any),
        ("windowsOptions", Any),
        ("runAsUser", OptionalInteger),
        ("runAsGroup", OptionalInteger),
        ("runAsNonRoot", OptionalBool),
        ("supplementalGroups", Any),
        ("supplementalGroupsPolicy", Text),
        ("fsGroup", OptionalInteger),
        ("sysctls", List(&SYSCTL)),
        ("fsGroupChangePolicy", Text),
        ("seccompProfile", Pointer(&SECCOMP_PROFILE)),
        ("appArmorProfile", Pointer(&SECCOMP_PROFILE)),
        ("seLinuxChangePolicy", Text),
    ],
);

static SECCOMP_PROFILE: Structure = structure("v1.SeccompProfile", &[("type", Text), ("localhostProfile", Text)]);

static CONTAINER: Structure = structure(
    "v1.Container",
    &[
        ("name", Text),
        ("image", Text),
        ("command", Texts),
        ("args", Texts),
        ("workingDir", Text),
        ("ports", Keyed(&CONTAINER_PORT, "containerPort")),
        ("envFrom", List(&ENV_FROM)),
        ("env", Keyed(&ENV_VAR, "name")),
        ("resources", Struct(&RESOURCES)),
        ("resizePolicy", List(&RESIZE_POLICY)),
        ("restartPolicy", Text),
        ("restartPolicyRules", Any),
        ("volumeMounts", Keyed(&VOLUME_MOUNT, "mountPath")),
        ("volumeDevices", Keyed(&VOLUME_DEVICE, "devicePath")),
        ("livenessProbe", Pointer(&PROBE)),
        ("readinessProbe", Pointer(&PROBE)),
        ("startupProbe", Pointer(&PROBE)),
        ("lifecycle", Pointer(&LIFECYCLE)),
        ("terminationMessagePath", Text),
        ("terminationMessagePolicy", Text),
        ("imagePullPolicy", Text),
        ("securityContext", Pointer(&SECURITY_CONTEXT)),
        ("stdin", Bool),
        ("stdinOnce", Bool),
        ("tty", Bool),
        ("targetContainerName", Text),
    ],
);

static CONTAINER_PORT: Structure = structure(
    "v1.ContainerPort",
    &[("name", Text), ("hostPort", Integer), ("containerPort", Integer), ("protocol", Text), ("hostIP", Text)],
);

static ENV_FROM: Structure = structure(
    "v1.EnvFromSource",
    &[("prefix", Text), ("configMapRef", Pointer(&OPTIONAL_REFERENCE)), ("secretRef", Pointer(&OPTIONAL_REFERENCE))],
);

static OPTIONAL_REFERENCE: Structure =
    structure("v1.ConfigMapEnvSource", &[("name", Text), ("optional", OptionalBool)]);

static ENV_VAR: Structure =
    structure("v1.EnvVar", &[("name", Text), ("value", Text), ("valueFrom", Pointer(&ENV_VAR_SOURCE))]);

static ENV_VAR_SOURCE: Structure = structure(
    "v1.EnvVarSource",
    &[
        ("fieldRef", Pointer(&FIELD_REF)),
        ("resourceFieldRef", Pointer(&RESOURCE_FIELD_REF)),
        ("configMapKeyRef", Pointer(&KEY_REF)),
        ("secretKeyRef", Pointer(&KEY_REF)),
        ("fileKeyRef", Any),
    ],
);

static KEY_REF: Structure =
    structure("v1.ConfigMapKeySelector", &[("name", Text), ("key", Text), ("optional", OptionalBool)]);

static RESOURCES: Structure = structure(
    "v1.ResourceRequirements",
    &[("limits", Quantities), ("requests", Quantities), ("claims", List(&CONTAINER_CLAIM))],
);

static CONTAINER_CLAIM: Structure = structure("v1.ResourceClaim", &[("name", Text), ("request", Text)]);

static RESIZE_POLICY: Structure =
    structure("v1.ContainerResizePolicy", &[("resourceName", Text), ("restartPolicy", Text)]);

static VOLUME_MOUNT: Structure = structure(
    "v1.VolumeMount",
    &[
        ("name", Text),
        ("readOnly", Bool),
        ("recursiveReadOnly", Text),
        ("mountPath", Text),
        ("subPath", Text),
        ("mountPropagation", Text),
        ("subPathExpr", Text),
    ],
);

static VOLUME_DEVICE: Structure = structure("v1.VolumeDevice", &[("name", Text), ("devicePath", Text)]);

static PROBE: Structure = structure(
    "v1.Probe",
    &[
        ("exec", Pointer(&EXEC)),
        ("httpGet", Pointer(&HTTP_GET)),
        ("tcpSocket", Pointer(&TCP_SOCKET)),
        ("grpc", Pointer(&GRPC)),
        ("initialDelaySeconds", Integer),
        ("timeoutSeconds", Integer),
        ("periodSeconds", Integer),
        ("successThreshold", Integer),
        ("failureThreshold", Integer),
        ("terminationGracePeriodSeconds", OptionalInteger),
    ],
);

static EXEC: Structure = structure("v1.ExecAction", &[("command", Texts)]);

static HTTP_GET: Structure = structure(
    "v1.HTTPGetAction",
    &[("path", Text), ("port", IntOrString), ("host", Text), ("scheme", Text), ("httpHeaders", List(&HTTP_HEADER))],
);

static HTTP_HEADER: Structure = structure("v1.HTTPHeader", &[("name", Text), ("value", OptionalText)]);
static TCP_SOCKET: Structure = structure("v1.TCPSocketAction", &[("port", IntOrString), ("host", Text)]);
static GRPC: Structure = structure("v1.GRPCAction", &[("port", Integer), ("service", OptionalText)]);

static LIFECYCLE: Structure = structure(
    "v1.Lifecycle",
    &[("postStart", Pointer(&LIFECYCLE_HANDLER)), ("preStop", Pointer(&LIFECYCLE_HANDLER)), ("stopSignal", Text)],
);

static LIFECYCLE_HANDLER: Structure = structure(
    "v1.LifecycleHandler",
    &[("exec", Pointer(&EXEC)), ("httpGet", Pointer(&HTTP_GET)), ("tcpSocket", Pointer(&TCP_SOCKET)), ("sleep", Any)],
);

static SECURITY_CONTEXT: Structure = structure(
    "v1.SecurityContext",
    &[
        ("capabilities", Pointer(&CAPABILITIES)),
        ("privileged", OptionalBool),
        ("seLinuxOptions", Any),
        ("windowsOptions", Any),
        ("runAsUser", OptionalInteger),
        ("runAsGroup", OptionalInteger),
        ("runAsNonRoot", OptionalBool),
        ("readOnlyRootFilesystem", OptionalBool),
        ("allowPrivilegeEscalation", OptionalBool),
        ("procMount", Text),
        ("seccompProfile", Pointer(&SECCOMP_PROFILE)),
        ("appArmorProfile", Pointer(&SECCOMP_PROFILE)),
    ],
);

static CAPABILITIES: Structure = structure("v1.Capabilities", &[("add", Texts), ("drop", Texts)]);
