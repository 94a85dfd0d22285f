//! Policies for backends as DestinationRules; a user's own DestinationRule has precedence (G06).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use sluice_engine::{Collection, Context, Index, IndexDep};
use sluice_model::gateway_api::{
    Backend, BackendTlsMode, BackendTlsPolicy, BackendTrafficPolicy, BackendValidation, PolicyTarget,
};
use sluice_model::{
    ClientCredential, ClientTls, ClientTlsMode, CredentialKind, Decimal, DestinationRule, Host, KubernetesService,
    LoadBalancer, NETWORKING_GROUP, ObjectKey, ObjectMeta, PortTrafficPolicy, RetryBudget, ServiceEntry, Text,
    Timestamp, TrafficPolicy,
};

use super::credentials::{CredentialIndex, CredentialLookup};
use super::{GENERATED, generated};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::service_host;

/// Annotation of policies that belong to another controller.
pub(super) const IGNORED: &str = "istio.io/ignore-policy-attachment";

/// The target of a policy: an object and one of its hosts.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct TargetHost {
    kind: TargetKind,
    object: ObjectKey,
    host: Host,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) enum TargetKind {
    /// A Service.
    Service,
    /// A ServiceEntry.
    ServiceEntry,
    /// An XBackend.
    Backend,
}

/// The settings of one policy for a target.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct TargetSetting {
    created: i64,
    namespace: Text,
    name: Text,
    /// The port they apply to; 0 is all.
    port: u16,
    tls: Option<ClientTls>,
    retry_budget: Option<RetryBudget>,
    load_balancer: Option<LoadBalancer>,
}

/// DestinationRules of policies, one for each target and host.
/// Key: `ObjectKey`. From: `backend_tls_policies`, `backend_traffic_policies`, `backends`, `kubernetes_services`,
/// `service_entries`, `root_bundles` (their presence).
/// Changes when: a policy of the target does, the ports and hosts of the target, or the ConfigMap with its roots is
/// created or deleted.
/// Size: targets of policies. Rejects: none; a policy whose target is absent has no effect.
pub(super) fn derive_destination_rules<'s>(
    objects: &ObjectCollections<'s>,
    targets: &TargetObjects<'s>,
    tls_by_target: &TlsPolicyIndex<'s>,
    credentials: &CredentialIndex<'s>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, DestinationRule> {
    let tls = derive_tls(objects, targets, tls_by_target, credentials);
    let (traffic, external) = (derive_traffic(objects, targets), derive_external(objects, credentials, options));
    let all = tls.union("gateway_api/policies", &[traffic, external]);
    let by_target: Index<'s, TargetHost, TargetSettingKey, TargetSetting> =
        all.index("gateway_api/policies-by-target", |key, setting| [(key.target.clone(), setting.clone())]);
    let rules =
        by_target.group("gateway_api/destination_rules", |target, rows: &[(&TargetSettingKey, &TargetSetting)]| {
            let mut rows: Vec<&TargetSetting> = rows.iter().map(|(_, setting)| *setting).collect();
            rows.sort_by_key(|setting| (setting.created, &setting.namespace, &setting.name));
            Some(rule(target, &rows))
        });
    rules.flat_map("destination_rules/of-gateway-api", |target, rule| {
        [(generated(&target.object.cluster, &rule.namespace, &rule.name), rule.clone())]
    })
}

/// A policy and the index of the target in it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct TargetSettingKey {
    kind: &'static str,
    policy: ObjectKey,
    place: usize,
    target: TargetHost,
}

/// Hosts and named ports of the objects that can be targets.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct TargetObject {
    hosts: Vec<Host>,
    /// Ports by name.
    pub(super) ports: BTreeMap<Text, u16>,
}

/// Objects that can be targets.
pub(super) type TargetObjects<'s> = Collection<'s, (TargetKind, ObjectKey), TargetObject>;

/// Objects that can be targets of policies.
/// Key: kind and object. From: `kubernetes_services`, `service_entries`. Changes when: the ports or hosts of one do.
/// Size: Services + ServiceEntries. Rejects: none.
pub(super) fn derive_targets<'s>(objects: &ObjectCollections<'s>, options: &GraphOptions) -> TargetObjects<'s> {
    let domain = options.domain.clone();
    let services =
        objects.kubernetes_services.flat_map("gateway_api/target-services", move |key, service: &KubernetesService| {
            let ports = service.ports.iter().map(|port| (port.name.clone(), port.port)).collect();
            let hosts = vec![service_host(&key.name, &key.namespace, &domain)];
            [((TargetKind::Service, key.clone()), TargetObject { hosts, ports })]
        });
    let entries = objects.service_entries.flat_map("gateway_api/target-entries", |key, entry: &ServiceEntry| {
        let ports = entry.ports.iter().map(|port| (port.name.clone(), port.number)).collect();
        [((TargetKind::ServiceEntry, key.clone()), TargetObject { hosts: entry.hosts.clone(), ports })]
    });
    services.union("gateway_api/targets", &[entries])
}

/// The object that a policy names as target, if it can be one.
pub(super) fn target_of(policy: &ObjectKey, target: &PolicyTarget) -> Option<(TargetKind, ObjectKey)> {
    let kind = if target.kind.is("", "Service") {
        TargetKind::Service
    } else if target.kind.is(NETWORKING_GROUP, "ServiceEntry") {
        TargetKind::ServiceEntry
    } else {
        return None;
    };
    Some((kind, ObjectKey { name: target.name.clone(), ..policy.clone() }))
}

/// Whether a policy belongs to another controller.
pub(super) fn is_ignored(meta: &ObjectMeta) -> bool {
    meta.annotations.get(IGNORED).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// BackendTLSPolicies by namespace and target, with their creation times.
pub(super) type TlsPolicyIndex<'s> = Index<'s, (Text, PolicyTarget), ObjectKey, Timestamp>;

/// The BackendTLSPolicies of each target.
pub(super) fn index_tls_policies<'s>(objects: &ObjectCollections<'s>) -> TlsPolicyIndex<'s> {
    let counted =
        objects.backend_tls_policies.filter("backend_tls_policies/counted", |_, policy| !is_ignored(&policy.meta));
    counted.index("backend_tls_policies/by-target", |key, policy| {
        let rows = policy.targets.iter().map(|target| ((key.namespace.clone(), target.clone()), policy.meta.created));
        rows.collect::<std::collections::BTreeSet<_>>()
    })
}

/// The name of a policy for the same target that has precedence: the older one, then the first by name.
pub(super) fn preceding_policy(
    cx: &Context,
    by_target: &IndexDep<(Text, PolicyTarget), ObjectKey, Timestamp>,
    (key, policy): (&ObjectKey, &BackendTlsPolicy),
    target: &PolicyTarget,
) -> Option<Text> {
    let all = cx.by(by_target, &(key.namespace.clone(), target.clone())).into_iter();
    let mut preceding = all.filter(|(other, created)| {
        let order = (**created).cmp(&policy.meta.created).then_with(|| other.name.cmp(&key.name));
        other != key && order == Ordering::Less
    });
    preceding.next().map(|(other, _)| other.name)
}

/// The settings of BackendTLSPolicies; of two for one port of a target the older is used.
fn derive_tls<'s>(
    objects: &ObjectCollections<'s>,
    targets: &TargetObjects<'s>,
    by_target: &TlsPolicyIndex<'s>,
    credentials: &CredentialIndex<'s>,
) -> Collection<'s, TargetSettingKey, TargetSetting> {
    objects.backend_tls_policies.derive_many("gateway_api/backend_tls_policies", |deps| {
        let (targets, by_target) = (deps.on(targets), deps.by(by_target));
        let credentials = CredentialLookup::on(deps, credentials);
        move |cx, key, policy: &BackendTlsPolicy| {
            let client = client_tls(cx, credentials, key, &policy.validation);
            let mut rows = Vec::new();
            for (place, target) in policy.targets.iter().enumerate().filter(|_| !is_ignored(&policy.meta)) {
                let Some(of) = target_of(key, target) else { continue };
                let Some(object) = cx.get(&targets, &of) else { continue };
                let port = if target.section.is_empty() {
                    0
                } else {
                    let Some(port) = object.ports.get(&target.section) else { continue };
                    *port
                };
                if preceding_policy(cx, &by_target, (key, policy), target).is_some() {
                    continue;
                }
                let setting = TargetSetting { port, tls: Some(client.clone()), ..setting_of(key, &policy.meta) };
                rows.extend(for_hosts("BackendTLSPolicy", key, place, &of, &object.hosts, &setting));
            }
            rows
        }
    })
}

/// The settings of XBackendTrafficPolicies.
fn derive_traffic<'s>(
    objects: &ObjectCollections<'s>,
    targets: &TargetObjects<'s>,
) -> Collection<'s, TargetSettingKey, TargetSetting> {
    objects.backend_traffic_policies.derive_many("gateway_api/backend_traffic_policies", |deps| {
        let targets = deps.on(targets);
        move |cx, key, policy: &BackendTrafficPolicy| {
            let mut rows = Vec::new();
            for (place, target) in policy.targets.iter().enumerate().filter(|_| !is_ignored(&policy.meta)) {
                let Some(of) = target_of(key, target).filter(|(kind, _)| *kind == TargetKind::Service) else {
                    continue;
                };
                let Some(object) = cx.get(&targets, &of) else { continue };
                let budget = policy.retry_constraint.as_ref().map(|constraint| RetryBudget {
                    percent: constraint.percent.map(|percent| Decimal::from_f64(percent.into())),
                    min_retry_concurrency: constraint.minimum.unwrap_or(10),
                    budget_interval: Some(constraint.interval.unwrap_or(Duration::from_secs(10))),
                });
                let setting = TargetSetting {
                    retry_budget: budget,
                    load_balancer: Some(LoadBalancer::default()),
                    ..setting_of(key, &policy.meta)
                };
                rows.extend(for_hosts("XBackendTrafficPolicy", key, place, &of, &object.hosts, &setting));
            }
            rows
        }
    })
}

/// The settings of XBackends.
fn derive_external<'s>(
    objects: &ObjectCollections<'s>,
    credentials: &CredentialIndex<'s>,
    options: &GraphOptions,
) -> Collection<'s, TargetSettingKey, TargetSetting> {
    let experimental = options.gateway_api.experimental;
    objects.backends.derive_many("gateway_api/external-backends", |deps| {
        let credentials = CredentialLookup::on(deps, credentials);
        move |cx, key, backend: &Backend| {
            let hostname = backend.hostname.as_ref().filter(|_| experimental);
            let tls = backend.tls.as_ref().filter(|tls| tls.mode == BackendTlsMode::ServerOnly);
            let Some((hostname, tls)) = hostname.zip(tls) else { return Vec::new() };
            let mut client = client_tls(cx, credentials, key, &tls.validation);
            if client.sni.is_empty() {
                client.sni = hostname.clone();
            }
            let setting = TargetSetting { port: backend.port, tls: Some(client), ..setting_of(key, &backend.meta) };
            for_hosts("XBackend", key, 0, &(TargetKind::Backend, key.clone()), &[Host::new(hostname)], &setting)
        }
    })
}

/// A setting of an object, without values.
fn setting_of(key: &ObjectKey, meta: &ObjectMeta) -> TargetSetting {
    TargetSetting {
        created: meta.created,
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        ..TargetSetting::default()
    }
}

/// The rows of a setting, one for each host of the target.
fn for_hosts(
    kind: &'static str,
    policy: &ObjectKey,
    place: usize,
    (target_kind, object): &(TargetKind, ObjectKey),
    hosts: &[Host],
    setting: &TargetSetting,
) -> Vec<(TargetSettingKey, TargetSetting)> {
    let row = |host: &Host| {
        let target = TargetHost { kind: *target_kind, object: object.clone(), host: host.clone() };
        (TargetSettingKey { kind, policy: policy.clone(), place, target }, setting.clone())
    };
    hosts.iter().map(row).collect()
}

/// The name of the ConfigMap with the root certificates, if they are in one.
fn roots_in_config_map(validation: &BackendValidation) -> Option<&Text> {
    let root = validation.roots.first().filter(|_| validation.well_known_roots.is_none());
    root.filter(|root| root.kind.is("", "ConfigMap")).map(|root| &root.name)
}

/// How the certificate of a backend is verified. Without usable root certificates every connection fails. `object` is the policy or
/// backend, whose namespace has the ConfigMap.
fn client_tls(
    cx: &Context,
    credentials: CredentialLookup,
    object: &ObjectKey,
    validation: &BackendValidation,
) -> ClientTls {
    let is_present = |name: &Text| credentials.has_bundle(cx, &ObjectKey { name: name.clone(), ..object.clone() });
    let credential = match roots_in_config_map(validation) {
        Some(name) if is_present(name) => {
            let prefix = CredentialKind::ConfigMap.prefix();
            ClientCredential::Named(format!("{prefix}{}/{name}", object.namespace).into())
        }
        None if validation.well_known_roots.is_some() || validation.roots.is_empty() => ClientCredential::None,
        _ => ClientCredential::Unusable,
    };
    ClientTls {
        mode: ClientTlsMode::Simple,
        sni: validation.hostname.clone(),
        subject_alt_names: validation.subject_alt_names.clone(),
        credential,
        ..ClientTls::default()
    }
}

/// The rule of a target; of two policies with the same setting the older is used.
fn rule(target: &TargetHost, rows: &[&TargetSetting]) -> DestinationRule {
    let mut policy = TrafficPolicy::default();
    let mut ports: BTreeMap<u16, ClientTls> = BTreeMap::new();
    for setting in rows {
        if let Some(tls) = &setting.tls {
            if setting.port == 0 {
                policy.tls.get_or_insert_with(|| tls.clone());
            } else {
                ports.entry(setting.port).or_insert_with(|| tls.clone());
            }
        }
        if let Some(load_balancer) = &setting.load_balancer {
            policy.load_balancer.get_or_insert_with(|| load_balancer.clone());
        }
        if let Some(budget) = &setting.retry_budget {
            policy.retry_budget.get_or_insert_with(|| budget.clone());
        }
    }
    let level = |(port, tls): (u16, ClientTls)| PortTrafficPolicy {
        port: port.into(),
        tls: Some(tls),
        ..PortTrafficPolicy::default()
    };
    policy.port_level = ports.into_iter().map(level).collect();
    let ObjectKey { namespace, name, .. } = &target.object;
    let name = match target.kind {
        TargetKind::Service => format!("{name}~{GENERATED}"),
        TargetKind::ServiceEntry | TargetKind::Backend => {
            format!("{name}~{}~{GENERATED}", target.host.as_str().replace('.', "-"))
        }
    };
    DestinationRule {
        namespace: namespace.clone(),
        name: name.into(),
        host: target.host.clone(),
        traffic_policy: Some(policy),
        of_backend_policy: true,
        ..DestinationRule::default()
    }
}
