//! The table of clusters.

use serde_json::Value;

use super::args::{Direction, Filter};
use super::dump::origin;
use crate::answer_output::text;

/// The parts of the name of a cluster: `outbound|80|v1|ratings.shop.svc.cluster.local`. A name of another form is a host.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct ClusterName<'n> {
    fqdn: &'n str,
    subset: &'n str,
    port: u32,
    direction: &'n str,
}

impl<'n> ClusterName<'n> {
    pub(super) fn parse(name: &'n str) -> Self {
        match name.split('|').collect::<Vec<_>>()[..] {
            [direction, port, subset, fqdn, ..] => {
                Self { fqdn, subset, port: port.parse().unwrap_or_default(), direction }
            }
            _ => Self { fqdn: name, subset: "", port: 0, direction: "" },
        }
    }
}

pub(super) const TITLES: [&str; 6] = ["SERVICE FQDN", "PORT", "SUBSET", "DIRECTION", "TYPE", "DESTINATION RULE"];

/// The selected clusters in the order of the table.
pub(super) fn select<'d>(mut clusters: Vec<&'d Value>, filter: &Filter) -> Vec<&'d Value> {
    clusters.retain(|cluster| is_selected(text(cluster, "name"), filter));
    clusters.sort_by(|a, b| ClusterName::parse(text(a, "name")).cmp(&ClusterName::parse(text(b, "name"))));
    clusters
}

fn is_selected(name: &str, filter: &Filter) -> bool {
    let direction = filter.direction.map(|direction| match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    });
    let contains = |part: Option<&str>| part.is_none_or(|part| name.contains(part));
    contains(filter.fqdn.as_deref())
        && contains(direction)
        && contains(filter.subset.as_deref())
        && filter.port.is_none_or(|port| name.contains(&format!("|{port}|")))
}

/// Cells of a cluster.
pub(super) fn row(cluster: &Value) -> Vec<String> {
    let name = text(cluster, "name");
    let kind = match text(cluster, "type") {
        "" => "STATIC",
        kind => kind,
    };
    let dash = || "-".to_owned();
    let parsed = ClusterName::parse(name);
    let head = match name.matches('|').count() > 2 {
        true => {
            let subset = if parsed.subset.is_empty() { dash() } else { parsed.subset.to_owned() };
            [parsed.fqdn.to_owned(), parsed.port.to_string(), subset, parsed.direction.to_owned()]
        }
        false => [name.to_owned(), dash(), dash(), dash()],
    };
    head.into_iter().chain([kind.to_owned(), origin(cluster)]).collect()
}
