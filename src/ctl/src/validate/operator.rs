//! IstioOperator files: whether `sluicectl install` would accept them.

use serde_json::Value;
use sluice_install::{Capabilities, Charts, InstallError, InstallInputs, Installation};
use sluice_model::Severity;

use super::{RuleFinding, finding};

/// The CRDs may not be a part of this program, which is no fault of the file.
const WITHOUT_CRDS: &str = "values.base.enableIstioConfigCRDs=false";
/// What names the file in errors.
const FILE: &str = "file";

/// Why the file is refused, if it is.
pub(super) fn findings(operator: &Value) -> Vec<RuleFinding> {
    let inputs = InstallInputs {
        files: vec![(FILE.to_owned(), operator.to_string())],
        settings: vec![WITHOUT_CRDS.to_owned()],
        ..InstallInputs::default()
    };
    let read = Installation::read(&inputs).and_then(|installation| {
        let charts = Charts::embedded()?;
        installation.render(&charts, &Capabilities::default()).map(drop)
    });
    let Err(error) = read else { return Vec::new() };
    let (path, reason) = match error {
        InstallError::Input { path, reason } => {
            let path = path.strip_prefix(FILE).map_or(path.as_str(), |rest| rest.trim_start_matches(": "));
            (path.to_owned(), reason)
        }
        InstallError::Rendering { chart, reason } => ("spec.values".to_owned(), format!("chart {chart}: {reason}")),
        other => (String::new(), other.to_string()),
    };
    vec![finding(&path, &reason, Severity::Error)]
}
