//! Pure builders: model values to Envoy messages
