//! A source whose receiver of changes panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluice_model::{Kind, Text};
use sluice_sources::{Change, Sink};
use sluice_testkit::kube_api::KubeApi;
use tokio_util::sync::CancellationToken;

use super::source::{Recorder, options, service, source};

/// Panics instead of the next commits with this kind.
pub(crate) struct PanickingSink {
    inner: Arc<Recorder>,
    kind: Kind,
    panics: AtomicUsize,
}

impl PanickingSink {
    pub(crate) fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self { inner: Arc::default(), kind, panics: AtomicUsize::new(0) })
    }

    pub(crate) fn panic_next(&self) {
        self.panics.fetch_add(1, Ordering::SeqCst);
    }

    fn is_due(&self, changes: &[Change]) -> bool {
        let take = |panics: usize| panics.checked_sub(1);
        changes.iter().any(|change| change.kind == self.kind)
            && self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }
}

impl Sink for PanickingSink {
    fn commit(&self, changes: Vec<Change>) {
        assert!(!self.is_due(&changes), "injected by the test");
        self.inner.commit(changes);
    }

    fn synced(&self, cluster: &Text, kinds: &[Kind]) {
        Sink::synced(&*self.inner, cluster, kinds);
    }
}

with_api_server!(watch_whose_receiver_panics_lists_again_and_misses_no_change, shared);
async fn watch_whose_receiver_panics_lists_again_and_misses_no_change(api: KubeApi) {
    let n = &*api.namespace("shop").await;
    api.apply(service(n, "kettle")).await;
    let sink = PanickingSink::new(Kind::Service);
    // The first page of the list.
    sink.panic_next();
    let source = source(super::client(&api).await, options());
    let stop = CancellationToken::new();
    let running = tokio::spawn(source.run(sink.clone(), stop.clone()));
    sink.inner.synced().await;
    sink.inner.has(Kind::Service, n, &["kettle"]).await;
    // An event of the watch.
    sink.panic_next();
    api.apply(service(n, "teapot")).await;
    sink.inner.has(Kind::Service, n, &["kettle", "teapot"]).await;
    // A deletion.
    sink.panic_next();
    api.delete("v1", "Service", n, "kettle").await;
    sink.inner.has(Kind::Service, n, &["teapot"]).await;
    assert_eq!(sink.panics.load(Ordering::SeqCst), 0, "each panic has occurred");
    stop.cancel();
    running.await.expect("the source ends without a panic");
}
