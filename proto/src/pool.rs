//! The one descriptor pool.

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let set = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
    DescriptorPool::decode(set.as_slice()).expect("the build script wrote a valid descriptor set")
});

/// Descriptors of every message this crate knows: Istio's and Envoy's. Made at first use, which takes some milliseconds.
pub fn pool() -> &'static DescriptorPool {
    &POOL
}
