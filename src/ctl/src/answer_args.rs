//! Flags of the commands that ask a running control plane.

use std::time::Duration;

use clap::Args;

use crate::answer_output::AnswerOutput;
use crate::connect::ServerArgs;

pub(crate) const WHY_EXAMPLES: &str = "\
Examples:
  sluicectl why cart-7f.shop cluster 'outbound|80||ratings.shop.svc.cluster.local'
  sluicectl why deploy/cart.shop route 80 'virtualHosts[ratings.shop.svc.cluster.local:80].routes[0]'
  sluicectl why deploy/cart -n shop listener 0.0.0.0_8080 -o yaml

PROXY is POD.NAMESPACE, the beginning of one pod's name, deploy/NAME[.NAMESPACE] for the first proxy of
a workload, or a node id. TYPE is cds, eds, lds, rds, ecds, sds, nds, or a word such as cluster. NAME is
the name of the resource in Envoy. PATH is a field of it in JSON: elements of lists are given by name,
number, or a domain of a virtual host.

An object is listed as one that made the resource if the resource would be different without it. Of
several objects with the same effect, the oldest is.

Exit codes:
  0  the answer was printed
  1  there is no such proxy, resource or field; similar names are printed
  2  invalid command line or question
  3  the server cannot be reached, or refuses the caller
  5  the answer was printed, but a replica does not answer: its proxies are not counted";

pub(crate) const WHY_NOT_EXAMPLES: &str = "\
Examples:
  sluicectl why-not cart-7f.shop host ratings.bank
  sluicectl why-not deploy/cart.shop cluster 'outbound|80|v2|ratings.shop.svc.cluster.local'
  sluicectl why-not cart-7f.shop route ratings.shop:8080
  sluicectl why-not cart-7f.shop endpoint 10.1.2.3
  sluicectl why-not cart-7f.shop VirtualService/shop/ratings

TYPE is host, cluster, route (of a host), endpoint (an address), or a resource type. Instead of TYPE and
NAME, an object can be given: the answer is why it has no effect at the proxy.

Exit codes:
  0  a reason was found
  1  there is no such proxy, or no reason was found
  2  invalid command line or question
  3  the server cannot be reached, or refuses the caller
  4  the proxy has it, and has acknowledged it";

pub(crate) const WAIT_EXAMPLES: &str = "\
Examples:
  kubectl apply -f ratings.yaml
  sluicectl wait VirtualService/shop/ratings --generation \"$(kubectl -n shop get vs ratings -o jsonpath={.metadata.generation})\"
  sluicectl wait vs/shop/ratings --for acked=99% --timeout 2m
  sluicectl wait DestinationRule/shop/ratings --for applied -o json

Without --version and --generation, the version that sluiced has read is meant: right after a change,
this may be the one before. Without --address, all replicas of sluiced are asked, one after the other.

Exit codes:
  0  the goal is reached
  1  the object is invalid and does not apply
  2  invalid command line or question
  3  the server cannot be reached, refuses the caller, or ends the response early
  4  the time limit has passed: the proxies that lag are printed with the reason
  5  the goal is reached at the replicas that answer, but one does not answer";

pub(crate) const HISTORY_EXAMPLES: &str = "\
Examples:
  sluicectl history                                 the last 50 changes
  sluicectl history --since 10m --proxy cart-7f.shop
  sluicectl history --object VirtualService/shop/ratings -o yaml

sluiced keeps the changes of the last hour, or fewer (--historyAge, --historyBytes). Several objects in
one change were applied together: their resources and proxies are not told apart. The proxies are those
that are connected now.

Exit codes:
  0  changes were printed
  1  there are no such changes, or no such proxy
  2  invalid command line or question
  3  the server cannot be reached, or refuses the caller";

/// Flags of `why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The proxy.
    #[arg(value_name = "PROXY")]
    pub(crate) proxy: String,
    /// Type of the resource.
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// Name of the resource.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// A field of the resource.
    #[arg(value_name = "PATH", default_value = "", hide_default_value = true)]
    pub(crate) path: String,
    /// Namespace of a proxy that is named without one.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Flags of `why-not`.
#[derive(Debug, Args)]
pub(crate) struct WhyNotArgs {
    /// The proxy.
    #[arg(value_name = "PROXY")]
    pub(crate) proxy: String,
    /// What is missing: host, cluster, route, endpoint or a resource type; or an object as KIND/NAMESPACE/NAME.
    #[arg(value_name = "TYPE|OBJECT")]
    pub(crate) kind: String,
    /// Its name, if no object is given.
    #[arg(value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) name: String,
    /// Namespace of a proxy or an object that is named without one.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Flags of `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The object. KIND can be a short name such as vs.
    #[arg(value_name = "KIND/NAMESPACE/NAME")]
    pub(crate) object: String,
    /// resourceVersion of the object, or a later one. Of an object in a file: FILE:LINE.
    #[arg(long = "version", value_name = "VERSION", default_value = "", hide_default_value = true)]
    pub(crate) version: String,
    /// Generation of the object, or a later one.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) generation: Option<i64>,
    /// The goal: `applied`, when the object is read and its resources are derived; `acked`, when all proxies that it
    /// concerns have acknowledged it; `acked=PERCENT%`, when this share of them has.
    #[arg(long = "for", value_name = "GOAL", default_value = "acked")]
    pub(crate) goal: String,
    /// Time limit, such as 90s or 5m; at most 1h.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Namespace of an object that is named without one.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Output format. In the table, the progress is written to the standard error.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Flags of `history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Only changes in this time, such as 10m.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Maximum number of changes: the most recent ones.
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,
    /// Only changes of this object.
    #[arg(long, value_name = "KIND/NAMESPACE/NAME", default_value = "", hide_default_value = true)]
    pub(crate) object: String,
    /// Only changes that concern this proxy.
    #[arg(long, value_name = "PROXY", default_value = "", hide_default_value = true)]
    pub(crate) proxy: String,
    /// Namespace of an object or a proxy that is named without one.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// A duration with a unit: `90s`, `5m`, `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|it| Duration::try_from(it).ok());
    parsed.ok_or_else(|| "a duration has a unit, such as 90s, 5m or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for text in ["", "90", "-5s", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
