//! The environment variables of `sluiced` and `sluice-agent`: those that are followed, and those of Istio that are not, with the
//! reason. Help texts, warnings at start-up and `docs/variables.md` come from these tables.

mod agent;
mod control_plane;
mod flags;
mod kind;
mod list;
mod other_value;
mod warnings;

pub use agent::AGENT;
pub use control_plane::CONTROL_PLANE;
pub use flags::{FLAGS_WITHOUT_EFFECT, flag_warning};
pub use kind::{ValueKind, parse_bool};
pub use list::{help, markdown, names_and_states};
pub use warnings::{agent_refusal, agent_warnings, control_plane_refusal, control_plane_warnings, nearest};

/// A variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name. A `*` at the end stands for any suffix.
    pub name: &'static str,
    /// Its accepted values.
    pub kind: ValueKind,
    /// The value that is used if it is not set, or what is used then. Empty for none.
    pub default: &'static str,
    /// Whether it is followed.
    pub state: State,
    /// What it sets if it is followed, else the reason why it is not.
    pub about: &'static str,
}

/// Whether a variable is followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Its value is used.
    Followed,
    /// It sets a flag, which is named in `about`.
    Flag,
    /// Only its default is supported: another value would change what proxies receive or what is written, so the program does not
    /// start with it.
    DefaultOnly,
    /// What it adjusts does not exist here.
    NoEffect,
}

impl State {
    /// The state as lists show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Followed => "followed",
            Self::Flag => "sets a flag",
            Self::DefaultOnly => "only the default is supported",
            Self::NoEffect => "no effect",
        }
    }
}

/// Variables of one area.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The area.
    pub title: &'static str,
    /// The variables.
    pub variables: &'static [Variable],
}

const fn followed(name: &'static str, kind: ValueKind, default: &'static str, about: &'static str) -> Variable {
    Variable { name, kind, default, state: State::Followed, about }
}

const fn flag(name: &'static str, kind: ValueKind, default: &'static str, about: &'static str) -> Variable {
    Variable { name, kind, default, state: State::Flag, about }
}

const fn default_only(name: &'static str, kind: ValueKind, default: &'static str, about: &'static str) -> Variable {
    Variable { name, kind, default, state: State::DefaultOnly, about }
}

const fn no_effect(name: &'static str, kind: ValueKind, default: &'static str, about: &'static str) -> Variable {
    Variable { name, kind, default, state: State::NoEffect, about }
}

impl Variable {
    /// Whether the entry is about this name.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        self.name.strip_suffix('*').map_or(self.name == name, |prefix| name.starts_with(prefix))
    }

    /// The flag that it sets, without dashes.
    #[must_use]
    pub fn flag(&self) -> Option<&'static str> {
        self.about.strip_prefix("Sets `--")?.strip_suffix('`').filter(|_| self.state == State::Flag)
    }

    /// Whether the program uses its value.
    #[must_use]
    pub const fn is_read(&self) -> bool {
        matches!(self.state, State::Followed | State::Flag)
    }
}

/// All variables of a program.
pub fn all(groups: &'static [Group]) -> impl Iterator<Item = &'static Variable> {
    groups.iter().flat_map(|group| group.variables)
}

/// The entry about a name. An entry for exactly this name goes before one for a prefix.
#[must_use]
pub fn find(groups: &'static [Group], name: &str) -> Option<&'static Variable> {
    all(groups).find(|variable| variable.name == name).or_else(|| all(groups).find(|variable| variable.covers(name)))
}

#[cfg(test)]
mod tests;
