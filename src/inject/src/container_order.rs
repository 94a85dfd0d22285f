//! The order of the containers of an injected pod (W08).

use serde_json::Value as Json;

use crate::pod::{INIT, PROXY, VALIDATION, containers, find, name_of};

/// Name of the container that permits core dumps.
const CORE_DUMP: &str = "enable-core-dump";

#[derive(Clone, Copy)]
enum Target {
    First,
    Last,
}

/// Puts the proxy last, or first if the application waits for it. Traffic is intercepted before a native sidecar starts,
/// and otherwise after all other init containers.
pub(crate) fn reorder(pod: &mut Json, holds_application: bool) {
    move_to(pod, "containers", PROXY, if holds_application { Target::First } else { Target::Last });
    let is_native = find(containers(pod, "initContainers"), PROXY).is_some();
    let moves: &[(&str, Target)] = if is_native {
        &[(CORE_DUMP, Target::First), (PROXY, Target::First), (VALIDATION, Target::First), (INIT, Target::First)]
    } else {
        &[(VALIDATION, Target::First), (INIT, Target::Last), (CORE_DUMP, Target::Last)]
    };
    for (name, target) in moves {
        move_to(pod, "initContainers", name, *target);
    }
}

fn move_to(pod: &mut Json, list: &str, name: &str, target: Target) {
    let Some(items) = pod.pointer_mut(&format!("/spec/{list}")).and_then(Json::as_array_mut) else { return };
    let Some(index) = items.iter().rposition(|item| name_of(item) == name) else { return };
    let item = items.remove(index);
    items.retain(|item| name_of(item) != name);
    match target {
        Target::First => items.insert(0, item),
        Target::Last => items.push(item),
    }
}
