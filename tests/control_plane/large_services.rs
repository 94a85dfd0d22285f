//! Endpoints of a Service whose number changes: the client always holds all of them, in order.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prost::Message;
use serde_json::json;
use sluice_proto::envoy::config::core::v3::address::Address;
use sluice_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use sluice_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::server::{Options, Sluiced};

const NAME: &str = "outbound|80||web.app.svc.cluster.local";
/// Time limit for a response.
const LIMIT: Duration = Duration::from_secs(60);

fn address(number: usize) -> String {
    format!("10.1.{}.{}", number / 200, number % 200 + 1)
}

/// Writes a Service with these endpoints, in slices of 100.
fn write(directory: &Path, numbers: &[usize]) -> Result<()> {
    let mut yaml = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: app}, \
                    spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}}\n"
        .to_owned();
    for (slice, numbers) in numbers.chunks(100).enumerate() {
        let endpoints: Vec<String> = numbers.iter().map(|at| format!("{{addresses: [{}]}}", address(*at))).collect();
        writeln!(
            yaml,
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{name: web-{slice}, namespace: app, labels: {{kubernetes.io/service-name: web}}}}, \
             ports: [{{name: http, port: 8080}}], endpoints: [{}]}}",
            endpoints.join(", ")
        )?;
    }
    std::fs::write(directory.join("next"), yaml)?;
    Ok(std::fs::rename(directory.join("next"), directory.join("mesh.yaml"))?)
}

/// The addresses of an assignment.
fn addresses(assignment: &ClusterLoadAssignment) -> Vec<String> {
    let endpoints = assignment.endpoints.iter().flat_map(|group| &group.lb_endpoints);
    let addresses = endpoints.filter_map(|endpoint| match endpoint.host_identifier.as_ref()? {
        HostIdentifier::Endpoint(endpoint) => match endpoint.address.as_ref()?.address.as_ref()? {
            Address::SocketAddress(socket) => Some(socket.address.clone()),
            _ => None,
        },
        HostIdentifier::EndpointName(_) => None,
    });
    addresses.collect()
}

async fn follow(protocol: Protocol) -> Result<()> {
    let directory = tempfile::tempdir()?;
    write(directory.path(), &[0])?;
    let server = Sluiced::start(&Options::new(directory.path())).await?;
    let id = "sidecar~10.3.0.1~client.app~app.svc.cluster.local";
    let identity = Identity::of_node(&json!({"id": id, "metadata": {"NAMESPACE": "app", "CLUSTER_ID": "Kubernetes"}}))?;
    let mut stream = AdsStream::open(connect(server.grpc).await?, protocol, identity)?;
    stream.subscribe(Kind::Eds.type_url(), &[NAME.to_owned()], BTreeMap::new())?;
    let without = |numbers: std::ops::Range<usize>, left_out: usize| -> Vec<usize> {
        numbers.filter(|number| *number != left_out).collect()
    };
    // From one list to chunks, changes of chunks, and back.
    let steps = [
        without(0..1, 9_999),
        without(0..200, 9_999),
        without(0..900, 9_999),
        without(0..900, 450),
        without(100..900, 451),
        without(0..3, 9_999),
        without(0..600, 9_999),
        Vec::new(),
    ];
    for (step, numbers) in steps.iter().enumerate() {
        if step > 0 {
            write(directory.path(), numbers)?;
        }
        let mut expected: Vec<String> = numbers.iter().map(|number| address(*number)).collect();
        expected.sort();
        loop {
            let update = stream.next_within(LIMIT).await?.context("the stream ended")?;
            stream.ack(&update)?;
            ensure!(update.removed.is_empty(), "step {step}: {:?} are removed", update.removed);
            let [(.., resource)] = update.resources.as_slice() else {
                anyhow::bail!("step {step}: {} resources", update.resources.len());
            };
            let assignment = ClusterLoadAssignment::decode(resource.value.as_slice())?;
            ensure!(assignment.cluster_name == NAME, "{}", assignment.cluster_name);
            if addresses(&assignment) == expected {
                break;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_client_holds_all_endpoints_whatever_their_number() -> Result<()> {
    follow(Protocol::Delta).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_of_the_world_client_holds_all_endpoints_whatever_their_number() -> Result<()> {
    follow(Protocol::Sotw).await
}
