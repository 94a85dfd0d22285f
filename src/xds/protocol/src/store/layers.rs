//! The content of all layers at one epoch.

use std::sync::{Arc, LazyLock};

use imbl::Vector;

use super::aliases::Aliases;
use super::layer_table::LayerTable;

/// Shared by all empty layers: each proxy has separate layers, and most of those never have content.
static EMPTY_LAYER: LazyLock<LayerContent> =
    LazyLock::new(|| LayerContent { table: Arc::default(), aliases: Arc::default() });

/// The content of all layers at one epoch. It is persistent: a changed copy shares what does not change.
#[derive(Clone, Debug, Default)]
pub(super) struct Layers {
    /// Number of epochs applied.
    pub(super) epoch: u64,
    contents: Vector<LayerContent>,
}

/// Index of a layer in [`Layers`]. It is reused only after no scope has the layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LayerId(u32);

/// Content of a layer of one type at one epoch.
#[derive(Clone, Debug)]
pub(super) struct LayerContent {
    pub(super) table: Arc<LayerTable>,
    /// Aliases of the table's resources, for types that have aliases.
    pub(super) aliases: Arc<Aliases>,
}

impl Layers {
    /// The content of a layer.
    pub(super) fn get(&self, id: LayerId) -> &LayerContent {
        self.contents.get(id.0 as usize).unwrap_or(&EMPTY_LAYER)
    }

    /// Replaces the content of a layer.
    pub(super) fn set(&mut self, id: LayerId, content: LayerContent) {
        if let Some(layer) = self.contents.get_mut(id.0 as usize) {
            *layer = content;
        }
    }

    /// Adds a layer without content.
    pub(super) fn add(&mut self) -> LayerId {
        let id = u32::try_from(self.contents.len()).expect("fewer than 2^32 layers");
        self.contents.push_back(EMPTY_LAYER.clone());
        LayerId(id)
    }

    /// The content of all layers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &LayerContent> {
        self.contents.iter()
    }

    /// Number of layers, used and unused.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.contents.len()
    }
}
