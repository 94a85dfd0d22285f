//! The entry that a proxy stands for, and whether it may.

use serde_json::Value;
use sluice_model::Proxy;

/// Maximum length of the name of an object.
const MAX_NAME_BYTES: usize = 253;

/// A string of the proxy's metadata that is not empty.
fn metadata(proxy: &Proxy, name: &str) -> Option<String> {
    let text = proxy.metadata.get(name)?;
    match serde_json::from_str(text) {
        Ok(Value::String(text)) => Some(text).filter(|text| !text.is_empty()),
        _ => None,
    }
}

/// The WorkloadGroup of the proxy.
pub(super) fn group(proxy: &Proxy) -> Option<String> {
    metadata(proxy, "AUTO_REGISTER_GROUP")
}

/// The existing WorkloadEntry of the proxy.
pub(super) fn entry(proxy: &Proxy) -> Option<String> {
    metadata(proxy, "WORKLOAD_ENTRY")
}

/// Whether the proxy accepts HBONE.
pub(super) fn accepts_hbone(proxy: &Proxy) -> bool {
    proxy.metadata.get("ENABLE_HBONE").is_some_and(|text| matches!(text.trim_matches('"'), "true" | "1"))
}

/// The name of the entry of a proxy that registers itself: group, address and network.
pub(super) fn registered_name(proxy: &Proxy) -> Result<String, String> {
    let address = proxy.ips.first().ok_or("the proxy has no address")?.replace(':', "-");
    let group = checked(proxy, group(proxy).unwrap_or_default())?;
    let mut name = format!("{group}-{address}");
    if !proxy.network.is_empty() {
        name = format!("{name}-{}", proxy.network);
    }
    // The end of a long name distinguishes workloads.
    let cut = name.len().saturating_sub(MAX_NAME_BYTES);
    let name = name.get(cut..).unwrap_or_default().to_owned();
    checked(proxy, name)
}

/// The name of the existing entry that a proxy names.
pub(super) fn named_entry(proxy: &Proxy) -> Result<String, String> {
    checked(proxy, entry(proxy).unwrap_or_default())
}

/// Names come from the proxy and become part of request paths.
fn checked(proxy: &Proxy, name: String) -> Result<String, String> {
    if !is_object_name(&proxy.namespace) {
        return Err(format!("`{}` is not a namespace", proxy.namespace));
    }
    if is_object_name(&name) { Ok(name) } else { Err(format!("`{name}` is not the name of an object")) }
}

fn is_object_name(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    first && name.len() <= MAX_NAME_BYTES && name.bytes().all(is_valid)
}

/// Whether the authenticated proxy may write an entry of its namespace with this service account; empty is any.
pub(super) fn check(proxy: &Proxy, account: &str) -> Result<(), String> {
    let Some(identity) = &proxy.identity else {
        return Err("the proxy is not authenticated".to_owned());
    };
    if identity.namespace != proxy.namespace {
        return Err(format!(
            "the proxy is authenticated for namespace {}, the WorkloadEntry is in {}",
            identity.namespace, proxy.namespace
        ));
    }
    if !account.is_empty() && identity.service_account.as_str() != account {
        let actual = &identity.service_account;
        return Err(format!("the proxy has service account {actual}, the WorkloadEntry has {account}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_model::Identity;

    use super::*;

    fn proxy(group: &str, ip: &str, network: &str) -> Proxy {
        Proxy {
            namespace: "app".into(),
            ips: vec![ip.into()],
            network: network.into(),
            metadata: [("AUTO_REGISTER_GROUP".into(), Value::from(group).to_string().into())].into_iter().collect(),
            ..Proxy::default()
        }
    }

    #[test]
    fn name_has_group_address_and_network() {
        assert_eq!(registered_name(&proxy("vms", "10.9.8.7", "net-1")), Ok("vms-10.9.8.7-net-1".to_owned()));
        assert_eq!(registered_name(&proxy("vms", "fd00::7", "")), Ok("vms-fd00--7".to_owned()));
        let long = registered_name(&proxy(&"g".repeat(250), "10.9.8.7", "")).expect("a name");
        assert_eq!((long.len(), long.ends_with("g-10.9.8.7")), (253, true));
    }

    #[test]
    fn names_that_are_no_object_names_are_refused() {
        for group in ["../secrets", "a/b", "a?b", "A", "-a", "a%2f"] {
            assert!(registered_name(&proxy(group, "10.9.8.7", "")).is_err(), "{group}");
        }
        assert!(registered_name(&proxy("vms", "10.9.8.7", "net/1")).is_err());
        let other = Proxy { namespace: "a/b".into(), ..proxy("vms", "10.9.8.7", "") };
        assert!(registered_name(&other).is_err());
        assert_eq!(group(&proxy("", "10.9.8.7", "")), None);
    }

    #[test]
    fn identity_has_to_be_that_of_the_entry() {
        let anonymous = proxy("vms", "10.9.8.7", "");
        assert!(check(&anonymous, "").is_err());
        let with =
            |namespace: &str| Proxy { identity: Some(Identity::new("td", namespace, "vm")), ..anonymous.clone() };
        assert_eq!(check(&with("app"), "vm"), Ok(()));
        assert_eq!(check(&with("app"), ""), Ok(()));
        assert!(check(&with("app"), "other").is_err());
        assert!(check(&with("other"), "vm").is_err());
    }
}
