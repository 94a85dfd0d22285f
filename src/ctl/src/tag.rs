//! The `tag` subcommands (I09): names that stand for revisions of the control plane.

mod conflicts;
mod listing;
pub(crate) mod objects;

use std::io::{self, Write};

use http::Method;
use serde_json::Value;
use sluice_install::{Charts, DEFAULT_REVISION, DEFAULT_VALIDATOR, InstallError, KubeObject, RevisionTag, deactivated};
use tokio::runtime::Runtime;

use crate::answer_output::{fail, print, text};
use crate::confirmation::confirmed;
use crate::connect::QueryError;
use crate::connect::kubernetes::{KubeconfigCluster, current_thread};
use crate::tag_args::{TagCommand, TagListArgs, TagRemoveArgs, TagSetArgs};
use objects::{MUTATING, RevisionObjects, VALIDATING, is_canonical, kube_object, tag_of};

/// The cluster does not permit the change.
const EXIT_REFUSED: u8 = 1;

/// Why a tag is not changed.
enum TagError {
    Query(QueryError),
    /// The cluster has something that does not permit the change.
    Refused(String),
    Io(io::Error),
}

impl From<QueryError> for TagError {
    fn from(error: QueryError) -> Self {
        Self::Query(error)
    }
}

impl From<io::Error> for TagError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<InstallError> for TagError {
    fn from(error: InstallError) -> Self {
        match error {
            InstallError::Refused { .. } => Self::Refused(error.to_string()),
            InstallError::Input { .. } | InstallError::Rendering { .. } => {
                Self::Query(QueryError::Flags(error.to_string()))
            }
            _ => Self::Query(QueryError::Cluster(error.to_string())),
        }
    }
}

/// Runs a subcommand and returns the exit code.
pub(crate) fn run(command: &TagCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let done = current_thread().map_err(TagError::from).and_then(|runtime| match command {
        TagCommand::Set(args) => set(args, Effect::Apply, &runtime, out, errors),
        TagCommand::Generate(args) => set(args, Effect::Print, &runtime, out, errors),
        TagCommand::List(args) => list_tags(args, &runtime, out),
        TagCommand::Remove(args) => remove(args, &runtime, out, errors),
    });
    match done {
        Ok(()) => Ok(0),
        Err(TagError::Query(error)) => fail(&error, EXIT_REFUSED, errors),
        Err(TagError::Io(error)) => Err(error),
        Err(TagError::Refused(reason)) => {
            writeln!(errors, "sluicectl: {reason}")?;
            Ok(EXIT_REFUSED)
        }
    }
}

/// What becomes of the objects of a tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Effect {
    Apply,
    Print,
}

fn set(
    args: &TagSetArgs,
    effect: Effect,
    runtime: &Runtime,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> Result<(), TagError> {
    let cluster = runtime.block_on(KubeconfigCluster::of(&args.target.cluster))?;
    let existing = runtime.block_on(RevisionObjects::read(&cluster, &args.target.istio_namespace))?;
    let canonical = canonical(args, effect, &existing)?;
    let charts = match &args.manifests {
        Some(directory) => Charts::from_directory(directory)?,
        None => Charts::embedded()?,
    };
    let capabilities = runtime.block_on(cluster.target().capabilities())?;
    let tag = RevisionTag {
        name: args.tag.clone(),
        revision: args.revision.clone(),
        namespace: args.target.istio_namespace.clone(),
        webhook_name: args.webhook_name.clone(),
        injects_all_namespaces: args.auto_inject_namespaces,
    };
    let validator = existing.validators.iter().find(|object| text(&object["metadata"], "name") == DEFAULT_VALIDATOR);
    let validator = validator.map(kube_object).transpose()?;
    let objects = tag.objects(&canonical, validator.as_ref(), &charts, &capabilities)?;
    let former = former_default(args, &existing)?;
    let conflicts = conflicts_of(args, &existing, &objects, former.as_ref());
    if !conflicts.is_empty() && !args.skip_confirmation {
        writeln!(errors, "creating tag would conflict, pass --skip-confirmation to proceed:")?;
        for conflict in &conflicts {
            writeln!(errors, "{conflict}")?;
        }
        if effect == Effect::Apply && !confirmed("Apply anyways?", errors)? {
            return Ok(());
        }
    }
    if effect == Effect::Print {
        return print_objects(&objects, out);
    }
    runtime.block_on(apply(&cluster, &objects, former.as_ref()))?;
    writeln!(
        out,
        "Revision tag {:?} created, referencing control plane revision {:?}. To enable injection using this\n\
         revision tag, use 'kubectl label namespace <NAMESPACE> istio.io/rev={}'",
        args.tag, args.revision, args.tag
    )?;
    Ok(())
}

/// The webhooks of the revision, unless the tag or the revision do not permit the change.
fn canonical(args: &TagSetArgs, effect: Effect, existing: &RevisionObjects) -> Result<KubeObject, TagError> {
    let (tag, revision, namespace) = (&args.tag, &args.revision, &args.target.istio_namespace);
    let of = |objects: &[Value], revision: &str| -> Vec<Value> {
        objects.iter().filter(|object| is_canonical(object, revision)).cloned().collect()
    };
    let is_named_as_revision = !of(&existing.webhooks, tag).is_empty() || !of(&existing.services, tag).is_empty();
    if effect == Effect::Apply && !args.overwrite && tag != DEFAULT_REVISION && is_named_as_revision {
        let reason = "found existing control plane revision with same name";
        return Err(TagError::Refused(format!("cannot create revision tag {tag:?}: {reason}")));
    }
    let (webhooks, services) = (of(&existing.webhooks, revision), of(&existing.services, revision));
    let services = services.iter().filter(|service| text(&service["metadata"]["labels"], "app") == "istiod").count();
    if services > 1 {
        return Err(TagError::Refused(format!(
            "cannot modify tag: found multiple canonical services with revision {revision:?} in namespace {namespace:?}"
        )));
    }
    let canonical = match webhooks.as_slice() {
        [canonical] => kube_object(canonical)?,
        [] => {
            return Err(TagError::Refused(format!(
                "cannot modify tag: cannot find MutatingWebhookConfiguration with revision {revision:?}"
            )));
        }
        _ => {
            return Err(TagError::Refused(format!(
                "cannot modify tag: found multiple canonical webhooks with revision {revision:?}"
            )));
        }
    };
    let has_tag = |object: &Value| tag_of(object) == Some(tag);
    if !args.overwrite && (existing.webhooks.iter().any(has_tag) || existing.services.iter().any(has_tag)) {
        return Err(TagError::Refused(format!("revision tag {tag:?} already exists, and --overwrite is false")));
    }
    Ok(canonical)
}

/// The webhooks of the revision without a name, which the tag `default` deactivates.
fn former_default(args: &TagSetArgs, existing: &RevisionObjects) -> Result<Option<KubeObject>, TagError> {
    if args.tag != DEFAULT_REVISION {
        return Ok(None);
    }
    let former: Vec<&Value> = existing.webhooks.iter().filter(|it| is_canonical(it, DEFAULT_REVISION)).collect();
    match former.as_slice() {
        [] => Ok(None),
        [former] => Ok(Some(deactivated(&kube_object(former)?))),
        _ => Err(TagError::Refused("expected a single webhook for default revision".to_owned())),
    }
}

fn conflicts_of(
    args: &TagSetArgs,
    existing: &RevisionObjects,
    objects: &[KubeObject],
    former: Option<&KubeObject>,
) -> Vec<String> {
    let webhooks = objects.iter().find(|object| object.key().kind == "MutatingWebhookConfiguration");
    let name = webhooks.map_or("", |object| object.key().name.as_str());
    let existing = existing.webhooks.iter().chain(&existing.services);
    let changed = former.into_iter().chain(objects).map(KubeObject::json);
    conflicts::find(existing, changed, name, &args.target.istio_namespace)
}

fn print_objects(objects: &[KubeObject], out: &mut dyn Write) -> Result<(), TagError> {
    let texts = objects.iter().map(KubeObject::to_yaml).collect::<Result<Vec<_>, _>>();
    let texts = texts.map_err(|reason| TagError::Query(QueryError::Invalid(reason)))?;
    out.write_all(texts.join("---\n").as_bytes())?;
    Ok(())
}

async fn apply(
    cluster: &KubeconfigCluster,
    objects: &[KubeObject],
    former: Option<&KubeObject>,
) -> Result<(), TagError> {
    if let Some(former) = former {
        let path = format!("{MUTATING}/{}", former.key().name);
        cluster.send(Method::PUT, &path, former.json()).await?;
    }
    for object in objects {
        cluster.target().apply(object, sluice_install::Write::Stored).await?;
    }
    Ok(())
}

fn list_tags(args: &TagListArgs, runtime: &Runtime, out: &mut dyn Write) -> Result<(), TagError> {
    let objects = runtime.block_on(async {
        let cluster = KubeconfigCluster::of(&args.target.cluster).await?;
        RevisionObjects::read(&cluster, &args.target.istio_namespace).await
    })?;
    print(args.output, &listing::tags(&objects), out, listing::print_table)?;
    Ok(())
}

fn remove(
    args: &TagRemoveArgs,
    runtime: &Runtime,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> Result<(), TagError> {
    let (tag, namespace) = (&args.tag, &args.target.istio_namespace);
    let cluster = runtime.block_on(KubeconfigCluster::of(&args.target.cluster))?;
    let existing = runtime.block_on(RevisionObjects::read(&cluster, namespace))?;
    let named = |objects: &[Value]| -> Vec<String> {
        let of_tag = objects.iter().filter(|object| tag_of(object) == Some(tag));
        of_tag.map(|object| text(&object["metadata"], "name").to_owned()).collect()
    };
    let (webhooks, services) = (named(&existing.webhooks), named(&existing.services));
    if webhooks.is_empty() && services.is_empty() {
        let reason = "cannot find MutatingWebhookConfiguration or Service for tag";
        return Err(TagError::Refused(format!("cannot remove tag {tag:?}: {reason}")));
    }
    let namespaces = existing.namespaces_of(tag);
    if !namespaces.is_empty() && !args.skip_confirmation {
        let (count, names) = (namespaces.len(), namespaces.join(" "));
        writeln!(errors, "Caution, found {count} namespace(s) still injected by tag {tag:?}: {names}")?;
        if !confirmed("Proceed with operation?", errors)? {
            writeln!(out, "Aborting operation.")?;
            return Ok(());
        }
    }
    let paths = webhooks.iter().map(|name| format!("{MUTATING}/{name}"));
    let paths = paths.chain(named(&existing.validators).into_iter().map(|name| format!("{VALIDATING}/{name}")));
    let paths = paths.chain(services.iter().map(|name| format!("/api/v1/namespaces/{namespace}/services/{name}")));
    runtime.block_on(async {
        for path in paths {
            cluster.delete(&path).await?;
        }
        Ok::<_, QueryError>(())
    })?;
    writeln!(out, "Revision tag {tag} removed")?;
    Ok(())
}
