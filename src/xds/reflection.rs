//! What gRPC reflection shows.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use prost::Message as _;
use prost_reflect::FileDescriptor;
use prost_types::FileDescriptorSet;

/// The encoded `FileDescriptorSet` of ADS and what it is made of, without the thousand files of Envoy's other types.
///
/// # Errors
/// When the pool does not know ADS.
pub(crate) fn descriptors() -> anyhow::Result<Vec<u8>> {
    const ADS: &str = "envoy/service/discovery/v3/ads.proto";
    let pool = sluice_proto::pool();
    let ads = pool
        .get_file_by_name(ADS)
        .ok_or_else(|| anyhow!("{ADS} is not in the pool"))
        .context("read the descriptors")?;
    let mut files = BTreeMap::new();
    collect(&ads, &mut files);
    let file = files.into_values().map(|file| file.file_descriptor_proto().clone()).collect();
    Ok(FileDescriptorSet { file }.encode_to_vec())
}

fn collect(file: &FileDescriptor, files: &mut BTreeMap<String, FileDescriptor>) {
    if files.insert(file.name().to_owned(), file.clone()).is_none() {
        for dependency in file.dependencies() {
            collect(&dependency, files);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ads_is_complete_and_small() {
        let bytes = descriptors().expect("ADS is in the pool");
        let set = FileDescriptorSet::decode(bytes.as_slice()).expect("a descriptor set");
        assert!(set.file.len() < 100, "{} files", set.file.len());
        prost_reflect::DescriptorPool::from_file_descriptor_set(set).expect("complete");
    }
}
