//! The configuration of the injector from its ConfigMap (W02).

use std::sync::Arc;

use futures::FutureExt as _;
use serde_json::Value as Json;
use sluice_kube::{Api, KubeOptions, ListWatch, Receiver, Resource, WatchEvent, WatchStates};
use sluice_model::ObjectKey;
use sluice_tasks::restart_with;

use crate::InjectionConfiguration;
use crate::configuration::InjectionTexts;

/// Follows a ConfigMap of the local cluster. It never ends.
pub async fn follow_config_map(
    client: kube::Client,
    config_map: ObjectKey,
    options: KubeOptions,
    states: WatchStates,
    configuration: Arc<InjectionConfiguration>,
) {
    let resource = Resource::config_map(&config_map.namespace, &config_map.name);
    let api = Api::new(client, config_map.cluster.clone(), options, states);
    let receiver = ConfigMapReceiver { source: format!("ConfigMap {}", config_map.name), configuration };
    let mut watch = ListWatch::new(api, resource, options.backoff(), receiver);
    restart_with("watch of the injection ConfigMap", &mut watch, |watch| watch.run().boxed()).await;
}

struct ConfigMapReceiver {
    source: String,
    configuration: Arc<InjectionConfiguration>,
}

impl ConfigMapReceiver {
    fn set(&self, object: &Json) {
        let text = |name: &str| object["data"][name].as_str().map(str::to_owned);
        match (text("config"), text("values")) {
            (Some(config), Some(values)) => {
                self.configuration.set_texts(&self.source, InjectionTexts { config, values });
            }
            (None, _) => self.configuration.failed(&self.source, "data.config is missing"),
            (_, None) => self.configuration.failed(&self.source, "data.values is missing"),
        }
    }
}

impl Receiver for ConfigMapReceiver {
    fn begin_list(&mut self) {}

    fn listed(&mut self, objects: Vec<Json>) {
        objects.iter().for_each(|object| self.set(object));
    }

    // A deleted ConfigMap leaves the configuration in use, as in istiod.
    fn end_list(&mut self) {
        self.configuration.set_read();
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            if let WatchEvent::Apply(object) = event {
                self.set(&object);
            }
        }
    }

    fn absent(&mut self) {
        self.configuration.set_read();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluice_inject::InjectorSettings;

    use super::*;
    use crate::WebhookMetrics;

    #[tokio::test]
    async fn configuration_is_read_once_the_config_map_is_listed_or_known_to_be_absent() {
        for exists in [true, false] {
            let configuration = InjectionConfiguration::new(InjectorSettings::default(), WebhookMetrics::default());
            let mut receiver = ConfigMapReceiver { source: "test".to_owned(), configuration: configuration.clone() };
            let is_read = async || tokio::time::timeout(Duration::from_millis(20), configuration.read()).await.is_ok();
            receiver.begin_list();
            if exists {
                receiver.listed(vec![serde_json::json!({"data": {"config": "policy: enabled", "values": "{}"}})]);
            }
            assert!(!is_read().await, "the list has not ended");
            receiver.end_list();
            assert!(is_read().await);
            assert_eq!(configuration.injector().is_some(), exists);
        }
    }
}
