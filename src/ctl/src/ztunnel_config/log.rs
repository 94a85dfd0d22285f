//! Log levels of ztunnel.

use std::io::{self, Write};

use http::Method;

use super::EXIT_NOT_FOUND;
use super::args::ZtunnelLogArgs;
use crate::answer_output::fail;
use crate::connect::{FoundZtunnel, QueryError, connect_to_ztunnels};

/// Levels of Envoy, each with the level of ztunnel.
const LEVELS: [(&str, &str); 8] = [
    ("trace", "trace"),
    ("debug", "debug"),
    ("info", "info"),
    ("warning", "warn"),
    ("warn", "warn"),
    ("error", "error"),
    ("critical", "error"),
    ("off", "off"),
];

/// Prints the levels of the ztunnel, or of all ztunnels, after changes.
pub(super) fn run(args: &ZtunnelLogArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let levels = args.level.iter().map(|text| level(text)).collect::<Result<Vec<String>, _>>();
    let ztunnels = levels.and_then(|levels| Ok((levels, connect_to_ztunnels(&args.source.target())?)));
    let (levels, ztunnels) = match ztunnels {
        Ok(found) => found,
        Err(error) => return fail(&error, EXIT_NOT_FOUND, errors),
    };
    let levels = if args.reset { "info".to_owned() } else { levels.join(",") };
    let reset = if args.reset { "true" } else { "" };
    let mut code = 0;
    for FoundZtunnel { pod, ztunnel, .. } in ztunnels {
        match ztunnel.request(Method::POST, "/logging", &[("level", &levels), ("reset", reset)], String::new()) {
            Ok(answer) => {
                let answer = String::from_utf8_lossy(&answer);
                writeln!(out, "{}.{}:\n{}", pod.name, pod.namespace, answer.trim_end())?;
            }
            Err(error) => code = fail(&error, EXIT_NOT_FOUND, errors)?,
        }
    }
    Ok(code)
}

/// `[LOGGER:]LEVEL` with a level of ztunnel.
fn level(text: &str) -> Result<String, QueryError> {
    let (logger, level) = text.rsplit_once([':', '=']).map_or((None, text), |(logger, level)| (Some(logger), level));
    let known = LEVELS.iter().find(|(name, _)| *name == level);
    let Some((_, level)) = known.filter(|_| logger != Some("")) else {
        let names: Vec<&str> = LEVELS.iter().map(|(name, _)| *name).collect();
        return Err(QueryError::Flags(format!("--level {text:?}: a level is one of {}", names.join(", "))));
    };
    Ok(logger.map(|logger| format!("{logger}:{level}")).unwrap_or_else(|| (*level).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::level;

    #[test]
    fn levels_of_envoy_become_those_of_ztunnel() {
        let of = |text| level(text).ok();
        assert_eq!(of("warning").as_deref(), Some("warn"));
        assert_eq!(of("ztunnel::access:critical").as_deref(), Some("ztunnel::access:error"));
        for text in ["loud", ":info", "access:"] {
            assert_eq!(level(text).expect_err(text).exit_code(1), 2, "{text}");
        }
    }
}
