//! Resolves host names for the graph, such as those of load balancers that are gateways between networks (S20).

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use sluice_engine::{Engine, Input, Published};
use sluice_model::Text;
use tracing::{info, warn};

/// Interval between two lookups of a name.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// Longest lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves `names` into `resolved` periodically, until the engine stops.
pub async fn follow<R, F>(engine: &Engine, names: &Published<Text, ()>, resolved: Input<Text, Vec<Text>>, resolve: R)
where
    R: Fn(Text) -> F,
    F: Future<Output = Option<Vec<Text>>>,
{
    let mut feed = engine.feed().only(names);
    let mut answers = ResolvedNames::default();
    loop {
        let due: Vec<Text> = tokio::select! {
            batch = feed.next() => {
                let Some(batch) = batch else { return };
                let mut due = Vec::new();
                for event in batch.events(names) {
                    if event.new.is_some() {
                        answers.want((*event.key).clone());
                        due.push((*event.key).clone());
                    } else if answers.forget(&event.key) {
                        resolved.delete((*event.key).clone());
                    }
                }
                due
            }
            () = tokio::time::sleep(LOOKUP_INTERVAL), if !answers.0.is_empty() => answers.0.keys().cloned().collect(),
        };
        let found = join_all(due.into_iter().map(|name| {
            let answer = resolve(name.clone());
            async move { (name, answer.await) }
        }));
        for (name, answer) in found.await {
            if let Some(addresses) = answers.tell(&name, answer) {
                info!(%name, ?addresses, "resolved a gateway between networks");
                resolved.set(name, addresses);
            }
        }
    }
}

/// Addresses of a name by the resolver of the host, sorted; `None` if the lookup fails.
pub async fn look_up(name: Text) -> Option<Vec<Text>> {
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((name.to_string(), 0))).await;
    match answer {
        Ok(Ok(found)) => Some(sorted(found)),
        Ok(Err(error)) => {
            warn!(%name, %error, "failed to resolve a gateway between networks");
            None
        }
        Err(_) => {
            warn!(%name, "resolving a gateway between networks timed out");
            None
        }
    }
}

fn sorted(found: impl Iterator<Item = SocketAddr>) -> Vec<Text> {
    let mut addresses: Vec<Text> = found.map(|address| address.ip().to_string().into()).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The wanted names with the last successful lookup of each.
#[derive(Debug, Default)]
struct ResolvedNames(BTreeMap<Text, Option<Vec<Text>>>);

impl ResolvedNames {
    fn want(&mut self, name: Text) {
        self.0.entry(name).or_default();
    }

    /// Removes a name. True if it had addresses.
    fn forget(&mut self, name: &Text) -> bool {
        self.0.remove(name).flatten().is_some()
    }

    /// The change that an answer makes: `None` if it failed, is unchanged, or the name is no longer wanted.
    fn tell(&mut self, name: &Text, answer: Option<Vec<Text>>) -> Option<Vec<Text>> {
        let known = self.0.get_mut(name)?;
        let new = answer.filter(|new| !new.is_empty() && known.as_ref() != Some(new))?;
        *known = Some(new.clone());
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use sluice_engine::{EngineOptions, GraphBuilder};

    use super::*;

    #[test]
    fn an_answer_is_kept_until_there_is_another() {
        let mut answers = ResolvedNames::default();
        let (name, one, two) = (Text::from("lb.example"), vec![Text::from("1.1.1.1")], vec![Text::from("2.2.2.2")]);
        assert_eq!(answers.tell(&name, Some(one.clone())), None, "not wanted");
        answers.want(name.clone());
        assert_eq!(answers.tell(&name, None), None);
        assert_eq!(answers.tell(&name, Some(one.clone())), Some(one.clone()));
        assert_eq!(answers.tell(&name, Some(one)), None, "as before");
        assert_eq!(answers.tell(&name, Some(Vec::new())), None, "an empty answer is none");
        assert_eq!(answers.tell(&name, None), None);
        answers.want(name.clone());
        assert_eq!(answers.tell(&name, Some(two.clone())), Some(two));
        assert!(answers.forget(&name) && !answers.forget(&name));
    }

    #[test]
    fn addresses_are_in_order() {
        let found =
            ["[fd00::1]:0", "10.0.0.2:0", "10.0.0.1:0", "10.0.0.2:0"].map(|text| text.parse().expect("an address"));
        assert_eq!(sorted(found.into_iter()), ["10.0.0.1", "10.0.0.2", "fd00::1"].map(Text::from));
    }

    #[tokio::test]
    async fn names_are_resolved_when_they_come_and_forgotten_when_they_go() {
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
                follow(&engine, &names, resolved, |name| async move { Some(vec![format!("of-{name}").into()]) }).await;
            })
        };
        let mut told = engine.feed().only(&answers);
        let mut next = async || -> Vec<(Text, Option<Vec<Text>>)> {
            loop {
                let batch = told.next().await.expect("the engine runs");
                let events: Vec<_> = batch.events(&answers).collect();
                if !events.is_empty() {
                    let own = |event: sluice_engine::Event<Text, Vec<Text>>| {
                        ((*event.key).clone(), event.new.map(|new| (*new).clone()))
                    };
                    return events.into_iter().map(own).collect();
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
