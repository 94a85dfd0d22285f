//! Connected agentgateways: the Gateway that each one serves.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine::Collection;
use sluice_model::{Layer, ObjectKey, Proxy, ProxyKey, ResourceType, Scope, Text, label};

use super::{GatewayAccounts, gateway_layer};
use crate::options::GraphOptions;
use crate::proxies::connected::cluster_of;

/// Name in the metadata of a node: its Gateway as `NAMESPACE~NAME`.
const ROLE: &str = "role";

/// The scope of each connected agentgateway: the resources of its Gateway and those for all, and all addresses. Private keys are sent only to proxies
/// whose verified identity is that of the proxies of the Gateway.
/// Key: `ProxyKey`. From: `proxies`, `agentgateway/accounts`. Changes when: the facts of the proxy do, or the service account of its
/// Gateway. Size: connected agentgateways. Rejects: none.
pub(super) fn derive_scopes<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    accounts: &GatewayAccounts<'s>,
    addresses: &[Layer],
    options: &GraphOptions,
) -> Collection<'s, ProxyKey, Scope> {
    let own = options.cluster.clone();
    let addresses: Arc<[Layer]> = addresses.into();
    proxies.derive("agentgateway/scopes", |deps| {
        let accounts = deps.on(accounts);
        move |cx, _, proxy| {
            let mut layers = BTreeMap::from([(ResourceType::Address, addresses.clone())]);
            if let Some(gateway) = gateway_of(proxy, &own) {
                let account = cx.get(&accounts, &gateway);
                let may_have_keys = account.is_some_and(|account| is_proxy_of(proxy, &gateway, &account));
                let keys = may_have_keys.then(|| gateway_layer(&gateway, true));
                let of_gateway: Vec<Layer> =
                    keys.into_iter().chain([gateway_layer(&gateway, false), Layer::default()]).collect();
                layers.insert(ResourceType::Agentgateway, of_gateway.into());
            }
            Some(Scope { layers, identity: proxy.identity.clone(), ..Scope::default() })
        }
    })
}

/// The Gateway of a proxy, which is in its namespace: the one that its labels name, else its role.
fn gateway_of(proxy: &Proxy, own: &Text) -> Option<ObjectKey> {
    let role = proxy.metadata.get(ROLE).and_then(|role| serde_json::from_str::<String>(role).ok());
    let of_role = role.as_deref().and_then(|role| role.split_once('~'));
    let of_role = of_role.filter(|(namespace, _)| proxy.namespace == **namespace).map(|(_, name)| Text::from(name));
    let name = proxy.labels.get(label::GATEWAY_NAME).cloned().or(of_role).filter(|name| !name.is_empty())?;
    Some(ObjectKey::new(cluster_of(proxy, own).clone(), proxy.namespace.clone(), name))
}

/// Whether the identity of a proxy is that of the proxies of a Gateway.
fn is_proxy_of(proxy: &Proxy, gateway: &ObjectKey, account: &Text) -> bool {
    proxy.identity.as_ref().is_some_and(|identity| {
        identity.namespace == gateway.namespace && (account.is_empty() || identity.service_account == *account)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_is_that_of_the_labels_or_of_the_role_in_the_namespace_of_the_proxy() {
        let of = |labels: &[(&str, &str)], role: &str| {
            let proxy = Proxy {
                namespace: "edge".into(),
                labels: labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
                metadata: [(ROLE.into(), format!("\"{role}\"").into())].into(),
                ..Proxy::default()
            };
            gateway_of(&proxy, &"c".into()).map(|gateway| format!("{}/{}", gateway.namespace, gateway.name))
        };
        assert_eq!(of(&[], "edge~door").as_deref(), Some("edge/door"));
        assert_eq!(of(&[(label::GATEWAY_NAME, "gate")], "edge~door").as_deref(), Some("edge/gate"));
        for none in ["bank~door", "edge~", "door", ""] {
            assert_eq!(of(&[], none), None, "{none}");
        }
    }
}
