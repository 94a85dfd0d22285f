//! The codes of all messages. `docs/analyze.md` has the same tables; `tests/documented.rs` compares them.

use crate::level::Level;

/// Code, name and level of a kind of message.
#[derive(Debug, Eq, PartialEq)]
pub struct MessageType {
    /// Code, such as `IST0101`.
    pub code: &'static str,
    /// Name.
    pub name: &'static str,
    /// Severity.
    pub level: Level,
}

/// A code of `istioctl` that no analyzer makes.
#[derive(Debug)]
pub struct OtherCode {
    /// Code.
    pub code: &'static str,
    /// Name.
    pub name: &'static str,
    /// What makes it instead, or why nothing does.
    pub state: &'static str,
}

macro_rules! message_types {
    ($($constant:ident = $code:literal $level:ident $name:literal;)*) => {
        $(pub(crate) static $constant: MessageType =
            MessageType { code: $code, name: $name, level: Level::$level };)*

        /// The messages that analyzers make, by code.
        pub static MESSAGE_TYPES: &[&MessageType] = &[$(&$constant),*];
    };
}

message_types! {
    DEPRECATED = "IST0002" Warning "Deprecated";
    REFERENCED_RESOURCE_NOT_FOUND = "IST0101" Error "ReferencedResourceNotFound";
    NAMESPACE_NOT_INJECTED = "IST0102" Info "NamespaceNotInjected";
    POD_MISSING_PROXY = "IST0103" Warning "PodMissingProxy";
    SCHEMA_VALIDATION_ERROR = "IST0106" Error "SchemaValidationError";
    MISPLACED_ANNOTATION = "IST0107" Warning "MisplacedAnnotation";
    UNKNOWN_ANNOTATION = "IST0108" Warning "UnknownAnnotation";
    CONFLICTING_MESH_HOSTS = "IST0109" Error "ConflictingMeshGatewayVirtualServiceHosts";
    CONFLICTING_SIDECAR_SELECTORS = "IST0110" Error "ConflictingSidecarWorkloadSelectors";
    MULTIPLE_DEFAULT_SIDECARS = "IST0111" Error "MultipleSidecarsWithoutWorkloadSelectors";
    DESTINATION_PORT_REQUIRED = "IST0112" Error "VirtualServiceDestinationPortSelectorRequired";
    DEPLOYMENT_CONFLICTING_PROTOCOLS = "IST0116" Warning "DeploymentAssociatedToMultipleServices";
    PORT_NAME_CONVENTION = "IST0118" Info "PortNameIsNotUnderNamingConvention";
    MULTIPLE_INJECTION_LABELS = "IST0123" Warning "NamespaceMultipleInjectionLabels";
    INVALID_ANNOTATION = "IST0125" Warning "InvalidAnnotation";
    UNKNOWN_SERVICE_REGISTRY = "IST0126" Error "UnknownMeshNetworksServiceRegistry";
    NO_MATCHING_WORKLOADS = "IST0127" Warning "NoMatchingWorkloadsFound";
    NO_SERVER_VERIFICATION = "IST0128" Warning "NoServerCertificateVerificationDestinationLevel";
    NO_SERVER_VERIFICATION_PORT = "IST0129" Warning "NoServerCertificateVerificationPortLevel";
    UNREACHABLE_RULE = "IST0130" Warning "VirtualServiceUnreachableRule";
    INEFFECTIVE_MATCH = "IST0131" Info "VirtualServiceIneffectiveMatch";
    HOST_NOT_IN_GATEWAY = "IST0132" Warning "VirtualServiceHostNotFoundInGateway";
    SCHEMA_WARNING = "IST0133" Warning "SchemaWarning";
    SERVICE_ENTRY_ADDRESSES_REQUIRED = "IST0134" Warning "ServiceEntryAddressesRequired";
    DEPRECATED_ANNOTATION = "IST0135" Info "DeprecatedAnnotation";
    ALPHA_ANNOTATION = "IST0136" Info "AlphaAnnotation";
    DEPLOYMENT_CONFLICTING_PORTS = "IST0137" Warning "DeploymentConflictingPorts";
    DUPLICATE_CERTIFICATE = "IST0138" Warning "GatewayDuplicateCertificate";
    INVALID_WEBHOOK = "IST0139" Error "InvalidWebhook";
    ROUTE_RULES_WITHOUT_EFFECT = "IST0140" Warning "IngressRouteRulesNotAffected";
    INVALID_APPLICATION_UID = "IST0144" Warning "InvalidApplicationUID";
    CONFLICTING_GATEWAYS = "IST0145" Error "ConflictingGateways";
    IMAGE_AUTO_DEPLOYMENT = "IST0146" Warning "ImageAutoWithoutInjectionWarning";
    IMAGE_AUTO_POD = "IST0147" Error "ImageAutoWithoutInjectionError";
    INJECTED_BY_DEFAULT = "IST0148" Info "NamespaceInjectionEnabledByDefault";
    JWT_ROUTE_WITHOUT_AUTHENTICATION = "IST0149" Error "JwtClaimBasedRoutingWithoutRequestAuthN";
    EXTERNAL_NAME_PORT = "IST0150" Warning "ExternalNameServiceTypeInvalidPortName";
    RELATIVE_PATCH = "IST0151" Warning "EnvoyFilterUsesRelativeOperation";
    INVALID_REPLACE_PATCH = "IST0152" Error "EnvoyFilterUsesReplaceOperationIncorrectly";
    INVALID_ADD_PATCH = "IST0153" Error "EnvoyFilterUsesAddOperationIncorrectly";
    INVALID_REMOVE_PATCH = "IST0154" Error "EnvoyFilterUsesRemoveOperationIncorrectly";
    RELATIVE_PATCH_WITH_VERSION = "IST0155" Warning "EnvoyFilterUsesRelativeOperationWithProxyVersion";
    INVALID_TELEMETRY_PROVIDER = "IST0157" Warning "InvalidTelemetryProvider";
    PROXY_IMAGE_MISMATCH = "IST0158" Warning "PodsIstioProxyImageMismatchInNamespace";
    CONFLICTING_TELEMETRY_SELECTORS = "IST0159" Error "ConflictingTelemetryWorkloadSelectors";
    MULTIPLE_DEFAULT_TELEMETRIES = "IST0160" Error "MultipleTelemetriesWithoutWorkloadSelectors";
    INVALID_GATEWAY_CREDENTIAL = "IST0161" Error "InvalidGatewayCredential";
    GATEWAY_PORT_NOT_ON_SERVICE = "IST0162" Warning "GatewayPortNotDefinedOnService";
    INVALID_EXTERNAL_CONTROL_PLANE = "IST0163" Warning "InvalidExternalControlPlaneConfig";
    EXTERNAL_CONTROL_PLANE_IP = "IST0164" Info "ExternalControlPlaneAddressIsNotAHostname";
    INTERNAL_GATEWAY_REFERENCE = "IST0165" Warning "ReferencedInternalGateway";
    INEFFECTIVE_SELECTOR = "IST0166" Warning "IneffectiveSelector";
    INEFFECTIVE_POLICY = "IST0167" Warning "IneffectivePolicy";
    INCONSISTENT_SERVICE = "IST0170" Warning "MultiClusterInconsistentService";
    NEGATIVE_CONDITION = "IST0171" Warning "NegativeConditionStatus";
    SUBSET_WITHOUT_PODS = "IST0173" Error "DestinationRuleSubsetNotSelectPods";
    UNKNOWN_DESTINATION_RULE_HOST = "IST0174" Warning "UnknownDestinationRuleHost";
    UNRESTRICTED_JWKS_FETCH = "IST0175" Warning "JwksUriFetchUnrestricted";
    OLD_GATEWAY_API_CRD = "IST0176" Warning "GatewayAPICRDVersionBelowMinimum";
    CONFLICTING_SERVICE_ENTRIES = "IST0177" Warning "ConflictingServiceEntryProtocol";
}

/// Made by `sluicectl precheck`, as by `istioctl x precheck`.
const PRECHECK: &str = "implemented: `sluicectl precheck`";
/// At the commit of Istio that this control plane is compared with.
const UNUSED: &str = "not applicable: no command of istioctl makes it";

/// The codes that no analyzer makes, by code.
pub static OTHER_CODES: &[OtherCode] = &[
    other("IST0001", "InternalError", UNUSED),
    other("IST0141", "InsufficientPermissions", PRECHECK),
    other("IST0142", "UnsupportedKubernetesVersion", PRECHECK),
    other("IST0143", "LocalhostListener", UNUSED),
    other("IST0156", "UnsupportedGatewayAPIVersion", PRECHECK),
    other("IST0168", "UnknownUpgradeCompatibility", UNUSED),
    other("IST0169", "UpdateIncompatibility", "implemented: `sluicectl precheck --from-version`"),
    other("IST0172", "FutureUnsupportedGatewayAPIVersion", PRECHECK),
];

const fn other(code: &'static str, name: &'static str, state: &'static str) -> OtherCode {
    OtherCode { code, name, state }
}
