//! The current configuration of the injector (W02).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use serde_json::Value;
use sluice_inject::{ConfigError, Injector, InjectorSettings};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_sources::MeshLayers;
use tokio::sync::watch;
use tracing::{error, info};

use crate::WebhookMetrics;

/// `config` and `values` of the ConfigMap of the injector.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct InjectionTexts {
    pub(crate) config: String,
    pub(crate) values: String,
}

/// The injector with the last valid configuration.
#[derive(Debug)]
pub struct InjectionConfiguration {
    settings: InjectorSettings,
    metrics: WebhookMetrics,
    parts: Mutex<Parts>,
    injector: ArcSwapOption<Injector>,
    /// Its source has been read, and contains a configuration or not.
    is_read: watch::Sender<bool>,
    /// Changes with each configuration that is loaded.
    loaded: watch::Sender<u64>,
}

/// The parts of the configuration, as they were read last and as they are in use.
#[derive(Debug, Default)]
struct Parts {
    read: Part,
    used: Part,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Part {
    texts: Option<InjectionTexts>,
    mesh: MeshLayers,
}

impl InjectionConfiguration {
    /// Without a configuration.
    #[must_use]
    pub fn new(settings: InjectorSettings, metrics: WebhookMetrics) -> Arc<Self> {
        let (parts, injector, is_read) = (Mutex::default(), ArcSwapOption::empty(), watch::channel(false).0);
        Arc::new(Self { settings, metrics, parts, injector, is_read, loaded: watch::channel(0).0 })
    }

    /// Waits until the source of the configuration has been read, even if it contains none or an invalid one.
    pub async fn read(&self) {
        // The sender is not dropped meanwhile.
        let _ = self.is_read.subscribe().wait_for(|is_read| *is_read).await;
    }

    /// The templates in use, by name: their texts, or what the configuration has in place of one. `None` before a valid
    /// configuration is read.
    #[must_use]
    pub fn templates(&self) -> Option<BTreeMap<String, Value>> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let config = parse_value(&parts.used.texts.as_ref()?.config, &Limits::default()).ok()?;
        let templates = config.get("templates")?.as_object()?;
        Some(templates.iter().map(|(name, template)| (name.clone(), template.clone())).collect())
    }

    /// The source has been read.
    pub(crate) fn set_read(&self) {
        self.is_read.send_replace(true);
    }

    /// A receiver that changes when another configuration is in use.
    #[must_use]
    pub fn loaded(&self) -> watch::Receiver<u64> {
        self.loaded.subscribe()
    }

    fn load(&self, injector: Option<Arc<Injector>>) {
        self.injector.store(injector);
        self.loaded.send_modify(|count| *count += 1);
    }

    /// The injector; `None` before the first valid configuration is read.
    #[must_use]
    pub fn injector(&self) -> Option<Arc<Injector>> {
        self.injector.load_full()
    }

    /// Applies `config` and `values` if they differ and are valid.
    pub(crate) fn set_texts(&self, source: &str, texts: InjectionTexts) {
        self.change(source, |read| {
            let has_changed = read.texts.as_ref() != Some(&texts);
            read.texts = Some(texts);
            has_changed
        });
    }

    /// Applies the mesh config if it differs and is valid.
    pub fn set_mesh(&self, mesh: MeshLayers) {
        self.change("the mesh config", |read| {
            let has_changed = read.mesh != mesh;
            read.mesh = mesh;
            has_changed
        });
    }

    /// Counts and logs a source that cannot be read. The former configuration stays.
    pub(crate) fn failed(&self, source: &str, reason: &str) {
        self.metrics.config_errors.inc();
        let is_loaded = self.injector.load().is_some();
        let effect = if is_loaded { "the former one stays" } else { "no pod can be injected" };
        error!(target: "webhook", source, reason, "the injection configuration is invalid: {effect}");
    }

    fn change(&self, source: &str, change: impl FnOnce(&mut Part) -> bool) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if !change(&mut parts.read) || parts.read.texts.is_none() {
            return;
        }
        let failure = match self.make(&parts.read) {
            Ok(injector) => {
                parts.used = parts.read.clone();
                self.load(injector);
                info!(target: "webhook", source, "the injection configuration is loaded");
                return;
            }
            Err(failure) => failure,
        };
        self.failed(source, &failure.to_string());
        // One part may be invalid, which must not keep changes of the other one from applying.
        let (read, used) = (&parts.read, &parts.used);
        let mixed = [
            Part { texts: used.texts.clone(), mesh: read.mesh.clone() },
            Part { texts: read.texts.clone(), mesh: used.mesh.clone() },
        ];
        for part in mixed.into_iter().filter(|part| part.texts.is_some() && part != used) {
            if let Ok(injector) = self.make(&part) {
                parts.used = part;
                self.load(injector);
                return;
            }
        }
    }

    fn make(&self, part: &Part) -> Result<Option<Arc<Injector>>, ConfigError> {
        let Some(texts) = &part.texts else { return Ok(None) };
        let injector = Injector::new(&texts.config, &texts.values, &part.mesh, self.settings.clone())?;
        Ok(Some(Arc::new(injector)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(config: &str) -> InjectionTexts {
        InjectionTexts { config: config.to_owned(), values: "{}".to_owned() }
    }

    #[test]
    fn invalid_configuration_leaves_the_former_one_in_use() {
        let metrics = WebhookMetrics::default();
        let configuration = InjectionConfiguration::new(InjectorSettings::default(), metrics.clone());
        configuration.set_mesh(vec![json!({"trustDomain": "a"})]);
        configuration.set_texts("test", texts("templates: {sidecar: '{{'}"));
        assert!(configuration.injector().is_none() && metrics.config_errors.get() == 1);
        configuration.set_texts("test", texts("policy: enabled"));
        let first = configuration.injector().expect("a valid one");
        configuration.set_texts("test", texts("templates: {sidecar: '{{'}"));
        assert!(Arc::ptr_eq(&first, &configuration.injector().expect("the former one")));
        assert_eq!(metrics.config_errors.get(), 2);
        // The mesh config is followed although the templates are invalid.
        configuration.set_mesh(vec![json!({"trustDomain": "b"})]);
        let parts = configuration.parts.lock().expect("no panic");
        assert_eq!((&parts.used.texts, &parts.used.mesh), (&Some(texts("policy: enabled")), &parts.read.mesh));
    }

    #[test]
    fn unchanged_configuration_is_not_loaded_again() {
        let configuration = InjectionConfiguration::new(InjectorSettings::default(), WebhookMetrics::default());
        configuration.set_texts("test", texts("policy: enabled"));
        let first = configuration.injector().expect("a valid one");
        configuration.set_texts("test", texts("policy: enabled"));
        configuration.set_mesh(Vec::new());
        assert!(Arc::ptr_eq(&first, &configuration.injector().expect("the same")));
    }
}
