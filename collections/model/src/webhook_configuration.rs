//! Webhook configurations of Kubernetes, as far as they tell which revision serves a tag.

use serde::{Deserialize, Serialize};

use crate::Text;

/// Name of the ValidatingWebhookConfiguration of the default revision.
pub const DEFAULT_REVISION_WEBHOOK: &str = "istiod-default-validator";
/// Name of the MutatingWebhookConfiguration of the tag `default`.
pub const DEFAULT_TAG_WEBHOOK: &str = "istio-revision-tag-default";

/// A MutatingWebhookConfiguration or ValidatingWebhookConfiguration.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct WebhookConfiguration {
    /// The revision of the control plane that serves it; empty if it has no label for that.
    pub revision: Text,
    /// The tag it stands for; empty if none.
    pub tag: Text,
}
