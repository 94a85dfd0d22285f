//! The remote clusters and the networks of the mesh, which distinguish clients.

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_model::{ClientLocation, Endpoint, Proxy, Service, ServiceKey, Text, UNKNOWN_LOCATION, label};

use crate::options::GraphOptions;
use crate::registry::endpoints::ServiceEndpoints;

/// A cluster besides that of the control plane, or a network, in which the mesh has a service or an endpoint.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) enum KnownLocation {
    Cluster(Text),
    Network(Text),
}

/// The remote clusters and the networks of the mesh. Clients elsewhere are all sent the same.
/// Key: `KnownLocation`. From: `services` (the clusters of their addresses), `endpoints`,
/// `endpoint_chunks`.
/// Changes when: the first service or endpoint of a cluster or network is added, or the last is removed.
/// Size: remote clusters and networks. Rejects: none.
pub(crate) fn derive_locations<'s>(
    services: &Collection<'s, ServiceKey, Service>,
    endpoints: &ServiceEndpoints<'s>,
    options: &GraphOptions,
) -> Collection<'s, KnownLocation, ()> {
    let own = options.cluster.clone();
    let of_services = services.index("locations/services", move |_, service| {
        let clusters = service.addresses.keys().filter(|cluster| **cluster != own);
        clusters.map(|cluster| (KnownLocation::Cluster(cluster.clone()), ())).collect::<Vec<_>>()
    });
    let own = options.cluster.clone();
    let of_listed = endpoints.listed.index("locations/endpoints", move |_, endpoints| locations_of(endpoints, &own));
    let own = options.cluster.clone();
    let of_chunks = endpoints.chunks.index("locations/chunks", move |_, endpoints| locations_of(endpoints, &own));
    let of_endpoints = [of_listed.distinct("locations/of-endpoints"), of_chunks.distinct("locations/of-chunks")];
    of_services.distinct("locations/of-services").union("locations", &of_endpoints)
}

/// The locations of some endpoints. `own` is the cluster of the control plane.
fn locations_of(endpoints: &[Endpoint], own: &Text) -> Vec<(KnownLocation, ())> {
    let location = |endpoint: &Endpoint| {
        // The label of a workload has precedence in failover by labels.
        let label = endpoint.labels.get(label::NETWORK).filter(|network| **network != endpoint.network);
        (endpoint.cluster.clone(), endpoint.network.clone(), label.cloned())
    };
    let mut found: Vec<_> = endpoints.iter().map(location).collect();
    found.dedup();
    let mut locations = Vec::new();
    for (cluster, network, label) in found {
        locations.extend(Some(cluster).filter(|cluster| cluster != own).map(KnownLocation::Cluster));
        locations.extend([Some(network), label].into_iter().flatten().map(KnownLocation::Network));
    }
    locations.retain(|(KnownLocation::Cluster(name) | KnownLocation::Network(name))| !name.is_empty());
    locations.sort_unstable();
    locations.dedup();
    locations.into_iter().map(|location| (location, ())).collect()
}

/// Looks up the location of a proxy.
pub(crate) struct LocationLookup {
    locations: Dep<KnownLocation, ()>,
    own_cluster: Text,
}

impl LocationLookup {
    pub(crate) fn on<'s>(
        deps: &mut Deps<'s>,
        locations: &Collection<'s, KnownLocation, ()>,
        options: &GraphOptions,
    ) -> Self {
        Self { locations: deps.on(locations), own_cluster: options.cluster.clone() }
    }

    /// The location that the shared resources of a proxy are built for.
    pub(crate) fn of(&self, cx: &Context, proxy: &Proxy) -> ClientLocation {
        let or_unknown = |name: &Text, location: KnownLocation| {
            let known = name.is_empty() || cx.get(&self.locations, &location).is_some();
            if known { name.clone() } else { UNKNOWN_LOCATION.into() }
        };
        let cluster = proxy.home_cluster();
        ClientLocation {
            cluster: match cluster {
                own if *own == self.own_cluster => own.clone(),
                other => or_unknown(other, KnownLocation::Cluster(other.clone())),
            },
            network: or_unknown(&proxy.network, KnownLocation::Network(proxy.network.clone())),
        }
    }
}
