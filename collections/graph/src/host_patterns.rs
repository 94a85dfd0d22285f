//! Wildcard hosts and the hosts they cover.

use sluice_model::Host;

/// The hosts that cover `host`: itself, then the wildcards that cover it, the most specific first.
pub(crate) fn covering_hosts(host: &Host) -> impl Iterator<Item = Host> {
    let name = host.as_str();
    let wildcards: Vec<Host> = name
        .char_indices()
        .filter(|(at, character)| *at > 0 && matches!(character, '.' | '-'))
        .map(|(at, _)| Host::new(&format!("*{}", &name[at..])))
        .filter(|wildcard| wildcard != host)
        .collect();
    let all = (name != "*").then(|| Host::from("*"));
    std::iter::once(host.clone()).chain(wildcards).chain(all)
}
