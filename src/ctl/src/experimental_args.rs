//! The group `experimental`: commands that istioctl has below `experimental`.

use clap::Subcommand;

use crate::inject_args::{CHECK_INJECT_EXAMPLES, CheckInjectArgs};
use crate::tag_args::{REVISION_EXAMPLES, RevisionCommand};

/// Subcommands of `experimental`.
#[derive(Debug, Subcommand)]
pub(crate) enum ExperimentalCommand {
    /// Tell which webhooks inject a pod, and why.
    #[command(after_help = CHECK_INJECT_EXAMPLES)]
    CheckInject(CheckInjectArgs),
    /// List and describe revisions of the control plane.
    #[command(after_help = REVISION_EXAMPLES)]
    Revision {
        /// What to do.
        #[command(subcommand)]
        command: RevisionCommand,
    },
}
