//! Kubernetes and Istio objects to model values and rejects
