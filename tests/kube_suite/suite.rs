//! Tests of what uses the Kubernetes API, for the fake API server and for a real one: the test binaries `control_plane` and
//! `cluster` include them.

/// Makes a test of a function that takes a `KubeApi`, with servers that `crate::kube_api` starts: `shared` and `remote`
/// are used by other tests as well; `own`, `own_remote` and `own_without_streaming_lists` are not.
macro_rules! with_api_server {
    ($test:ident, $($server:ident),+) => {
        mod $test {
            #[tokio::test(flavor = "multi_thread")]
            async fn on_api_server() {
                if let ($(Some($server),)+) = ($(crate::kube_api::$server().await,)+) {
                    super::$test($($server),+).await;
                }
            }
        }
    };
}

pub(crate) mod addresses;
mod answers;
mod authority;
mod config_maps;
mod definitions;
pub(crate) mod gateway_objects;
mod leader;
mod lists;
pub(crate) mod remote;
mod remote_roots;
pub(crate) mod secret_access;
mod server_certificate;
mod shutdown;
mod signer;
pub(crate) mod source;
pub(crate) mod supervision;
mod trust_bundle;
pub(crate) mod webhooks;

use sluice_testkit::kube_api::{KubeApi, Route};

/// The client of the control plane, behind the proxy of the test.
async fn client(api: &KubeApi) -> kube::Client {
    sluice_kube::client(api.config(Route::Proxied).await).expect("a client")
}
