//! What gRPC reflection shows.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use prost::Message as _;
use prost_reflect::FileDescriptor;
use prost_types::FileDescriptorSet;

/// The file of ADS.
pub(crate) const ADS: &str = "envoy/service/discovery/v3/ads.proto";

/// The encoded `FileDescriptorSet` of files and what they are made of, without the thousand files of Envoy's other types.
///
/// # Errors
/// When the pool does not know one.
pub(crate) fn descriptors(names: &[&str]) -> anyhow::Result<Vec<u8>> {
    let pool = sluice_proto::pool();
    let mut files = BTreeMap::new();
    for name in names {
        let file = pool.get_file_by_name(name).ok_or_else(|| anyhow!("{name} is not in the pool"));
        collect(&file.context("read the descriptors")?, &mut files);
    }
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
    fn what_is_shown_is_complete_and_small() {
        let bytes = descriptors(&[ADS, crate::authority::PROTO]).expect("they are in the pool");
        let set = FileDescriptorSet::decode(bytes.as_slice()).expect("a descriptor set");
        assert!(set.file.len() < 100, "{} files", set.file.len());
        prost_reflect::DescriptorPool::from_file_descriptor_set(set).expect("complete");
    }
}
