//! User and group ids that OpenShift allocates to namespaces.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::pod::{INIT, PROXY, VALIDATION, containers, name_of};

const UID_RANGE: &str = "openshift.io/sa.scc.uid-range";
const SUPPLEMENTAL_GROUPS: &str = "openshift.io/sa.scc.supplemental-groups";
/// User and group of the proxy where none are allocated.
const DEFAULT_ID: i64 = 1337;

/// User and group of the proxy: the last ones of the ranges in the annotations of the namespace.
pub(crate) fn proxy_ids(annotations: Option<&BTreeMap<String, String>>) -> (i64, i64) {
    let Some(annotations) = annotations else { return (DEFAULT_ID, DEFAULT_ID) };
    let user = annotations.get(UID_RANGE).and_then(|range| last_of(range));
    let groups = annotations.get(SUPPLEMENTAL_GROUPS).or_else(|| annotations.get(UID_RANGE));
    let groups: Option<Vec<i64>> = groups.and_then(|groups| groups.split(',').map(last_of).collect());
    let group = groups.and_then(|groups| groups.first().copied());
    (user.unwrap_or(DEFAULT_ID), group.unwrap_or(DEFAULT_ID))
}

/// The last id of `START/SIZE` or `START-END`.
fn last_of(range: &str) -> Option<i64> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let last = match range.split_once('/') {
        Some((start, size)) => number(start)?.checked_add(number(size)?)?.checked_sub(1)?,
        None => {
            let (start, end) = range.split_once('-')?;
            number(start)?;
            number(end)?
        }
    };
    Some(i64::from(last))
}

/// Whether the proxy has the user of the application, which OpenShift sets in all containers.
pub(crate) fn has_user_of_application(pod: &Json) -> bool {
    let (mut proxy, mut application) = (0, 0);
    for container in containers(pod, "containers").iter().chain(containers(pod, "initContainers")) {
        let Some(user) = container["securityContext"]["runAsUser"].as_i64() else { continue };
        match name_of(container) {
            PROXY => proxy = user,
            VALIDATION | INIT => {}
            _ => application = user,
        }
    }
    proxy == application
}
