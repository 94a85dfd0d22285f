//! Inputs: the collections that sources write. There is one for each kind, keyed by object.

pub(crate) mod discovery;
mod json_record;
pub(crate) mod mesh_config;
pub(crate) mod rejects;

use serde::{Deserialize, Serialize};
use sluice_engine::{Collection, DataflowBuilder, Input, Origin, Transaction, Value};
use sluice_model::gateway_api::{
    Backend, BackendTlsPolicy, BackendTrafficPolicy, Gateway as KubernetesGateway, GatewayClass, GatewayParameters,
    HttpRoute, InferencePool, L4Route, ListenerSet, ReferenceGrant,
};
use sluice_model::{
    AuthorizationPolicy, ConditionRequest, DestinationRule, EndpointSlice, EnvoyFilter, Gateway, Ingress, IngressClass,
    Jwks, JwksKey, Kind, KubernetesService, MeshSettings, Namespace, Node, Object, ObjectKey, ParsedObject,
    PeerAuthentication, Pod, Proxy, ProxyConfigResource, ProxyKey, Reconciliation, Reject, RequestAuthentication,
    RootCertificates, Secret, SecretReader, ServiceEntry, ServiceExport, ServiceImport, Sidecar, Telemetry, Text,
    TrafficExtension, VirtualService, WebhookConfiguration, WorkloadEntry, WorkloadGroup,
};

use crate::options::GraphOptions;
use crate::statuses::StatusKey;
use discovery::{Discovery, discovered};
pub use json_record::{JsonRecord, JsonRecordError};

/// An object with findings.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RejectKey {
    /// Its kind.
    pub kind: Kind,
    /// The object.
    pub object: ObjectKey,
}

/// A kind of a CustomResourceDefinition that a cluster serves.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServedKind {
    /// Id of the cluster.
    pub cluster: Text,
    /// The kind.
    pub kind: Kind,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $field:ident: $kind:ident($value:ty), $declare:ident, $name:literal;)*) => {
        /// The writing ends of the inputs. Clones write to the same inputs.
        #[derive(Clone, Debug)]
        pub struct Inputs {
            $($(#[$doc])* pub $field: Input<ObjectKey, $value>,)*
            /// Findings, by object.
            pub rejects: Input<RejectKey, Vec<Reject>>,
            /// Findings of components about objects that they use: Secrets with kubeconfigs of remote clusters, and Gateways that
            /// the deployment controller cannot deploy.
            pub component_rejects: Input<RejectKey, Vec<Reject>>,
            /// Connected proxies.
            pub proxies: Input<ProxyKey, Proxy>,
            /// Addresses of the host names to resolve.
            pub resolved_names: Input<Text, Vec<Text>>,
            /// JWKS that were fetched.
            pub jwks: Input<JwksKey, Jwks>,
            /// ConfigMaps with roots.
            pub root_bundles: Input<ObjectKey, RootCertificates>,
            /// ConfigMaps with overlays of the objects that are deployed for Gateways.
            pub gateway_parameters: Input<ObjectKey, GatewayParameters>,
            /// Proxies that subscribe to Secrets.
            pub secret_clients: Input<ProxyKey, ()>,
            /// Whether the cluster allows a service account to read Secrets.
            pub secret_reviews: Input<SecretReader, bool>,
            /// Root certificates that workloads trust, each a PEM text; none if they trust those of their own
            /// certificates.
            pub trust_bundle: Input<(), Vec<Text>>,
            /// Kinds of CustomResourceDefinitions that clusters serve.
            pub served_kinds: Input<ServedKind, ()>,
            /// Objects of API servers that ask for the condition `Reconciled`, or have it.
            pub condition_requests: Input<StatusKey, ConditionRequest>,
            /// How far the connected proxies are with the objects of `Handles::condition_requests`.
            pub reconciliations: Input<StatusKey, Reconciliation>,
        }

        /// Objects of the namespaces that are read, by kind.
        #[derive(Clone)]
        #[allow(dead_code, reason = "the debug pages list every kind, also a kind that no collection derives from")]
        pub(crate) struct ObjectCollections<'s> {
            $($(#[$doc])* pub(crate) $field: Collection<'s, ObjectKey, $value>,)*
        }

        /// The collections that [`declare`] returns.
        pub(crate) struct RawInputs<'s> {
            $(pub(crate) $field: Collection<'s, ObjectKey, $value>,)*
            pub(crate) rejects: Collection<'s, RejectKey, Vec<Reject>>,
            pub(crate) component_rejects: Collection<'s, RejectKey, Vec<Reject>>,
            pub(crate) proxies: Collection<'s, ProxyKey, Proxy>,
            pub(crate) resolved_names: Collection<'s, Text, Vec<Text>>,
            pub(crate) jwks: Collection<'s, JwksKey, Jwks>,
            pub(crate) root_bundles: Collection<'s, ObjectKey, RootCertificates>,
            pub(crate) gateway_parameters: Collection<'s, ObjectKey, GatewayParameters>,
            pub(crate) secret_clients: Collection<'s, ProxyKey, ()>,
            pub(crate) secret_reviews: Collection<'s, SecretReader, bool>,
            pub(crate) trust_bundle: Collection<'s, (), Vec<Text>>,
            pub(crate) served_kinds: Collection<'s, ServedKind, ()>,
            pub(crate) condition_requests: Collection<'s, StatusKey, ConditionRequest>,
            pub(crate) reconciliations: Collection<'s, StatusKey, Reconciliation>,
        }

        /// Declares every input.
        pub(crate) fn declare<'s>(graph: &DataflowBuilder<'s>) -> (Inputs, RawInputs<'s>) {
            $(let $field = graph.$declare::<ObjectKey, $value>($name);)*
            let rejects = graph.input("parse_rejects");
            let component_rejects = graph.input("component_rejects");
            let proxies = graph.input("connected_proxies");
            let names = graph.input("resolved_names");
            let jwks = graph.input("jwks");
            let bundles = graph.input(Inputs::ROOT_BUNDLES);
            let parameters = graph.input(Inputs::GATEWAY_PARAMETERS);
            let clients = graph.input("secret_clients");
            let reviews = graph.input("secret_reviews");
            let trust = graph.input("trust_bundle");
            let served = graph.input("served_kinds");
            let requests = graph.input("raw_condition_requests");
            let reconciliations = graph.input("reconciliations");
            (
                Inputs {
                    $($field: $field.0,)*
                    rejects: rejects.0,
                    component_rejects: component_rejects.0,
                    proxies: proxies.0,
                    resolved_names: names.0,
                    jwks: jwks.0,
                    root_bundles: bundles.0,
                    gateway_parameters: parameters.0,
                    secret_clients: clients.0,
                    secret_reviews: reviews.0,
                    trust_bundle: trust.0,
                    served_kinds: served.0,
                    condition_requests: requests.0,
                    reconciliations: reconciliations.0,
                },
                RawInputs {
                    $($field: $field.1,)*
                    rejects: rejects.1,
                    component_rejects: component_rejects.1,
                    proxies: proxies.1,
                    resolved_names: names.1,
                    jwks: jwks.1,
                    root_bundles: bundles.1,
                    gateway_parameters: parameters.1,
                    secret_clients: clients.1,
                    secret_reviews: reviews.1,
                    trust_bundle: trust.1,
                    served_kinds: served.1,
                    condition_requests: requests.1,
                    reconciliations: reconciliations.1,
                },
            )
        }

        impl Inputs {
            /// The name of the input with the ConfigMaps that have roots.
            pub const ROOT_BUNDLES: &str = "raw_root_bundles";
            /// The name of the input with the ConfigMaps that have overlays of deployed gateways.
            pub const GATEWAY_PARAMETERS: &str = "gateway_parameters";

            fn set(&self, tx: &mut Transaction, key: ObjectKey, object: Object, origin: Origin) {
                match object {
                    Object::Roots(value) => tx.set_from(&self.root_bundles, key, value, origin),
                    Object::GatewayParameters(value) => tx.set_from(&self.gateway_parameters, key, *value, origin),
                    $(Object::$kind(value) => tx.set_from(&self.$field, key, Unbox::<$value>::unboxed(value), origin),)*
                }
            }

            fn remove(&self, tx: &mut Transaction, kind: Kind, key: ObjectKey, origin: Origin) {
                match kind {
                    $(kinds!(@kind $kind) => tx.delete_from(&self.$field, key, origin),)*
                    _ => {}
                }
            }

            /// Marks a kind as synced: all its objects are written, in every cluster that is read.
            pub fn mark_synced(&self, tx: &mut Transaction, kind: Kind) {
                match kind {
                    $(kinds!(@kind $kind) => tx.mark_synced(&self.$field),)*
                    _ => {}
                }
                if kind == Kind::ConfigMap {
                    tx.mark_synced(&self.root_bundles);
                    tx.mark_synced(&self.gateway_parameters);
                }
            }

            /// Marks every input as synced: later writes are changes.
            pub fn mark_all_synced(&self, tx: &mut Transaction) {
                $(tx.mark_synced(&self.$field);)*
                tx.mark_synced(&self.rejects);
                tx.mark_synced(&self.component_rejects);
                tx.mark_synced(&self.proxies);
                tx.mark_synced(&self.resolved_names);
                tx.mark_synced(&self.jwks);
                tx.mark_synced(&self.root_bundles);
                tx.mark_synced(&self.gateway_parameters);
                tx.mark_synced(&self.secret_clients);
                tx.mark_synced(&self.secret_reviews);
                tx.mark_synced(&self.trust_bundle);
                tx.mark_synced(&self.served_kinds);
                tx.mark_synced(&self.condition_requests);
                tx.mark_synced(&self.reconciliations);
            }

            /// Writes a record from its JSON form, as dumps have it. Secrets have no such form: theirs is a placeholder.
            ///
            /// # Errors
            /// There is no such input, or the record is not one of it.
            pub fn write_json(&self, tx: &mut Transaction, record: JsonRecord) -> Result<(), JsonRecordError> {
                self.read_json(record, Some(tx))
            }

            /// Checks that a record can be written, and does not write it.
            ///
            /// # Errors
            /// As [`Self::write_json`].
            pub fn check_json(&self, record: JsonRecord) -> Result<(), JsonRecordError> {
                self.read_json(record, None)
            }

            fn read_json(&self, record: JsonRecord, tx: Option<&mut Transaction>) -> Result<(), JsonRecordError> {
                match record.collection.as_str() {
                    $($name => record.write(tx, &self.$field),)*
                    "parse_rejects" => record.write(tx, &self.rejects),
                    "component_rejects" => record.write(tx, &self.component_rejects),
                    "connected_proxies" => record.write(tx, &self.proxies),
                    "resolved_names" => record.write(tx, &self.resolved_names),
                    "jwks" => record.write(tx, &self.jwks),
                    Self::ROOT_BUNDLES => record.write(tx, &self.root_bundles),
                    Self::GATEWAY_PARAMETERS => record.write(tx, &self.gateway_parameters),
                    "secret_clients" => record.write(tx, &self.secret_clients),
                    "secret_reviews" => record.write(tx, &self.secret_reviews),
                    "trust_bundle" => record.write(tx, &self.trust_bundle),
                    "served_kinds" => record.write(tx, &self.served_kinds),
                    "raw_condition_requests" => record.write(tx, &self.condition_requests),
                    "reconciliations" => record.write(tx, &self.reconciliations),
                    _ => Err(JsonRecordError::UnknownCollection(record.collection)),
                }
            }

            /// The name of the collection with the objects of a kind, if the kind is read.
            #[must_use]
            pub fn collection(kind: Kind) -> Option<&'static str> {
                match kind {
                    $(kinds!(@kind $kind) => Some($name),)*
                    _ => None,
                }
            }

            /// The kinds that are read.
            #[must_use]
            pub fn kinds() -> Vec<Kind> {
                vec![$(kinds!(@kind $kind)),*]
            }
        }
    };
    (@kind MeshSettings) => { Kind::ConfigMap };
    (@kind $kind:ident) => { Kind::$kind };
}

kinds! {
    /// AuthorizationPolicies.
    authorization_policies: AuthorizationPolicy(AuthorizationPolicy), input, "raw_authorization_policies";
    /// BackendTLSPolicies.
    backend_tls_policies: BackendTLSPolicy(BackendTlsPolicy), input, "raw_backend_tls_policies";
    /// DestinationRules.
    destination_rules: DestinationRule(DestinationRule), input, "raw_destination_rules";
    /// EndpointSlices.
    endpoint_slices: EndpointSlice(EndpointSlice), priority_input, "endpoint_slices";
    /// EnvoyFilters.
    envoy_filters: EnvoyFilter(EnvoyFilter), input, "raw_envoy_filters";
    /// GRPCRoutes.
    grpc_routes: GRPCRoute(HttpRoute), input, "raw_grpc_routes";
    /// Istio's own Gateways.
    gateways: Gateway(Gateway), input, "raw_gateways";
    /// GatewayClasses.
    gateway_classes: GatewayClass(GatewayClass), input, "gateway_classes";
    /// HTTPRoutes.
    http_routes: HTTPRoute(HttpRoute), input, "raw_http_routes";
    /// InferencePools.
    inference_pools: InferencePool(InferencePool), input, "raw_inference_pools";
    /// Kubernetes Ingresses.
    ingresses: Ingress(Ingress), input, "raw_ingresses";
    /// IngressClasses.
    ingress_classes: IngressClass(IngressClass), input, "ingress_classes";
    /// Gateways of the Gateway API, of every cluster; `discovered` restricts them to those of the config cluster.
    kubernetes_gateways: KubernetesGateway(KubernetesGateway), input, "raw_kubernetes_gateways";
    /// ListenerSets.
    listener_sets: ListenerSet(ListenerSet), input, "raw_listener_sets";
    /// ConfigMaps with a mesh config.
    mesh_settings: MeshSettings(MeshSettings), input, "config_maps";
    /// MutatingWebhookConfigurations of tags of revisions.
    mutating_webhooks: MutatingWebhookConfiguration(WebhookConfiguration), input, "mutating_webhook_configurations";
    /// Namespaces, of every cluster.
    namespaces: Namespace(Namespace), input, "namespaces";
    /// Nodes, of every cluster.
    nodes: Node(Node), input, "nodes";
    /// PeerAuthentications.
    peer_authentications: PeerAuthentication(PeerAuthentication), input, "raw_peer_authentications";
    /// Pods, of every cluster.
    pods: Pod(Pod), priority_input, "pods";
    /// ProxyConfigs.
    proxy_configs: ProxyConfig(ProxyConfigResource), input, "raw_proxy_configs";
    /// ReferenceGrants.
    reference_grants: ReferenceGrant(ReferenceGrant), input, "raw_reference_grants";
    /// RequestAuthentications.
    request_authentications: RequestAuthentication(RequestAuthentication), input, "raw_request_authentications";
    /// Secrets of every cluster; of those without credentials, only the names of their data.
    secrets: Secret(Secret), input, "raw_secrets";
    /// Kubernetes Services, of every cluster.
    kubernetes_services: Service(KubernetesService), input, "raw_kubernetes_services";
    /// ServiceEntries.
    service_entries: ServiceEntry(ServiceEntry), input, "raw_service_entries";
    /// ServiceExports, of every cluster.
    service_exports: ServiceExport(ServiceExport), input, "raw_service_exports";
    /// ServiceImports, of every cluster.
    service_imports: ServiceImport(ServiceImport), input, "raw_service_imports";
    /// Sidecars.
    sidecars: Sidecar(Sidecar), input, "raw_sidecars";
    /// TCPRoutes.
    tcp_routes: TCPRoute(L4Route), input, "raw_tcp_routes";
    /// TLSRoutes.
    tls_routes: TLSRoute(L4Route), input, "raw_tls_routes";
    /// Telemetries.
    telemetries: Telemetry(Telemetry), input, "raw_telemetries";
    /// TrafficExtensions.
    traffic_extensions: TrafficExtension(TrafficExtension), input, "raw_traffic_extensions";
    /// UDPRoutes, if experimental kinds have effect.
    udp_routes: UDPRoute(L4Route), input, "raw_udp_routes";
    /// The ValidatingWebhookConfiguration of the default revision.
    validating_webhooks: ValidatingWebhookConfiguration(WebhookConfiguration), input, "validating_webhook_configurations";
    /// VirtualServices.
    virtual_services: VirtualService(VirtualService), input, "raw_virtual_services";
    /// WasmPlugins, converted to extensions.
    wasm_plugins: WasmPlugin(TrafficExtension), input, "raw_wasm_plugins";
    /// WorkloadEntries.
    workload_entries: WorkloadEntry(WorkloadEntry), input, "raw_workload_entries";
    /// WorkloadGroups.
    workload_groups: WorkloadGroup(WorkloadGroup), input, "raw_workload_groups";
    /// XBackends.
    backends: XBackend(Backend), input, "raw_backends";
    /// XBackendTrafficPolicies.
    backend_traffic_policies: XBackendTrafficPolicy(BackendTrafficPolicy), input, "raw_backend_traffic_policies";
}

impl Inputs {
    /// Writes what an object asks about its condition `Reconciled`. `None` deletes it.
    pub fn request_condition(
        &self,
        tx: &mut Transaction,
        kind: Kind,
        object: ObjectKey,
        request: Option<ConditionRequest>,
    ) {
        match request {
            Some(request) => tx.set(&self.condition_requests, StatusKey { kind, object }, request),
            None => tx.delete(&self.condition_requests, StatusKey { kind, object }),
        }
    }

    /// Writes a parsed object: its value, if it has one, and its findings.
    ///
    /// If a ConfigMap of the mesh does not parse, the last valid one stays in effect. Any other object that does not
    /// parse is deleted. The expressions for versions in an EnvoyFilter are matched with the versions of recent proxies
    /// here, so that the dataflow thread finds the results.
    pub fn apply(&self, tx: &mut Transaction, parsed: ParsedObject, origin: Origin) {
        let ParsedObject { kind, key, object, rejects } = parsed;
        let reject_key = RejectKey { kind, object: key.clone() };
        let keep_last = kind == Kind::ConfigMap && !rejects.is_empty();
        if kind == Kind::ConfigMap {
            self.remove_from_other_inputs(tx, &key, object.as_ref());
        }
        if let Some(Object::EnvoyFilter(filter)) = &object {
            for pattern in filter.version_patterns() {
                pattern.match_recent_versions();
            }
        }
        match object {
            Some(object) => self.set(tx, key, object, origin),
            None if keep_last => {}
            None => self.remove(tx, kind, key, origin),
        }
        if rejects.is_empty() {
            tx.delete(&self.rejects, reject_key);
        } else {
            tx.set(&self.rejects, reject_key, rejects);
        }
    }

    /// A ConfigMap is in one of three inputs.
    fn remove_from_other_inputs(&self, tx: &mut Transaction, key: &ObjectKey, object: Option<&Object>) {
        let (is_roots, is_parameters) =
            (matches!(object, Some(Object::Roots(_))), matches!(object, Some(Object::GatewayParameters(_))));
        if !is_roots {
            tx.delete(&self.root_bundles, key.clone());
        }
        if !is_parameters {
            tx.delete(&self.gateway_parameters, key.clone());
        }
        if is_roots || is_parameters {
            tx.delete(&self.mesh_settings, key.clone());
        }
    }

    /// Removes an object and its findings.
    pub fn delete(&self, tx: &mut Transaction, kind: Kind, key: ObjectKey, origin: Origin) {
        tx.delete(&self.rejects, RejectKey { kind, object: key.clone() });
        if kind == Kind::ConfigMap {
            tx.delete_from(&self.root_bundles, key.clone(), origin.clone());
            tx.delete_from(&self.gateway_parameters, key.clone(), origin.clone());
        }
        self.remove(tx, kind, key, origin);
    }
}

impl<'s> RawInputs<'s> {
    /// The objects of the namespaces that `discoverySelectors` select (C21).
    ///
    /// Pods and slices are mostly reached through Services of their own namespace, so they are not filtered: who reads others
    /// asks [`discovery::is_read`].
    pub(crate) fn discovered(&self, discovery: &Discovery<'s>, options: &GraphOptions) -> ObjectCollections<'s> {
        let cluster = options.cluster.clone();
        // Listeners, deployments and statuses are derived from them, so those of remote clusters are not among them.
        let kubernetes_gateways =
            self.kubernetes_gateways.filter("raw_kubernetes_gateways/local", move |key, _| key.cluster == cluster);
        ObjectCollections {
            authorization_policies: discovered("authorization_policies", &self.authorization_policies, discovery),
            backend_tls_policies: discovered("backend_tls_policies", &self.backend_tls_policies, discovery),
            destination_rules: discovered("destination_rules", &self.destination_rules, discovery),
            endpoint_slices: self.endpoint_slices.clone(),
            envoy_filters: discovered("envoy_filters", &self.envoy_filters, discovery),
            grpc_routes: discovered("grpc_routes", &self.grpc_routes, discovery),
            gateways: discovered("gateways", &self.gateways, discovery),
            gateway_classes: self.gateway_classes.clone(),
            http_routes: discovered("http_routes", &self.http_routes, discovery),
            inference_pools: discovered("inference_pools", &self.inference_pools, discovery),
            ingresses: discovered("ingresses", &self.ingresses, discovery),
            ingress_classes: self.ingress_classes.clone(),
            kubernetes_gateways: discovered("kubernetes_gateways", &kubernetes_gateways, discovery),
            listener_sets: discovered("listener_sets", &self.listener_sets, discovery),
            mesh_settings: self.mesh_settings.clone(),
            mutating_webhooks: self.mutating_webhooks.clone(),
            namespaces: self.namespaces.clone(),
            nodes: self.nodes.clone(),
            peer_authentications: discovered("peer_authentications", &self.peer_authentications, discovery),
            pods: self.pods.clone(),
            proxy_configs: discovered("proxy_configs", &self.proxy_configs, discovery),
            reference_grants: discovered("reference_grants", &self.reference_grants, discovery),
            request_authentications: discovered("request_authentications", &self.request_authentications, discovery),
            secrets: discovered("secrets", &self.secrets, discovery),
            kubernetes_services: discovered("kubernetes_services", &self.kubernetes_services, discovery),
            service_entries: discovered("service_entries", &self.service_entries, discovery),
            service_exports: discovered("service_exports", &self.service_exports, discovery),
            service_imports: discovered("service_imports", &self.service_imports, discovery),
            sidecars: discovered("sidecars", &self.sidecars, discovery),
            tcp_routes: discovered("tcp_routes", &self.tcp_routes, discovery),
            udp_routes: discovered("udp_routes", &self.udp_routes, discovery),
            tls_routes: discovered("tls_routes", &self.tls_routes, discovery),
            telemetries: discovered("telemetries", &self.telemetries, discovery),
            traffic_extensions: discovered("traffic_extensions", &self.traffic_extensions, discovery),
            validating_webhooks: self.validating_webhooks.clone(),
            virtual_services: discovered("virtual_services", &self.virtual_services, discovery),
            wasm_plugins: discovered("wasm_plugins", &self.wasm_plugins, discovery),
            workload_entries: discovered("workload_entries", &self.workload_entries, discovery),
            workload_groups: discovered("workload_groups", &self.workload_groups, discovery),
            backends: discovered("backends", &self.backends, discovery),
            backend_traffic_policies: discovered("backend_traffic_policies", &self.backend_traffic_policies, discovery),
        }
    }

    /// Gateways of the Gateway API in remote clusters. They are no configuration: only gateways of networks and waypoints of these
    /// clusters are derived from them.
    pub(crate) fn remote_gateways(
        &self,
        discovery: &Discovery<'s>,
        options: &GraphOptions,
    ) -> Collection<'s, ObjectKey, KubernetesGateway> {
        let cluster = options.cluster.clone();
        let remote = self.kubernetes_gateways.filter("raw_remote_gateways", move |key, _| key.cluster != cluster);
        discovered("remote_gateways", &remote, discovery)
    }
}

/// The content of a variant, boxed or not.
trait Unbox<V> {
    fn unboxed(self) -> V;
}

impl<V: Value> Unbox<V> for V {
    fn unboxed(self) -> V {
        self
    }
}

impl<V: Value> Unbox<V> for Box<V> {
    fn unboxed(self) -> V {
        *self
    }
}
