//! Resolves host names for the graph, such as those of load balancers that are gateways between networks (S20).

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use sluice_engine::{Engine, Input, Published};
use sluice_model::Text;
use sluice_tasks::FailedAttempts;
use tokio::time::Instant;
use tracing::{info, warn};

/// Interval between two lookups of a name.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit of a lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves `names` into `resolved` periodically, until the engine stops.
pub async fn follow<R, F>(engine: &Engine, names: &Published<Text, ()>, resolved: Input<Text, Vec<Text>>, resolve: R)
where
    R: Fn(Text) -> F,
    F: Future<Output = Result<Vec<Text>, String>>,
{
    let failures = FailedAttempts::of("gateway names");
    let mut feed = engine.feed().only(names);
    let mut resolved_names = ResolvedNames::default();
    // Changes of the names must not delay the lookups of others.
    let mut next_lookup = Instant::now() + LOOKUP_INTERVAL;
    loop {
        let due: Vec<Text> = tokio::select! {
            batch = feed.next() => {
                let Some(batch) = batch else { return };
                let mut due = Vec::new();
                for event in batch.events(names) {
                    if event.new.is_some() {
                        resolved_names.add((*event.key).clone());
                        due.push((*event.key).clone());
                    } else if resolved_names.remove(&event.key) {
                        resolved.delete((*event.key).clone());
                    }
                }
                due
            }
            () = tokio::time::sleep_until(next_lookup) => {
                next_lookup = Instant::now() + LOOKUP_INTERVAL;
                resolved_names.0.keys().cloned().collect()
            }
        };
        let lookups = join_all(due.into_iter().map(|name| {
            let lookup = resolve(name.clone());
            async move { (name, lookup.await) }
        }));
        for (name, answer) in lookups.await {
            if let Err(error) = &answer
                && let Some(failures) = failures.count()
            {
                warn!(%name, error, failures, "failed to resolve a gateway between networks; reported once a minute");
            }
            if let Some(addresses) = resolved_names.update(&name, answer.ok()) {
                info!(%name, ?addresses, "resolved a gateway between networks");
                resolved.set(name, addresses);
            }
        }
    }
}

/// Addresses of a name by the resolver of the host, sorted.
///
/// # Errors
/// The lookup fails, or takes too long.
pub async fn look_up(name: Text) -> Result<Vec<Text>, String> {
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((name.to_string(), 0))).await;
    match answer {
        Ok(Ok(addresses)) => Ok(sorted(addresses)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
    }
}

fn sorted(addresses: impl Iterator<Item = SocketAddr>) -> Vec<Text> {
    let mut addresses: Vec<Text> = addresses.map(|address| address.ip().to_string().into()).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The names to resolve, with the addresses of the last successful lookup.
#[derive(Debug, Default)]
struct ResolvedNames(BTreeMap<Text, Option<Vec<Text>>>);

impl ResolvedNames {
    fn add(&mut self, name: Text) {
        self.0.entry(name).or_default();
    }

    /// Removes a name. True if it had addresses.
    fn remove(&mut self, name: &Text) -> bool {
        self.0.remove(name).flatten().is_some()
    }

    /// The new addresses; `None` if the lookup failed, the addresses are the same, or the name is not to be resolved.
    fn update(&mut self, name: &Text, answer: Option<Vec<Text>>) -> Option<Vec<Text>> {
        let current = self.0.get_mut(name)?;
        let new = answer.filter(|new| !new.is_empty() && current.as_ref() != Some(new))?;
        *current = Some(new.clone());
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use sluice_engine::{EngineOptions, GraphBuilder};

    use super::*;

    #[test]
    fn addresses_stay_until_a_lookup_returns_others() {
        let mut names = ResolvedNames::default();
        let (name, one, two) = (Text::from("lb.example"), vec![Text::from("1.1.1.1")], vec![Text::from("2.2.2.2")]);
        assert_eq!(names.update(&name, Some(one.clone())), None, "not to be resolved");
        names.add(name.clone());
        assert_eq!(names.update(&name, None), None);
        assert_eq!(names.update(&name, Some(one.clone())), Some(one.clone()));
        assert_eq!(names.update(&name, Some(one)), None, "unchanged");
        assert_eq!(names.update(&name, Some(Vec::new())), None, "an empty answer is ignored");
        assert_eq!(names.update(&name, None), None);
        names.add(name.clone());
        assert_eq!(names.update(&name, Some(two.clone())), Some(two));
        assert!(names.remove(&name) && !names.remove(&name));
    }

    #[test]
    fn addresses_are_sorted_and_unique() {
        let addresses =
            ["[fd00::1]:0", "10.0.0.2:0", "10.0.0.1:0", "10.0.0.2:0"].map(|text| text.parse().expect("an address"));
        assert_eq!(sorted(addresses.into_iter()), ["10.0.0.1", "10.0.0.2", "fd00::1"].map(Text::from));
    }

    #[tokio::test]
    async fn names_are_resolved_when_added_and_deleted_when_removed() {
        let build = |builder: &mut GraphBuilder| {
            builder.dataflow("names", |graph| {
                let (wanted, names) = graph.input::<Text, ()>("names");
                let (resolved, answers) = graph.input::<Text, Vec<Text>>("resolved");
                (wanted, names.publish(), resolved, answers.publish())
            })
        };
        let (engine, (wanted, names, resolved, answers)) = Engine::start(EngineOptions::default(), build);
        let following = {
            let (engine, names) = (engine.clone(), names.clone());
            tokio::spawn(async move {
                follow(&engine, &names, resolved, |name| async move { Ok(vec![format!("of-{name}").into()]) }).await;
            })
        };
        let mut feed = engine.feed().only(&answers);
        let mut next = async || -> Vec<(Text, Option<Vec<Text>>)> {
            loop {
                let batch = feed.next().await.expect("the engine runs");
                let events: Vec<_> = batch.events(&answers).collect();
                if !events.is_empty() {
                    let pair = |event: sluice_engine::Event<Text, Vec<Text>>| {
                        ((*event.key).clone(), event.new.map(|new| (*new).clone()))
                    };
                    return events.into_iter().map(pair).collect();
                }
            }
        };
        wanted.set("a".into(), ());
        assert_eq!(next().await, [("a".into(), Some(vec!["of-a".into()]))]);
        wanted.delete("a".into());
        assert_eq!(next().await, [("a".into(), None)]);
        following.abort();
    }
}
