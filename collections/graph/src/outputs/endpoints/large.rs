//! Assignments of large services, in segments: a change of an endpoint encodes one chunk again.
//!
//! An assignment has a head, a segment for each chunk of endpoints and group of them, and frames around the segments of
//! each group. Frames follow from sums over all chunks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::cluster::ClusterSettings;
use sluice_envoy::endpoint::{
    AssignmentInputs, AssignmentSegments, AssignmentTotals, EndpointClient, NamedEndpoints, Tier, build_frames,
    build_frames_by_locality, build_head, build_part, build_part_by_locality,
};
use sluice_model::{
    Endpoint, Host, Layer, Resource, ResourceKey, ResourceType, Segment, SegmentKey, Service, ServiceKey, Text, View,
};

use super::client_service::ClientService;
use super::lookup::{EndpointLookup, backends};
use super::waypoints::WaypointAssignments;
use super::{Clients, EndpointInputs, Outputs, has_eds, tier_of};
use crate::content_names::profile_text;
use crate::registry::endpoints::{EndpointGroup, ServiceEndpoints};
use crate::traffic::destinations::Destinations;
use crate::traffic::waypoints::ServedKey;
use crate::views::Overlay;

/// An assignment of a client in a view.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct AssignmentKey {
    view: View,
    profile: Text,
    name: Text,
}

/// Segments of an assignment, and endpoints that are resources of their own.
type AssignmentParts = (AssignmentSegments, NamedEndpoints);

/// Sums over a chunk or several, for each assignment that they are part of.
type ChunkTotals = Vec<(AssignmentKey, AssignmentTotals)>;

/// What the assignments of a service contain of a chunk.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ChunkParts {
    segments: Vec<(SegmentKey, Segment)>,
    totals: ChunkTotals,
}

/// A client of a service with node-local traffic.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct NodeLocalClient {
    client: EndpointClient,
    service: ServiceKey,
}

/// The collections that [`AssignmentLookup`] looks up.
struct AssignmentLookupInputs<'a, 's> {
    inputs: &'a EndpointInputs<'a, 's>,
    clients: &'a Clients<'s>,
    by_node: &'a [Index<'s, Text, EndpointClient, ()>; Tier::ALL.len()],
    /// The waypoints of each service.
    waypoints: Option<&'a Index<'s, ServiceKey, ServedKey, ()>>,
}

/// What all assignments of large services depend on, inside a `derive`.
struct AssignmentLookup {
    destinations: Destinations,
    endpoints: EndpointLookup,
    settings: Dep<(), ClusterSettings>,
    clients: [Dep<EndpointClient, ()>; Tier::ALL.len()],
    by_node: [IndexDep<Text, EndpointClient, ()>; Tier::ALL.len()],
    udp_backends: Option<Dep<Host, BTreeSet<u16>>>,
    waypoints: Option<(IndexDep<ServiceKey, ServedKey, ()>, WaypointAssignments)>,
}

/// The clients of a service.
enum AssignmentClients<'a> {
    /// All.
    All,
    /// Those on a node.
    OnNode(&'a Text),
    /// This one, if it is of the tier that the service needs.
    One(&'a EndpointClient),
}

impl AssignmentLookup {
    fn on<'s>(deps: &mut Deps<'s>, shared: &AssignmentLookupInputs<'_, 's>) -> Self {
        Self {
            destinations: Destinations::on(deps, &shared.inputs.destinations),
            endpoints: EndpointLookup::on(deps, &shared.inputs.endpoints),
            settings: deps.on(shared.inputs.settings),
            clients: shared.clients.each_ref().map(|clients| deps.on(clients)),
            by_node: shared.by_node.each_ref().map(|clients| deps.by(clients)),
            udp_backends: shared.inputs.udp_backends.map(|ports| deps.on(ports)),
            waypoints: shared.inputs.waypoints.as_ref().zip(shared.waypoints).map(|((inputs, clients), waypoints)| {
                (deps.by(waypoints), WaypointAssignments::on(deps, inputs, clients))
            }),
        }
    }

    /// The segments of a service's assignments: those that `build` makes of each assignment with these endpoints, for
    /// all clients and the views that have the service. Endpoints that are resources of their own are segments without a name.
    fn segments(
        &self,
        cx: &Context,
        service: &ServiceKey,
        clients: &AssignmentClients<'_>,
        endpoints: &[Endpoint],
        mut build: impl FnMut(AssignmentKey, &AssignmentInputs<'_>) -> AssignmentParts,
    ) -> Vec<(SegmentKey, Segment)> {
        let mut rows = self.outbound_segments(cx, service, clients, endpoints, &mut build);
        if matches!(clients, AssignmentClients::All) {
            rows.extend(self.waypoint_segments(cx, service, endpoints, &mut build));
        }
        rows
    }

    /// The segments at the waypoints of a service.
    fn waypoint_segments(
        &self,
        cx: &Context,
        service: &ServiceKey,
        endpoints: &[Endpoint],
        build: &mut dyn FnMut(AssignmentKey, &AssignmentInputs<'_>) -> AssignmentParts,
    ) -> Vec<(SegmentKey, Segment)> {
        let Some((waypoints, assignments)) = &self.waypoints else { return Vec::new() };
        let mut rows = Vec::new();
        for (key, _) in cx.by(waypoints, service) {
            let list = |_: &Service, root: &Text| Some(self.endpoints.list(cx, Arc::new(endpoints.to_vec()), root));
            assignments.each(cx, &key, list, |layer, name, inputs| {
                let name = Text::from(name);
                let Layer { view, profile } = layer.clone();
                let (own, _) = build(AssignmentKey { view, profile, name: name.clone() }, inputs);
                rows.extend(own.into_iter().map(|(segment, bytes)| {
                    let (layer, name) = (layer.clone(), name.clone());
                    let key = SegmentKey { resource_type: ResourceType::Endpoint, layer, name, segment };
                    (key, Resource::Encoded(bytes.into()))
                }));
            });
        }
        rows
    }

    /// The segments at the clients of outbound clusters.
    fn outbound_segments(
        &self,
        cx: &Context,
        service: &ServiceKey,
        clients: &AssignmentClients<'_>,
        endpoints: &[Endpoint],
        build: &mut dyn FnMut(AssignmentKey, &AssignmentInputs<'_>) -> AssignmentParts,
    ) -> Vec<(SegmentKey, Segment)> {
        let Some(settings) = cx.get(&self.settings, &()) else { return Vec::new() };
        let destinations = self.destinations.get(cx, &service.host);
        let Some(tier) = tier_of(&settings, &destinations, has_eds) else { return Vec::new() };
        let udp_ports = self.udp_backends.as_ref().and_then(|ports| cx.get(ports, &service.host));
        let gateways = self.endpoints.gateways(cx, false);
        let refuse_mtls = self.endpoints.refuse_mtls(cx, endpoints, destinations.root_namespace());
        let backends = backends(endpoints, &refuse_mtls);
        let keys = |clients: Vec<(EndpointClient, _)>| clients.into_iter().map(|(client, _)| client).collect();
        let clients: Vec<EndpointClient> = match clients {
            AssignmentClients::All => keys(cx.all(&self.clients[tier as usize])),
            AssignmentClients::OnNode(node) => keys(cx.by(&self.by_node[tier as usize], node)),
            AssignmentClients::One(client) => {
                Some((*client).clone()).filter(|client| client.tier == tier).into_iter().collect()
            }
        };
        // Other services of the host have assignments that are not in segments, and hide these.
        let is_other = |view: &View| destinations.service_seen_from(view).is_some_and(|found| found.key() != *service);
        let views: Vec<View> = destinations.special_views().filter(|view| !is_other(view)).collect();
        let mut rows = Vec::new();
        for client in clients {
            let profile = profile_text(&client);
            let seen = Overlay::rows(views.iter().cloned(), |view| {
                let mut segments = BTreeMap::new();
                let found = ClientService::of(&destinations, view, &client);
                let Some(service) = found.filter(|found| found.key() == *service) else { return segments };
                let service = service.with_udp_ports(udp_ports.as_deref());
                service.each_assignment(&settings, &backends, &gateways, |name, inputs| {
                    let name = Text::from(name);
                    let key = AssignmentKey { view: view.clone(), profile: profile.clone(), name: name.clone() };
                    let (own, endpoints) = build(key, inputs);
                    for (segment, bytes) in own {
                        let key = (ResourceType::Endpoint, name.clone(), segment);
                        segments.insert(key, Resource::Encoded(bytes.into()));
                    }
                    for (endpoint, bytes) in endpoints {
                        let key = (ResourceType::LbEndpoint, endpoint, Text::default());
                        segments.entry(key).or_insert(Resource::Encoded(bytes.into()));
                    }
                });
                segments
            });
            rows.extend(seen.into_iter().map(|(view, (resource_type, name, segment), content)| {
                let layer = Layer { view, profile: profile.clone() };
                (SegmentKey { resource_type, layer, name, segment }, content)
            }));
        }
        rows
    }
}

/// The clients of the endpoints of a group.
fn clients_of(group: &EndpointGroup) -> AssignmentClients<'_> {
    group.node.as_ref().map_or(AssignmentClients::All, AssignmentClients::OnNode)
}

/// The segments of the assignments of large services: chunks, frames and heads.
/// Key: `SegmentKey`. From: `endpoint_chunks`, `large_services`, and as `endpoint_assignments`.
/// Changes when: an endpoint of the chunk does; frames: when the number or the weight of endpoints does, or the size of
/// a chunk; all: when the service does, or a rule or policy for it.
/// Size: as `endpoint_assignments`, × chunks of the service. Rejects: none.
pub(super) fn derive_assignments<'s>(
    inputs: &EndpointInputs<'_, 's>,
    clients: &Clients<'s>,
    outputs: &mut Outputs<'s>,
) -> Vec<Collection<'s, SegmentKey, Segment>> {
    let by_node = Tier::ALL.map(|tier| {
        let name = format!("endpoint_clients/{tier:?}/by-node").to_lowercase();
        // The clients of other tiers have no node.
        let on_node = move |client: &EndpointClient, _: &()| tier.is_rare().then(|| (client.node.clone(), ()));
        clients[tier as usize].index(&name, on_node)
    });
    let waypoints = inputs.waypoints.as_ref().map(|(waypoints, _)| {
        let served = &waypoints.waypoints.served;
        served.index("waypoints/served-by-service", |(_, service), ()| [(service.clone(), ())])
    });
    let shared = AssignmentLookupInputs { inputs, clients, by_node: &by_node, waypoints: waypoints.as_ref() };
    let ServiceEndpoints { large, chunks, .. } = inputs.endpoints.endpoints;
    let parts = chunks.derive("endpoint_assignments/parts", |deps| {
        let shared = AssignmentLookup::on(deps, &shared);
        move |cx, (group, start), endpoints| {
            let mut totals = ChunkTotals::new();
            let part = start.as_deref().unwrap_or_default();
            let segments = shared.segments(cx, &group.service, &clients_of(group), endpoints, |key, inputs| {
                let (parts, sums) = if inputs.client.by_locality {
                    let (endpoints, sums) = build_part_by_locality(inputs, &key.name);
                    ((AssignmentSegments::new(), endpoints), sums)
                } else {
                    let (segments, sums) = build_part(inputs, part);
                    ((segments, NamedEndpoints::new()), sums)
                };
                totals.push((key, sums));
                parts
            });
            Some(ChunkParts { segments, totals })
        }
    });
    let segments = parts.flat_map("endpoint_assignments/segments", |_, parts| parts.segments.clone());
    let totals = parts.map("endpoint_assignments/totals", |_, parts| parts.totals.clone());
    // In two steps, so that a change of a chunk does not read the sums of all chunks.
    let by_bucket = totals.index("endpoint_assignments/totals-by-bucket", |(group, start), totals| {
        [((group.clone(), bucket_of(start.as_deref())), totals.clone())]
    });
    let of_buckets = by_bucket.distinct("endpoint_assignments/buckets").derive("endpoint_assignments/sums", |deps| {
        let totals = deps.by(&by_bucket);
        move |cx, bucket, ()| Some(sum(&cx.by(&totals, bucket)))
    });
    let by_group =
        of_buckets.index("endpoint_assignments/sums-by-group", |(group, _), totals| [(group.clone(), totals.clone())]);
    let frames = by_group.distinct("endpoint_assignments/groups").derive_many("endpoint_assignments/frames", |deps| {
        let (shared, totals) = (AssignmentLookup::on(deps, &shared), deps.by(&by_group));
        move |cx, group, ()| {
            let sums: BTreeMap<_, _> = sum(&cx.by(&totals, group)).into_iter().collect();
            shared.segments(cx, &group.service, &clients_of(group), &[], |key, inputs| {
                let Some(sums) = sums.get(&key) else { return AssignmentParts::default() };
                if inputs.client.by_locality {
                    return build_frames_by_locality(inputs, &key.name, sums);
                }
                (build_frames(inputs, sums), NamedEndpoints::new())
            })
        }
    });
    let heads = large.derive_many("endpoint_assignments/heads", |deps| {
        let shared = AssignmentLookup::on(deps, &shared);
        move |cx, service, facts| {
            if facts.node_local {
                return Vec::new();
            }
            shared.segments(cx, service, &AssignmentClients::All, &[], head)
        }
    });
    // Each client has separate assignments of services with node-local traffic, so heads are derived by client: else
    // every client would be visited when another one connects.
    let node_local = large.filter("endpoint_assignments/node-local", |_, facts| facts.node_local);
    let of_tier = |tier: Tier| {
        let name = |part: &str| format!("endpoint_assignments/{part}/{tier:?}").to_lowercase();
        let pairs = clients[tier as usize].derive_many(&name("node-local-clients"), |deps| {
            let node_local = deps.on(&node_local);
            move |cx, client, ()| {
                let services = cx.all(&node_local).into_iter().map(|(service, _)| service);
                services.map(|service| (NodeLocalClient { client: client.clone(), service }, ())).collect()
            }
        });
        pairs.derive_many(&name("heads"), |deps| {
            let shared = AssignmentLookup::on(deps, &shared);
            move |cx, NodeLocalClient { client, service }, ()| {
                shared.segments(cx, service, &AssignmentClients::One(client), &[], head)
            }
        })
    };
    let [segments, frames] = match inputs.by_locality {
        true => [segments, frames].map(|segments| {
            outputs.resources.push(endpoints_by_locality(&segments));
            let name = format!("{}/assignments", segments.name());
            segments.filter(&name, |key, _| key.resource_type == ResourceType::Endpoint)
        }),
        false => [segments, frames],
    };
    vec![segments, frames, heads, of_tier(Tier::Node), of_tier(Tier::Labels)]
}

/// The endpoints among segments that are resources of their own.
/// Key: layer and name. From: the segments. Changes when: they do. Size: endpoints of large services for clients with LEDS.
/// Rejects: none.
fn endpoints_by_locality<'s>(segments: &Collection<'s, SegmentKey, Segment>) -> Collection<'s, ResourceKey, Resource> {
    segments.flat_map(&format!("{}/by-locality", segments.name()), |key, content| {
        (key.resource_type == ResourceType::LbEndpoint).then(|| {
            let SegmentKey { resource_type, layer, name, .. } = key.clone();
            (ResourceKey { resource_type, layer, name }, content.clone())
        })
    })
}

fn head(key: AssignmentKey, _: &AssignmentInputs<'_>) -> AssignmentParts {
    (vec![(Text::default(), build_head(&key.name))], NamedEndpoints::new())
}

/// Number of buckets among which the chunks of a group are divided.
const BUCKETS: u64 = 64;

/// The bucket of the chunk with this start.
fn bucket_of(start: Option<&str>) -> u64 {
    // The lower bits are the same for all starts.
    start.map_or(0, |start| rapidhash::v3::rapidhash_v3(start.as_bytes()) >> 32) % BUCKETS
}

/// The sums over parts of a group, by assignment.
fn sum<K>(parts: &[(K, Arc<ChunkTotals>)]) -> ChunkTotals {
    let mut sums = ChunkTotals::new();
    for (_, totals) in parts {
        for (at, (key, totals)) in totals.iter().enumerate() {
            // The assignments of all parts are in the same order.
            let at = Some(at).filter(|at| sums.get(*at).is_some_and(|(known, _)| known == key));
            match at.or_else(|| sums.iter().position(|(known, _)| known == key)) {
                Some(at) => sums[at].1.add(totals),
                None => sums.push((key.clone(), totals.clone())),
            }
        }
    }
    sums
}
