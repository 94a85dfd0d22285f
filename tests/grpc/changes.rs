//! Servers and objects change while calls are sent. No call fails.

use anyhow::{Context, Result};
use sluice_testkit::pods::grpc_app::GrpcCall;
use sluice_testkit::pods::load::{Stream, under_load};

use crate::calls::{eventually, eventually_without, logs};
use crate::libraries::Libraries;
use crate::{every_resource_is_accepted, mesh_of, mutual_tls, routes, service, strict, target};

with_libraries!(rolling_update_fails_no_call: python, go);

async fn rolling_update_fails_no_call(libraries: Libraries) -> Result<()> {
    let objects = strict("tea") + &service("tea", "tea") + &mutual_tls("tea");
    let workloads =
        [libraries.client("client"), libraries.server("old-1", "tea", "v1"), libraries.server("old-2", "tea", "v2")];
    let mut mesh = mesh_of(&workloads, &objects, &[]).await?;
    let call = GrpcCall::new(&target("tea"));
    eventually(&mesh, "client", &call, "tea v1").await?;
    let stream = Stream::of_grpc(mesh.pods.shared("client"), call.clone(), &["tea v1", "tea v2", "tea v3", "tea v4"]);
    let several = call.clone().times(20);
    let change = async {
        for (old, old_version, new, version) in [("old-1", "v1", "new-1", "v3"), ("old-2", "v2", "new-2", "v4")] {
            mesh.deploy(&[libraries.server(new, "tea", version)]).await?;
            eventually(&mesh, "client", &call, &format!("tea {version}")).await?;
            mesh.withdraw(old)?;
            // Otherwise the server is stopped at the time at which its endpoint is removed, as in Kubernetes.
            if libraries.loses_calls_while_stopping() {
                eventually_without(&mesh, "client", &several, &format!("tea {old_version}")).await?;
            }
            mesh.pods.pod(old).grpc_app()?.stop_serving().await?;
            mesh.pods.stop(old)?;
        }
        eventually_without(&mesh, "client", &several, "tea v2").await
    };
    let outcome = under_load(&[stream], change).await;
    let ((), calls) = outcome.with_context(|| logs(&mesh))?;
    eprintln!("rolling update under {calls} calls, and none failed");
    every_resource_is_accepted(&mesh).await
}

with_libraries!(route_changes_fail_no_call: python, go);

async fn route_changes_fail_no_call(libraries: Libraries) -> Result<()> {
    const CHANGES: usize = 10;
    let objects = strict("tea") + &service("tea", "tea") + &mutual_tls("tea");
    let workloads =
        [libraries.client("client"), libraries.server("tea-v1", "tea", "v1"), libraries.server("tea-v2", "tea", "v2")];
    let mesh = mesh_of(&workloads, &objects, &[]).await?;
    let call = GrpcCall::new(&target("tea"));
    eventually(&mesh, "client", &call, "tea v1").await?;
    let stream = Stream::of_grpc(mesh.pods.shared("client"), call.clone(), &["tea v1", "tea v2"]);
    let mesh = &mesh;
    let change = async {
        for version in ["v1", "v2"].into_iter().cycle().take(CHANGES) {
            mesh.write(
                "routes.yaml",
                &routes("tea", &format!("{{route: [{{destination: {{host: tea, subset: {version}}}}}]}}")),
            )?;
            eventually(mesh, "client", &call.clone().times(10), &format!("tea {version}")).await?;
        }
        Ok(())
    };
    let ((), calls) = under_load(&[stream], change).await.with_context(|| logs(mesh))?;
    eprintln!("{CHANGES} changes under {calls} calls, and none failed");
    every_resource_is_accepted(mesh).await
}
