//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration.

use serde::Deserialize;
use sluice_model::{Object, WebhookConfiguration, label};

use crate::{Findings, Item, metadata::Metadata};

#[derive(Deserialize)]
struct Input {
    metadata: Metadata,
}

pub(crate) fn parse_mutating(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    parse(item, findings).map(Object::MutatingWebhookConfiguration)
}

pub(crate) fn parse_validating(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    parse(item, findings).map(Object::ValidatingWebhookConfiguration)
}

fn parse(item: &Item<'_>, findings: &Findings) -> Option<WebhookConfiguration> {
    let mut input: Input = findings.deserialize(item.object)?;
    let labels = input.metadata.take_labels();
    let of = |name: &str| labels.get(name).cloned().unwrap_or_default();
    Some(WebhookConfiguration { revision: of(label::REVISION), tag: of(label::TAG) })
}
