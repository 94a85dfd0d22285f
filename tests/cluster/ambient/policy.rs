//! Policies of ztunnel, which see connections only.

use std::net::{IpAddr, SocketAddr};

use sluice_proto::istio::security::string_match::MatchType;
use sluice_proto::istio::security::{Action, Address, Authorization, Match, Scope, ServiceAccountMatch, StringMatch};
use sluice_proto::istio::workload::Workload;

use super::addresses::ip_of;

/// A connection to a workload.
pub(crate) struct WorkloadConnection<'a> {
    /// The SPIFFE id of the client; `None` in plaintext.
    pub(crate) client: Option<&'a str>,
    /// The address of the client.
    pub(crate) from: IpAddr,
    /// The address of the application.
    pub(crate) to: SocketAddr,
}

/// Whether policies permit a connection to a workload.
pub(crate) fn permit<'p>(
    policies: impl Iterator<Item = &'p Authorization> + Clone,
    workload: &Workload,
    connection: &WorkloadConnection<'_>,
) -> bool {
    let applicable = policies.filter(|policy| !policy.dry_run && applies(policy, workload));
    let with = |action: Action| applicable.clone().filter(move |policy| policy.action == action as i32);
    let matches = |policy: &Authorization| {
        // One group of a policy has to match, all clauses of a group, and one match of a clause.
        policy.groups.iter().any(|group| {
            !group.rules.is_empty()
                && group.rules.iter().all(|clause| clause.matches.iter().any(|it| is_match(it, connection)))
        })
    };
    !with(Action::Deny).any(matches) && (with(Action::Allow).next().is_none() || with(Action::Allow).any(matches))
}

fn applies(policy: &Authorization, workload: &Workload) -> bool {
    match Scope::try_from(policy.scope) {
        Ok(Scope::Global) => true,
        Ok(Scope::Namespace) => policy.namespace == workload.namespace,
        Ok(Scope::WorkloadSelector) => {
            workload.authorization_policies.contains(&format!("{}/{}", policy.namespace, policy.name))
        }
        Err(_) => false,
    }
}

fn is_match(it: &Match, connection: &WorkloadConnection<'_>) -> bool {
    // A principal of a policy has no scheme.
    let principal = connection.client.and_then(|client| client.strip_prefix("spiffe://"));
    let account = principal.and_then(|principal| {
        let (namespace, account) = principal.split_once("/ns/")?.1.split_once("/sa/")?;
        Some((namespace, account))
    });
    let is_account = |pattern: &ServiceAccountMatch| {
        account.is_some_and(|(namespace, name)| pattern.namespace == namespace && pattern.service_account == name)
    };
    let namespace = account.map(|(namespace, _)| namespace);
    let in_range = |ip: IpAddr| move |range: &Address| is_in_range(range, ip);
    let is_port = |port: &u32| *port == u32::from(connection.to.port());
    let (from, to) = (connection.from, connection.to.ip());
    either(&it.namespaces, &it.not_namespaces, |pattern| is_text_match(pattern, namespace))
        && either(&it.principals, &it.not_principals, |pattern| is_text_match(pattern, principal))
        && either(&it.service_accounts, &it.not_service_accounts, is_account)
        && either(&it.source_ips, &it.not_source_ips, in_range(from))
        && either(&it.destination_ips, &it.not_destination_ips, in_range(to))
        && either(&it.destination_ports, &it.not_destination_ports, is_port)
}

/// One of `wanted` matches, if there are any, and none of `unwanted`.
fn either<T>(wanted: &[T], unwanted: &[T], matches: impl Fn(&T) -> bool) -> bool {
    (wanted.is_empty() || wanted.iter().any(&matches)) && !unwanted.iter().any(&matches)
}

fn is_text_match(pattern: &StringMatch, text: Option<&str>) -> bool {
    let Some(text) = text else { return false };
    match &pattern.match_type {
        Some(MatchType::Exact(exact)) => text == exact,
        Some(MatchType::Prefix(prefix)) => text.starts_with(prefix),
        Some(MatchType::Suffix(suffix)) => text.ends_with(suffix),
        Some(MatchType::Presence(_)) => !text.is_empty(),
        None => false,
    }
}

fn is_in_range(range: &Address, ip: IpAddr) -> bool {
    let Some(network) = ip_of(&range.address) else { return false };
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)) << 96, 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    let ((network, width), (ip, other)) = (bits(network), bits(ip));
    let ignored = 128 - range.length.min(width);
    width == other && network.checked_shr(ignored).unwrap_or(0) == ip.checked_shr(ignored).unwrap_or(0)
}
