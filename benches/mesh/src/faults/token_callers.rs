//! Callers whose tokens the API server does not review in time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol};
use sluice_testkit::secure::{self, ClientTls};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::server::SERVER_NAME;

/// Callers at a time.
const CALLERS: usize = 200;
/// Pause of a caller after a refusal.
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit for the review of a token.
pub(super) const REVIEW_TIMEOUT_ARGUMENT: &str = "--tokenReviewTimeout=1s";

/// Callers that open streams with tokens until they are stopped.
pub(super) struct TokenCallers {
    callers: JoinSet<()>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    refused: AtomicUsize,
    served: AtomicUsize,
}

impl TokenCallers {
    /// Starts them on the secure port of a server with this root.
    pub(super) async fn start(server: SocketAddr, root: &str) -> Result<Self> {
        let channel = secure::connect(server, SERVER_NAME, root, &ClientTls::default()).await?;
        let (mut callers, counts) = (JoinSet::new(), Arc::new(Counts::default()));
        for number in 0..CALLERS {
            let (channel, counts) = (channel.clone(), counts.clone());
            callers.spawn(async move {
                for attempt in 0.. {
                    let counter = match is_served(&channel, &format!("token-{number}-{attempt}")).await {
                        true => &counts.served,
                        false => &counts.refused,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Ok(Self { callers, counts })
    }

    /// Stops them.
    ///
    /// # Errors
    /// A caller was served although its token was not reviewed, or none was refused.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.callers.shutdown().await;
        let [served, refused] = [&self.counts.served, &self.counts.refused].map(|count| count.load(Ordering::Relaxed));
        ensure!(served == 0, "{served} callers were served whose tokens were not reviewed");
        ensure!(refused >= CALLERS, "only {refused} callers were refused");
        Ok(())
    }
}

/// Whether a caller with a token receives a response.
async fn is_served(channel: &Channel, token: &str) -> bool {
    let metadata = json!({"NAMESPACE": "sb-0", "SERVICE_ACCOUNT": "caller"});
    let node = json!({"id": "sidecar~10.0.0.1~caller.sb-0~sb-0.svc.cluster.local", "metadata": metadata});
    let opened = Identity::of_node(&node)
        .and_then(|identity| AdsStream::open_with_token(channel.clone(), Protocol::Delta, identity, token));
    let Ok(mut stream) = opened else { return false };
    // The server may have refused the stream already; the next message tells.
    let _ = stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new());
    matches!(stream.next().await, Ok(Some(_)))
}
