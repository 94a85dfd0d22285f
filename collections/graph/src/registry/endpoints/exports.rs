//! Services that clusters export (S22).

use sluice_engine::{Context, Dep, Deps};
use sluice_model::{ObjectKey, ServiceExport, Text};

use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;

/// Looks up whether clients of other clusters may use the endpoints of a Service in a cluster. Without
/// [`multi_cluster`](GraphOptions::multi_cluster), they may use all.
pub(super) struct ExportLookup(Option<Dep<ObjectKey, ServiceExport>>);

impl ExportLookup {
    /// Declares the look-up.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, objects: &ObjectCollections<'s>, options: &GraphOptions) -> Self {
        Self(options.multi_cluster.is_some().then(|| deps.on(&objects.service_exports)))
    }

    /// Whether a cluster exports a Service.
    pub(super) fn has(&self, cx: &Context, cluster: &Text, namespace: &Text, service: &Text) -> bool {
        self.0.as_ref().is_none_or(|exports| {
            cx.get(exports, &ObjectKey::new(cluster.clone(), namespace.clone(), service.clone())).is_some()
        })
    }
}
