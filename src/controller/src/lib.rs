//! What a controller needs around the collections of [`sluice_engine`]: sources that write its inputs, and a writer of
//! statuses.
//!
//! The engine does no I/O. The parts of this crate do it, each for one collection:
//!
//! | part | does | counterpart in krt |
//! |---|---|---|
//! | [`Informer`] | lists and watches a type of the Kubernetes API into an input | `NewInformer`, `NewFilteredInformer` |
//! | [`FolderSource`] | keeps an input equal to the files below a directory | `FolderWatch`, `FileCollection` |
//! | [`FileSource`] | keeps a singleton equal to a file | `FileSingleton` |
//! | [`StatusWriter`] | writes the statuses of a collection, while this replica leads | `RegisterStatus`, `StatusCollections` |
//!
//! # Errors
//! A source never stops because of what it reads. An object or file that cannot be read is a record of a collection of
//! problems, if the controller has one (`with_problems`), and a warning in the log. The record is removed when the object
//! is corrected or deleted. A failed request is retried without limit, and the records of an unreachable API server stay.
//!
//! # Example
//! `collections/engine/examples` has a controller of each kind: `config_directory.rs` follows files, and
//! `status_controller.rs` watches Services and Pods, and writes the number of ready Pods into the status of each Service.

mod files;
mod guard;
mod informer;
mod singleton;
mod status;

pub use files::{FileSourceError, FolderHandle, FolderSource};
pub use informer::Informer;
pub use singleton::FileSource;
// A caller names these to make an informer or a writer.
pub use sluice_kube::{Api, ConnectError, Election, KubeOptions, Lock, Term, WatchStates, connect};
pub use sluice_watch::FollowGuard;
pub use status::StatusWriter;
