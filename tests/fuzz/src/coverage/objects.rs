//! Objects of every kind, from their text to values and findings.

use std::path::Path;

use anyhow::Result;
use prost_reflect::DynamicMessage;
use serde_json::Value;
use sluice_model::{Kind, Object, ParsedObject, Text};
use sluice_parse::yaml::{Limits, find_position, parse_documents};
use sluice_parse::{parse_object, validate_text};
use sluice_proto::pool;

use super::{CoverageTarget, count_lines, of};
use crate::memory_bound::within;
use crate::objects::mutate_object;
use crate::rng::FuzzRng;
use crate::seeds::{Seed, Seeds};
use crate::violation::{Violation, violation};
use crate::yaml;

/// From this first byte, the others are choices.
const CHOICES: u8 = 128;
/// Secret values of this length that a finding contains are quoted and not a coincidence.
const MIN_SECRET_BYTES: usize = 12;

/// Texts of YAML or JSON, or choices of changes of an object in the cases.
pub(super) fn target(seeds: &'static Seeds, root: &Path) -> Result<CoverageTarget> {
    let objects: Vec<&Seed> = seeds.cases.iter().flat_map(|case| &case.objects).chain(&seeds.other_objects).collect();
    let texts: Vec<Vec<u8>> = yaml::documents(root)?.into_iter().map(String::into_bytes).collect();
    let json = objects.iter().step_by(7).map(|seed| seed.rendered().to_string().into_bytes());
    let json: Vec<Vec<u8>> = json.collect();
    let check = move |first: u8, rest: &[u8]| {
        if first < CHOICES {
            return check_text(&String::from_utf8_lossy(rest));
        }
        let mut rng = FuzzRng::of_bytes(rest);
        let Some(mut seed) = rng.choose(&objects).map(|seed| (*seed).clone()) else { return Ok(false) };
        let times = 1 + rng.below(8);
        mutate_object(&mut seed, seeds, &mut rng, times);
        check_object(&seed.cluster, &seed.rendered())
    };
    let fields = seeds.values.keys().map(|name| format!("{name}: "));
    let target = of(check).with_seeds(0, texts).with_seeds(1, json).with_choices(CHOICES);
    Ok(target.with_words(fields).with_words(seeds.words.clone()))
}

/// Every document of a text.
fn check_text(text: &str) -> Result<bool, Violation> {
    let cluster = Text::from("Kubernetes");
    let lines = count_lines(text);
    let mut is_valid = false;
    for document in parse_documents(text, &Limits::default()).into_iter().flatten() {
        is_valid |= check_object(&cluster, &document.value)?;
        let Ok(parsed) = parse_object(&cluster, "cluster.local", &document.value) else { continue };
        for reject in parsed.rejects.iter().take(8) {
            let position = find_position(text, document.line, &reject.field_path);
            if position.line < document.line || position.line > lines || position.column == 0 {
                return violation("a finding is outside of its document", format!("{position:?} {reject}\n{text}"));
            }
        }
    }
    if text.len() < 2048 {
        let problems = validate_text(text).problems;
        if let Some(problem) = problems.iter().find(|problem| problem.position.line > lines) {
            return violation("a problem is outside of the text", format!("{problem:?}\n{text}"));
        }
    }
    Ok(is_valid)
}

/// Parses an object. Returns whether it has a value.
fn check_object(cluster: &Text, object: &Value) -> Result<bool, Violation> {
    let parse = || parse_object(cluster, "cluster.local", object);
    let Ok(parsed) = within("objects", object.to_string().len(), parse)? else { return Ok(false) };
    for reject in &parsed.rejects {
        if reject.kind != parsed.kind || reject.object != parsed.key {
            return violation("a finding names another object", format!("{reject}\n{object}"));
        }
        if reject.reason.is_empty() {
            return violation("a finding has no reason", format!("{reject}\n{object}"));
        }
        if parsed.kind == Kind::Secret && quotes(object, &reject.reason) {
            return violation("a finding quotes a Secret", format!("{reject}\n{object}"));
        }
    }
    check_patches(&parsed)?;
    // An equal object has the same value and findings, so that reading it again is no change.
    match parse_object(cluster, "cluster.local", object) {
        Ok(again) if again == parsed => Ok(parsed.object.is_some()),
        _ => violation("an object is parsed differently the second time", object.to_string()),
    }
}

/// Whether a text contains a value of a Secret.
fn quotes(object: &Value, text: &str) -> bool {
    let values = ["/data", "/stringData"].into_iter().filter_map(|part| object.pointer(part)?.as_object());
    let mut values = values.flatten().filter_map(|(_, value)| value.as_str());
    values.any(|value| value.len() >= MIN_SECRET_BYTES && text.contains(value))
}

/// The values of patches are messages of the part that they apply to.
fn check_patches(parsed: &ParsedObject) -> Result<(), Violation> {
    let Some(Object::EnvoyFilter(filter)) = &parsed.object else { return Ok(()) };
    for patch in filter.patches.iter().flatten() {
        let message = pool().get_message_by_name(patch.apply_to.message_name());
        if message.is_none_or(|message| DynamicMessage::decode(message, patch.value.0.as_ref()).is_err()) {
            return violation("the value of a patch does not decode", format!("{}: {patch:?}", parsed.key.name));
        }
    }
    Ok(())
}
