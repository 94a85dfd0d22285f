//! Validation of each Istio object by the rules of admission (IST0106, IST0130, IST0131, IST0133).

use sluice_model::Severity;
use sluice_parse::{ObjectError, validate_object};

use crate::codes::{INEFFECTIVE_MATCH, SCHEMA_VALIDATION_ERROR, SCHEMA_WARNING, UNREACHABLE_RULE};
use crate::{MeshObjects, MessageList};

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for resource in mesh.everything().filter(|resource| resource.kind().group.ends_with("istio.io")) {
        match validate_object(&resource.value) {
            Ok(rejects) => {
                for reject in rejects {
                    let field = reject.field_path.to_string();
                    let message_type = match reject.severity {
                        Severity::Warning if reject.reason.starts_with("unreachable: ") => {
                            if is_match(&field) {
                                &INEFFECTIVE_MATCH
                            } else {
                                &UNREACHABLE_RULE
                            }
                        }
                        Severity::Warning => &SCHEMA_WARNING,
                        Severity::Refused | Severity::Error => &SCHEMA_VALIDATION_ERROR,
                    };
                    report.add(message_type, resource, field.clone(), format!("{field}: {}", reject.reason));
                }
            }
            // Objects of kinds without rules are not the subject.
            Err(ObjectError::UnknownKind { .. }) => {}
            Err(error) => report.add(&SCHEMA_VALIDATION_ERROR, resource, "", error.to_string()),
        }
    }
}

/// Whether a path is that of a match of a route.
fn is_match(field: &str) -> bool {
    field.contains(".match[")
}
