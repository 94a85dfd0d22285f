//! The libraries of clients and servers.

use sluice_testkit::pods::grpc_app::grpc_app_is_built;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{GrpcLibrary, PodRole, PortProtocol, Workload};

use crate::PORT;

/// Makes tests of a function of [`Libraries`], one for each function of [`Libraries`] that is named.
macro_rules! with_libraries {
    ($test:ident: $($libraries:ident),+) => {
        mod $test {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $libraries() -> anyhow::Result<()> {
                    let libraries = crate::libraries::Libraries::$libraries();
                    if libraries.can_run() { super::$test(libraries).await } else { Ok(()) }
                }
            )+
        }
    };
}

/// The libraries of the pods of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Libraries {
    client: GrpcLibrary,
    server: GrpcLibrary,
}

impl Libraries {
    pub(crate) const fn python() -> Self {
        Self { client: GrpcLibrary::Python, server: GrpcLibrary::Python }
    }

    pub(crate) const fn go() -> Self {
        Self { client: GrpcLibrary::Go, server: GrpcLibrary::Go }
    }

    pub(crate) const fn go_to_python() -> Self {
        Self { client: GrpcLibrary::Go, server: GrpcLibrary::Python }
    }

    pub(crate) const fn python_to_go() -> Self {
        Self { client: GrpcLibrary::Python, server: GrpcLibrary::Go }
    }

    /// Whether this machine has what the pods need.
    pub(crate) fn can_run(self) -> bool {
        pods_are_permitted() && [self.client, self.server].into_iter().all(grpc_app_is_built)
    }

    /// Whether a server may leave a call unanswered that arrives while it is being stopped, until the deadline of the call. gRPC for
    /// Python does so.
    pub(crate) fn loses_calls_while_stopping(self) -> bool {
        self.server == GrpcLibrary::Python
    }

    /// A pod with a gRPC client only.
    pub(crate) fn client(self, name: &'static str) -> Workload {
        Workload::new(name, name, PodRole::Grpc(self.client))
    }

    /// A pod with a gRPC server.
    pub(crate) fn server(self, name: &'static str, app: &'static str, version: &'static str) -> Workload {
        let pod = Workload::new(name, app, PodRole::Grpc(self.server));
        pod.version(version).port("grpc", PORT, PortProtocol::Grpc)
    }

    /// A pod with a gRPC server that may fail calls. That of Python reads no configuration of the mesh: otherwise it crashes when
    /// its handler fails a call (`pipe.h:85] Check failed: has_value()`).
    pub(crate) fn failing_server(self, name: &'static str) -> Workload {
        let protocol = match self.server {
            GrpcLibrary::Python => PortProtocol::PlainGrpc,
            GrpcLibrary::Go => PortProtocol::Grpc,
        };
        Workload::new(name, name, PodRole::Grpc(self.server)).port("grpc", PORT, protocol)
    }
}
