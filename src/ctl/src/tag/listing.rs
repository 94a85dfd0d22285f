//! `tag list`: tags with their revisions and the namespaces that use them.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::objects::{RevisionObjects, revision_of, tag_of};
use crate::answer_output::{elements, joined, text};
use crate::columns::{print_columns, table};

const GAP: usize = 1;

/// The tags as the JSON of istioctl, by revision and tag. A revision without a tag has an empty one.
pub(super) fn tags(objects: &RevisionObjects) -> Value {
    let labelled = objects.webhooks.iter().chain(&objects.services);
    let mut tags: BTreeSet<(&str, &str)> =
        labelled.filter_map(|it| Some((revision_of(it)?, tag_of(it).unwrap_or_default()))).collect();
    let tagged: BTreeSet<&str> =
        tags.iter().filter(|(_, tag)| !tag.is_empty()).map(|(revision, _)| *revision).collect();
    tags.retain(|(revision, tag)| !tag.is_empty() || !tagged.contains(revision));
    let described = tags.into_iter().map(|(revision, tag)| {
        let namespaces = if tag.is_empty() { Vec::new() } else { objects.namespaces_of(tag) };
        json!({"tag": tag, "revision": revision, "namespaces": namespaces})
    });
    described.collect()
}

/// The table of istioctl.
pub(super) fn print_table(tags: &Value, out: &mut dyn Write) -> io::Result<()> {
    let tags = elements(tags);
    if tags.is_empty() {
        return writeln!(out, "No Istio revision tags found.");
    }
    let row = |tag: &Value| {
        vec![text(tag, "tag").to_owned(), text(tag, "revision").to_owned(), joined(tag, "namespaces", ",")]
    };
    print_columns(&table(&["TAG", "REVISION", "NAMESPACES"], tags.iter().map(row)), GAP, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, revision: &str, tag: Option<&str>) -> Value {
        let mut labels = json!({"istio.io/rev": revision});
        if let Some(tag) = tag {
            labels["istio.io/tag"] = tag.into();
        }
        json!({"metadata": {"name": name, "labels": labels}})
    }

    fn print(objects: &RevisionObjects) -> String {
        let mut out = Vec::new();
        print_table(&tags(objects), &mut out).expect("written");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn tags_are_listed_with_revision_and_namespaces() {
        let objects = RevisionObjects {
            webhooks: vec![object("a", "canary", None), object("b", "canary", Some("prod")), object("c", "old", None)],
            validators: Vec::new(),
            services: vec![object("d", "canary", Some("prod")), object("e", "canary", Some("edge"))],
            namespaces: vec![object("shop", "prod", None), object("bank", "prod", None), object("dev", "old", None)],
        };
        let expected = "\
TAG  REVISION NAMESPACES
edge canary   \n\
prod canary   shop,bank
     old      \n";
        assert_eq!(print(&objects), expected);
    }

    #[test]
    fn cluster_without_revisions_has_no_tags() {
        let (webhooks, validators, services, namespaces) = <_>::default();
        let objects = RevisionObjects { webhooks, validators, services, namespaces };
        assert_eq!(print(&objects), "No Istio revision tags found.\n");
    }
}
