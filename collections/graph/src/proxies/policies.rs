//! AuthorizationPolicies and RequestAuthentications: which policies apply to a workload (P15, P16), and their filters.
//!
//! Policies are looked up by namespace: the workload's own and the root namespace. A workload then reads exactly the
//! policies that apply to it, so a change of a policy rebuilds only the listeners of those workloads.

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::listener_settings::ListenerSettings;
use sluice_envoy::name;
use sluice_envoy::security::{KeySource, PolicyFilters, SecurityInputs, build_grpc_policies, build_policies};
use sluice_model::{
    Attachment, AuthorizationPolicy, Host, Jwks, JwksKey, JwtKeys, JwtRule, Labels, ObjectKey, PolicyAction,
    RequestAuthentication, ServiceKey, Text, Timestamp, WaypointTarget, label,
};
use sluice_proto::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;

use super::collectors::find_collector;
use crate::inputs::ObjectCollections;
use crate::options::JwksFetch;

/// The fields of a policy that decide where it applies, and its order among others.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PolicyAttachment {
    created: Timestamp,
    attachment: Attachment,
}

/// The policies that apply to a workload, in order.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PolicyKeys {
    /// AuthorizationPolicies: those of the root namespace first.
    authorization: Vec<ObjectKey>,
    /// RequestAuthentications: those of the workload's namespace first.
    requests: Vec<ObjectKey>,
}

/// Where policies apply, by the namespace of the policy.
pub(crate) struct PolicyIndex<'s> {
    authorization: Index<'s, Text, ObjectKey, PolicyAttachment>,
    requests: Index<'s, Text, ObjectKey, PolicyAttachment>,
}

impl<'s> PolicyIndex<'s> {
    /// Indexes all policies.
    pub(crate) fn new(objects: &ObjectCollections<'s>) -> Self {
        let row = |key: &ObjectKey, created, attachment: &Attachment| {
            [(key.namespace.clone(), PolicyAttachment { created, attachment: attachment.clone() })]
        };
        Self {
            authorization: objects
                .authorization_policies
                .index("authorization_policies/by-namespace", move |key, policy: &AuthorizationPolicy| {
                    row(key, policy.created, &policy.attachment)
                }),
            requests: objects
                .request_authentications
                .index("request_authentications/by-namespace", move |key, policy: &RequestAuthentication| {
                    row(key, policy.created, &policy.attachment)
                }),
        }
    }
}

/// Inputs of the look-ups of policies.
#[derive(Clone, Copy)]
pub(crate) struct PolicyInputs<'a, 's> {
    /// AuthorizationPolicies and RequestAuthentications.
    pub(crate) objects: &'a ObjectCollections<'s>,
    /// The same by the namespace of the policy.
    pub(crate) index: &'a PolicyIndex<'s>,
    /// Namespace whose policies are for the whole mesh: one record.
    pub(crate) root_namespace: &'a Collection<'s, (), Text>,
    /// JWKS that were fetched.
    pub(crate) jwks: &'a Collection<'s, JwksKey, Jwks>,
    /// Services of each host.
    pub(crate) services_by_host: &'a Index<'s, Host, ServiceKey, ()>,
    /// Policies without `targetRefs` do not apply to routers of Gateways of the Gateway API.
    pub(crate) gateways_by_target_only: bool,
    /// Which side fetches JWKS.
    pub(crate) jwks_fetch: JwksFetch,
}

/// Finds the policies for a workload.
#[derive(Clone, Copy)]
pub(crate) struct PolicyFinder {
    authorization: IndexDep<Text, ObjectKey, PolicyAttachment>,
    requests: IndexDep<Text, ObjectKey, PolicyAttachment>,
    root: Dep<(), Text>,
    gateways_by_target_only: bool,
}

impl PolicyFinder {
    /// Declares the look-ups.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, inputs: &PolicyInputs<'_, 's>) -> Self {
        Self {
            authorization: deps.by(&inputs.index.authorization),
            requests: deps.by(&inputs.index.requests),
            root: deps.on(inputs.root_namespace),
            gateways_by_target_only: inputs.gateways_by_target_only,
        }
    }

    /// The policies that apply to a workload of the namespace with these labels.
    pub(crate) fn find(&self, cx: &Context, namespace: &Text, labels: &Labels) -> PolicyKeys {
        let root = cx.get(&self.root, &()).map(|root| (*root).clone()).unwrap_or_default();
        let workload = PolicyTarget { namespace, labels, gateways_by_target_only: self.gateways_by_target_only };
        let of = |by: &IndexDep<Text, ObjectKey, PolicyAttachment>, place: &Text| {
            let mut rows = cx.by(by, place);
            workload.retain(&mut rows, |(key, attached)| (key, attached.created, &attached.attachment));
            rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        let both = |by, first: &Text, second: &Text| {
            let mut keys = of(by, first);
            if first != second {
                keys.extend(of(by, second));
            }
            keys
        };
        PolicyKeys {
            authorization: both(&self.authorization, &root, namespace),
            requests: both(&self.requests, namespace, &root),
        }
    }

    /// The policies that apply to the traffic of a waypoint: AuthorizationPolicies of the root namespace come first,
    /// then those of the waypoint's namespace, then those of the service.
    pub(crate) fn find_for_waypoint(&self, cx: &Context, waypoint: &WaypointTarget<'_>) -> PolicyKeys {
        let of = |by: &IndexDep<Text, ObjectKey, PolicyAttachment>, namespaces: Vec<&str>| {
            let mut keys: Vec<ObjectKey> = Vec::new();
            for namespace in namespaces {
                let mut rows = cx.by(by, &Text::from(namespace));
                rows.retain(|(key, attached)| attached.attachment.is_for_waypoint(key, waypoint));
                rows.sort_by(|(a, at), (b, bt)| (at.created, &a.name).cmp(&(bt.created, &b.name)));
                keys.extend(rows.into_iter().map(|(key, _)| key));
            }
            keys
        };
        PolicyKeys {
            authorization: of(&self.authorization, waypoint.namespaces_root_first()),
            requests: of(&self.requests, waypoint.namespaces_own_first()),
        }
    }
}

/// A sidecar or gateway, as policies select it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyTarget<'a> {
    pub(crate) namespace: &'a Text,
    pub(crate) labels: &'a Labels,
    pub(crate) gateways_by_target_only: bool,
}

impl PolicyTarget<'_> {
    /// Keeps the policies of one namespace that apply, older ones first. `describe` returns key, creation time and attachment.
    pub(crate) fn retain<R>(&self, rows: &mut Vec<R>, describe: impl Fn(&R) -> (&ObjectKey, Timestamp, &Attachment)) {
        let targets_only = self.gateways_by_target_only && self.labels.contains_key(label::GATEWAY_NAME);
        rows.retain(|row| {
            let (key, _, attachment) = describe(row);
            let counts = !targets_only || attachment.has_targets();
            counts && attachment.is_for(key, self.namespace, self.labels)
        });
        rows.sort_by(|a, b| {
            let ((a, a_created, _), (b, b_created, _)) = (describe(a), describe(b));
            (a_created, &a.name).cmp(&(b_created, &b.name))
        });
    }
}

/// Builds the filters of policies, inside a `derive`.
#[derive(Clone, Copy)]
pub(crate) struct PolicyBuilder {
    authorization: Dep<ObjectKey, AuthorizationPolicy>,
    requests: Dep<ObjectKey, RequestAuthentication>,
    jwks: Dep<JwksKey, Jwks>,
    services_by_host: IndexDep<Host, ServiceKey, ()>,
    fetch: JwksFetch,
}

impl PolicyBuilder {
    /// Declares the look-ups.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, inputs: &PolicyInputs<'_, 's>) -> Self {
        Self {
            authorization: deps.on(&inputs.objects.authorization_policies),
            requests: deps.on(&inputs.objects.request_authentications),
            jwks: deps.on(inputs.jwks),
            services_by_host: deps.by(inputs.services_by_host),
            fetch: inputs.jwks_fetch,
        }
    }

    /// The authorization filters of a gRPC server without an Envoy.
    pub(crate) fn build_grpc(&self, cx: &Context, settings: &ListenerSettings, keys: &PolicyKeys) -> Vec<HttpFilter> {
        let authorization: Vec<_> =
            keys.authorization.iter().filter_map(|key| cx.get(&self.authorization, key)).collect();
        let authorization: Vec<&AuthorizationPolicy> = authorization.iter().map(AsRef::as_ref).collect();
        build_grpc_policies(settings, &authorization)
    }

    /// Those of the policies that may deny traffic.
    pub(crate) fn denying(&self, cx: &Context, keys: &PolicyKeys) -> Vec<ObjectKey> {
        let denies = |policy: &AuthorizationPolicy| !policy.dry_run && policy.action != PolicyAction::Audit;
        let found = |key: &&ObjectKey| cx.get(&self.authorization, key).is_some_and(|policy| denies(&policy));
        keys.authorization.iter().filter(found).cloned().collect()
    }

    /// The filters of these policies.
    pub(crate) fn build(
        &self,
        cx: &Context,
        settings: &ListenerSettings,
        keys: &PolicyKeys,
        clear_route_cache: bool,
    ) -> PolicyFilters {
        let authorization: Vec<_> =
            keys.authorization.iter().filter_map(|key| cx.get(&self.authorization, key)).collect();
        let requests: Vec<_> = keys.requests.iter().filter_map(|key| cx.get(&self.requests, key)).collect();
        let authorization: Vec<&AuthorizationPolicy> = authorization.iter().map(AsRef::as_ref).collect();
        let rules = requests.iter().flat_map(|request| &request.rules);
        let tokens: Vec<(&JwtRule, KeySource)> = rules.map(|rule| (rule, self.source(cx, rule))).collect();
        build_policies(&SecurityInputs { settings, authorization: &authorization, tokens: &tokens, clear_route_cache })
    }

    /// The source of the JWKS of an issuer.
    fn source(&self, cx: &Context, rule: &JwtRule) -> KeySource {
        if let JwtKeys::Inline(text) = &rule.keys {
            return KeySource::Inline(text.clone());
        }
        if let (JwtKeys::Uri { uri, server }, JwksFetch::Hybrid | JwksFetch::Proxy) = (&rule.keys, self.fetch) {
            let found = find_collector(cx, self.services_by_host, server).map(|found| found.cluster);
            // The service may be added later; until then the proxy has no keys.
            let cluster = || name::outbound_cluster(server.port, "", &server.service).into();
            let cluster = found.or_else(|| (self.fetch == JwksFetch::Proxy).then(cluster));
            if let Some(cluster) = cluster {
                return KeySource::Remote { uri: uri.clone(), cluster };
            }
        }
        let fetched = rule.remote_keys().and_then(|key| cx.get(&self.jwks, &key)).filter(|jwks| !jwks.text.is_empty());
        fetched.map_or(KeySource::None, |jwks| KeySource::Inline(jwks.text.clone()))
    }
}
