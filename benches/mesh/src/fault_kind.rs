//! The faults that can be injected.

use clap::ValueEnum;

/// A fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum FaultKind {
    /// The connections to the API server stay open and transfer nothing.
    ApiFrozen,
    /// Open connections to the API server lose all bytes for ever. New ones work.
    ApiConnectionsLost,
    /// The API server closes all connections and refuses new ones.
    ApiRefused,
    /// The API server forgets its history and ends all watches.
    ApiCompacted,
    /// Every request to the API server is answered with 404.
    ApiNotFound,
    /// Every request to the API server is answered with 403.
    ApiForbidden,
    /// Every request to the API server is answered with 429.
    ApiTooManyRequests,
    /// Every request to the API server is answered with 500.
    ApiFails,
    /// Every request to the API server is answered with 200 and text that is not JSON.
    ApiGarbage,
    /// Every request to the API server is answered with 200 and an empty list of another kind.
    ApiOtherKind,
    /// The API server does not answer reviews of tokens, while callers with new tokens open streams.
    TokenServiceHung,
    /// The process of the server is stopped and continued.
    ServerPaused,
    /// The server is terminated and started again, several times, at random moments.
    ServerTerminated,
    /// The server is killed and started again.
    ServerKilled,
    /// Each task of the server that is restarted panics, ten at a time; needs a debug build of the server.
    TaskPanics,
    /// Each task and thread whose panic ends the server panics, after each of which it is started again; needs a debug build.
    FatalPanics,
    /// The disk of the server's log is full.
    LogDiskFull,
    /// The clock jumps forward and back by a day; needs libfaketime.
    ClockJumps,
    /// As many clients as proxies send bytes that are not requests, or nothing, to all ports, with and without TLS, and reconnect at
    /// once.
    HostileClients,
    /// A tenth of the proxies reads slowly, and one in a hundred does not read.
    SlowClients,
}

impl FaultKind {
    /// The faults that every build of the server can be made to show.
    pub(crate) fn of_all_builds() -> Vec<Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|fault| !matches!(fault, Self::TaskPanics | Self::FatalPanics)).collect()
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether the mesh changes for some time during the fault. Otherwise the fault is over when it has begun.
    pub(crate) fn lasts(self) -> bool {
        !matches!(
            self,
            Self::ApiConnectionsLost
                | Self::ApiCompacted
                | Self::ServerTerminated
                | Self::ServerKilled
                | Self::TaskPanics
                | Self::FatalPanics
        )
    }

    /// Whether the server learns nothing of changes during the fault, so that it has nothing to send.
    pub(crate) fn is_invisible(self) -> bool {
        matches!(
            self,
            Self::ApiFrozen
                | Self::ApiRefused
                | Self::ApiNotFound
                | Self::ApiForbidden
                | Self::ApiTooManyRequests
                | Self::ApiFails
                | Self::ApiGarbage
                | Self::ApiOtherKind
                | Self::ServerPaused
        )
    }

    /// Whether the fault, or its beginning, ends streams.
    pub(crate) fn ends_streams(self) -> bool {
        matches!(
            self,
            Self::TokenServiceHung
                | Self::ServerTerminated
                | Self::ServerKilled
                | Self::TaskPanics
                | Self::FatalPanics
                | Self::LogDiskFull
                | Self::ClockJumps
                | Self::SlowClients
        )
    }
}
