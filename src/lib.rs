//! The Sluice control plane: edges and wiring.
