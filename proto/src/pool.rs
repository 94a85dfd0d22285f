//! The descriptor pool.

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let set = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
    DescriptorPool::decode(set.as_slice()).expect("the build script wrote a valid descriptor set")
});

/// Descriptors of all Istio and Envoy messages. The first call decodes them, which takes some milliseconds.
pub fn pool() -> &'static DescriptorPool {
    &POOL
}
