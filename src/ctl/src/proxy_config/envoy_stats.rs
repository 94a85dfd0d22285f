//! Statistics of Envoy, as its admin interface prints them.

use std::io::{self, Write};

use http::Method;
use serde_json::Value;

use super::args::{EnvoyStatsArgs, StatsOutput, StatsType};
use crate::answer_output::{AnswerOutput, fail, print};
use crate::connect::QueryError;

/// The page with statistics in the format of Prometheus, of Envoy and of the agent.
const PROMETHEUS: &str = "/stats/prometheus";

/// A page with statistics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct StatsPage {
    path: &'static str,
    parameters: &'static [(&'static str, &'static str)],
    /// It is the agent's, which adds the statistics of the application.
    of_agent: bool,
}

impl StatsPage {
    fn of(stats: StatsType, output: StatsOutput) -> Result<Self, QueryError> {
        let (path, of_agent) = match (stats, output) {
            (StatsType::Server, StatsOutput::Prom) => (PROMETHEUS, false),
            (StatsType::Server, StatsOutput::PromMerged) => (PROMETHEUS, true),
            (StatsType::Clusters, StatsOutput::Prom | StatsOutput::PromMerged) => {
                let reason = "-o prom and prom-merged are formats of --type server";
                return Err(QueryError::Flags(reason.to_owned()));
            }
            (StatsType::Server, _) => ("/stats", false),
            (StatsType::Clusters, _) => ("/clusters", false),
        };
        let is_json = matches!(output, StatsOutput::Json | StatsOutput::Yaml);
        Ok(Self { path, parameters: if is_json { &[("format", "json")] } else { &[] }, of_agent })
    }
}

/// Prints the statistics.
pub(super) fn run(args: &EnvoyStatsArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let asked = StatsPage::of(args.stats, args.output).and_then(|page| {
        let pod = if page.of_agent { args.envoy.connect_to(args.proxy_status_port) } else { args.envoy.connect() }?;
        let text = pod.request(Method::GET, page.path, page.parameters, String::new())?;
        let format = match args.output {
            StatsOutput::Json => AnswerOutput::Json,
            StatsOutput::Yaml => AnswerOutput::Yaml,
            StatsOutput::Short | StatsOutput::Prom | StatsOutput::PromMerged => return Ok((text, None)),
        };
        let answer: Value =
            serde_json::from_slice(&text).map_err(|error| QueryError::Response(format!("{}: {error}", pod.name())))?;
        Ok((text, Some((format, answer))))
    });
    match asked {
        Ok((text, None)) => out.write_all(&text).map(|()| 0),
        Ok((_, Some((format, answer)))) => print(format, &answer, out, |_, _| Ok(())).map(|()| 0),
        Err(error) => fail(&error, super::EXIT_NOT_FOUND, errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_have_no_format_of_prometheus() {
        let page = StatsPage::of(StatsType::Clusters, StatsOutput::Json).expect("a page");
        assert_eq!((page.path, page.parameters), ("/clusters", &[("format", "json")][..]));
        for output in [StatsOutput::Prom, StatsOutput::PromMerged] {
            assert!(StatsPage::of(StatsType::Clusters, output).is_err(), "{output:?}");
        }
    }
}
