//! The variables of `sluiced`.

mod flags;
mod mesh;
mod not_followed;
mod serving;
mod traces;

use crate::Group;

/// The variables of `sluiced`, by area.
pub const CONTROL_PLANE: &[Group] = &[
    Group { title: "Mesh", variables: mesh::MESH },
    Group { title: "Details of proxies", variables: mesh::PROXIES },
    Group { title: "Remote clusters", variables: mesh::CLUSTERS },
    Group { title: "Gateways", variables: mesh::GATEWAYS },
    Group { title: "Ambient mode", variables: mesh::AMBIENT },
    Group { title: "Policies", variables: mesh::POLICIES },
    Group { title: "Load", variables: serving::LOAD },
    Group { title: "Callers", variables: serving::CALLERS },
    Group { title: "Certificates", variables: serving::CERTIFICATES },
    Group { title: "Webhooks", variables: serving::WEBHOOKS },
    Group { title: "Traces", variables: traces::TRACES },
    Group { title: "Flags", variables: flags::FLAGS },
    Group { title: "Configuration of proxies that is fixed", variables: not_followed::PROXIES },
    Group { title: "Kinds and features that do not exist here", variables: not_followed::FEATURES },
    Group { title: "Details that do not exist here", variables: not_followed::DETAILS },
];
