//! The components of an installation.

/// A part of an installation.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Component {
    /// CRDs, and the account for reading the cluster. All revisions share it.
    Base,
    /// The control plane.
    Pilot,
    /// The CNI agent of all nodes.
    Cni,
    /// ztunnel on all nodes.
    Ztunnel,
    /// A gateway for incoming traffic.
    IngressGateway,
    /// A gateway for outgoing traffic.
    EgressGateway,
}

impl Component {
    /// All components, in the order of their installation.
    pub const ALL: [Self; 6] =
        [Self::Base, Self::Pilot, Self::Cni, Self::Ztunnel, Self::IngressGateway, Self::EgressGateway];

    /// The value of the label `operator.istio.io/component`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Base => "Base",
            Self::Pilot => "Pilot",
            Self::Cni => "Cni",
            Self::Ztunnel => "Ztunnel",
            Self::IngressGateway => "IngressGateways",
            Self::EgressGateway => "EgressGateways",
        }
    }

    /// Its name in messages.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Pilot => "control plane",
            Self::Cni => "CNI agent",
            Self::Ztunnel => "ztunnel",
            Self::IngressGateway => "ingress gateway",
            Self::EgressGateway => "egress gateway",
        }
    }

    /// Its key in `spec.components`.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Pilot => "pilot",
            Self::Cni => "cni",
            Self::Ztunnel => "ztunnel",
            Self::IngressGateway => "ingressGateways",
            Self::EgressGateway => "egressGateways",
        }
    }

    /// Whether it runs on all nodes.
    pub(crate) fn is_node_agent(self) -> bool {
        matches!(self, Self::Cni | Self::Ztunnel)
    }

    pub(crate) fn is_gateway(self) -> bool {
        matches!(self, Self::IngressGateway | Self::EgressGateway)
    }
}
