//! The syntax tree of a template.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Source;
use super::value::{Function, Value};

/// Byte range in the source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A parsed text.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) source: Arc<Source>,
    pub(crate) main: Vec<Node>,
    /// The templates that the text defines, if it is not a part of a set.
    pub(crate) defined: Definitions,
}

/// Templates that are defined by name.
pub(crate) type Definitions = BTreeMap<String, Definition>;

/// A template that a text defines.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) source: Arc<Source>,
    pub(crate) body: Vec<Node>,
}

#[derive(Debug)]
pub(crate) enum Node {
    Text(Arc<str>),
    Action(Pipeline),
    If(Branch),
    Range(Branch),
    With(Branch),
    Template { span: Span, name: String, pipeline: Option<Pipeline> },
    Break,
    Continue,
}

/// `if`, `range` or `with`.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) span: Span,
    pub(crate) pipeline: Pipeline,
    pub(crate) body: Vec<Node>,
    pub(crate) otherwise: Vec<Node>,
}

#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) span: Span,
    pub(crate) variables: Vec<String>,
    /// Whether the variables are declared (`:=`) or assigned (`=`).
    pub(crate) declares: bool,
    pub(crate) commands: Vec<Command>,
}

/// An operand, or a function with its arguments.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) operands: Vec<Operand>,
}

#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) span: Span,
    pub(crate) term: Term,
}

#[derive(Debug)]
pub(crate) enum Term {
    Dot,
    Nil,
    Constant(Value),
    /// `.A.B`
    Field(Vec<String>),
    /// `$v.A.B`
    Variable(String, Vec<String>),
    And,
    Or,
    Function(String, Function),
    Pipeline(Box<Pipeline>),
    /// `(pipeline).A.B`
    Chain(Box<Operand>, Vec<String>),
}
