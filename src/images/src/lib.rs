//! Container images from binaries, without a container engine.
//!
//! [`FileSystem`] collects the files of an image: binaries with the shared libraries that they need, CA certificates and
//! accounts. [`Image::write`] writes it as an OCI image layout. Equal files give equal digests: entries are sorted, and have fixed
//! times and owners.

mod archive;
mod file_system;
mod image;
mod layer;
mod layout;
mod libraries;

pub use archive::write_archive;
pub use file_system::{FileSystem, OWNER};
pub use image::{Image, cni, control_plane, proxy};
pub use layout::Digest;
