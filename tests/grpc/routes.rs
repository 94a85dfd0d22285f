//! Traffic splits, matches, retries, faults and timeouts of VirtualServices.

use anyhow::{Result, ensure};
use sluice_testkit::pods::grpc_app::GrpcCall;
use sluice_testkit::pods::mesh::Mesh;

use crate::calls::{always, eventually};
use crate::libraries::Libraries;
use crate::{every_resource_is_accepted, mesh_of, mutual_tls, routes, service, strict, target};

with_libraries!(calls_follow_virtual_services: python, go);

async fn calls_follow_virtual_services(libraries: Libraries) -> Result<()> {
    let to = |version: &str| format!("route: [{{destination: {{host: tea, subset: {version}}}}}]");
    let names = ["tea", "split", "matched", "faulty"];
    let of_failing_server = ["retried", "impatient", "patient"];
    let objects = [
        strict("tea"),
        names.map(|name| service(name, "tea") + &mutual_tls(name)).concat(),
        of_failing_server.map(|name| service(name, "cup")).concat(),
        service("hasty", "cup"),
        routes("split", &split(70)),
        routes(
            "matched",
            &format!("{{match: [{{headers: {{x-team: {{exact: green}}}}}}], {}}}, {{{}}}", to("v2"), to("v1")),
        ),
        routes("retried", "{retries: {attempts: 3, retryOn: unavailable}, route: [{destination: {host: retried}}]}"),
        routes("impatient", "{retries: {attempts: 0}, route: [{destination: {host: impatient}}]}"),
        routes(
            "faulty",
            &format!(
                "{{match: [{{uri: {{prefix: /shop.Broken/}}}}], fault: {{abort: {{grpcStatus: RESOURCE_EXHAUSTED, \
                 percentage: {{value: 100}}}}}}, {v1}}}, {{{v1}}}",
                v1 = to("v1")
            ),
        ),
        routes("patient", "{timeout: 600s, route: [{destination: {host: patient}}]}"),
        routes("hasty", "{timeout: 500ms, route: [{destination: {host: hasty}}]}"),
    ];
    let workloads = [
        libraries.client("client"),
        libraries.server("tea-v1", "tea", "v1"),
        libraries.server("tea-v2", "tea", "v2"),
        libraries.failing_server("cup"),
    ];
    let mesh = mesh_of(&workloads, &objects.concat(), &[]).await?;
    for name in names {
        eventually(&mesh, "client", &GrpcCall::new(&target(name)).path("/shop.Tea/First"), "tea v1").await?;
    }
    for name in of_failing_server {
        eventually(&mesh, "client", &GrpcCall::new(&target(name)), "cup v1").await?;
    }
    split_is_counted(&mesh).await?;
    matches_decide(&mesh).await?;
    failures_are_retried(&mesh).await?;
    faults_abort(&mesh).await?;
    timeouts_are_deadlines(&mesh).await?;
    every_resource_is_accepted(&mesh).await
}

/// A route of which this percentage goes to v1, and the rest to v2.
fn split(percentage: u32) -> String {
    format!(
        "{{route: [{{destination: {{host: split, subset: v1}}, weight: {percentage}}}, \
         {{destination: {{host: split, subset: v2}}, weight: {}}}]}}",
        100 - percentage
    )
}

async fn split_is_counted(mesh: &Mesh) -> Result<()> {
    const CALLS: u32 = 2000;
    /// More than five standard deviations of a binomial distribution.
    const TOLERANCE: u32 = 115;
    let call = GrpcCall::new(&target("split")).times(CALLS);
    let counts = mesh.pods.pod("client").call_grpc(&call).await?.counts;
    let of = |responder: &str| counts.get(responder).copied().unwrap_or_default();
    let (v1, v2) = (of("tea v1"), of("tea v2"));
    ensure!(v1 + v2 == CALLS && v1.abs_diff(CALLS * 7 / 10) < TOLERANCE, "70 to 30: {counts:?}");
    Ok(())
}

async fn matches_decide(mesh: &Mesh) -> Result<()> {
    let call = GrpcCall::new(&target("matched")).times(20);
    always(mesh, "client", &call.clone().metadata("x-team", "green"), "tea v2").await?;
    always(mesh, "client", &call.metadata("x-team", "red"), "tea v1").await?;
    Ok(())
}

async fn failures_are_retried(mesh: &Mesh) -> Result<()> {
    let retried = GrpcCall::new(&target("retried"));
    let answer = always(mesh, "client", &retried.clone().failure("UNAVAILABLE", 2, "twice"), "cup v1").await?;
    let attempts = answer.metadata.get("grpc-previous-rpc-attempts").map(String::as_str);
    ensure!(attempts == Some("2"), "the third attempt succeeds: {answer:?}");
    // Another code is not retried, nor is one without a retry policy.
    always(mesh, "client", &retried.failure("ABORTED", 1, "another code"), "ABORTED").await?;
    let impatient = GrpcCall::new(&target("impatient"));
    always(mesh, "client", &impatient.failure("UNAVAILABLE", 1, "impatient"), "UNAVAILABLE").await?;
    Ok(())
}

async fn faults_abort(mesh: &Mesh) -> Result<()> {
    let call = GrpcCall::new(&target("faulty")).times(20);
    always(mesh, "client", &call.clone().path("/shop.Broken/Get"), "RESOURCE_EXHAUSTED").await?;
    always(mesh, "client", &call, "tea v1").await?;
    Ok(())
}

async fn timeouts_are_deadlines(mesh: &Mesh) -> Result<()> {
    // The server would answer before the deadline of the client. On some machines the clock of the library of C++ for timeouts of routes is
    // seconds behind its other clock, so that a short timeout ends every call.
    let call = |host| GrpcCall::new(&target(host)).delay_seconds(3);
    always(mesh, "client", &call("hasty"), "DEADLINE_EXCEEDED").await?;
    always(mesh, "client", &call("patient"), "cup v1").await?;
    Ok(())
}
