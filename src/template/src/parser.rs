//! Parses the tokens of a template into its syntax tree.

use std::sync::Arc;

use super::lexer::{Token, TokenKind, tokens};
use super::node::{Branch, Command, Definition, Definitions, Node, Operand, Pipeline, Span, Term, Tree};
use super::value::{FindFunction, Value};
use super::{Source, TemplateError};

/// Maximum nesting of actions and parentheses.
const MAX_DEPTH: usize = 100;
/// Maximum length of a template.
const MAX_SOURCE_BYTES: usize = 4 << 20;

/// Parses `source`, and adds the templates that it defines to `defined`. All functions and variables that it names have to
/// exist.
pub(super) fn parse(
    name: &str,
    source: &str,
    find: FindFunction,
    defined: &mut Definitions,
) -> Result<Tree, TemplateError> {
    if source.len() > MAX_SOURCE_BYTES {
        let reason = format!("a template of {} bytes exceeds the limit of {MAX_SOURCE_BYTES} bytes", source.len());
        return Err(TemplateError::at(name, source, 0, reason));
    }
    let tokens = tokens(name, source)?;
    let shared = Source::new(name, source);
    let mut parser = Parser {
        source,
        shared: shared.clone(),
        tokens: &tokens,
        next: 0,
        find,
        depth: 0,
        loops: 0,
        variables: vec!["$".to_owned()],
        defined,
    };
    let (main, end) = parser.nodes()?;
    if let Some(end) = end {
        return Err(parser.error(format!("unexpected {{{{{}}}}}", end.name())));
    }
    Ok(Tree { source: shared, main, defined: Definitions::new() })
}

struct Parser<'s, 'd> {
    source: &'s str,
    shared: Arc<Source>,
    tokens: &'s [Token],
    next: usize,
    find: FindFunction,
    depth: usize,
    loops: usize,
    variables: Vec<String>,
    defined: &'d mut Definitions,
}

/// What ends a list of nodes.
#[derive(Clone, Copy, PartialEq)]
enum End {
    End,
    Else,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Else => "else",
        }
    }
}

type Parsed<T> = Result<T, TemplateError>;

impl<'s> Parser<'s, '_> {
    fn position(&self) -> usize {
        self.tokens.get(self.next).map_or(self.source.len(), |token| token.start)
    }

    fn previous_end(&self) -> usize {
        self.next.checked_sub(1).and_then(|index| self.tokens.get(index)).map_or(0, |token| token.end)
    }

    fn error(&self, reason: impl Into<String>) -> TemplateError {
        TemplateError::at(&self.shared.name, self.source, self.position().min(self.source.len()), reason)
    }

    fn peek(&self) -> Option<&'s TokenKind> {
        self.tokens.get(self.next).map(|token| &token.kind)
    }

    fn skip_spaces(&mut self) {
        while self.peek() == Some(&TokenKind::Space) {
            self.next += 1;
        }
    }

    /// The next token that is not a space.
    fn peek_word(&mut self) -> Option<&'s TokenKind> {
        self.skip_spaces();
        self.peek()
    }

    fn take(&mut self, kind: &TokenKind) -> bool {
        let equal = self.peek_word() == Some(kind);
        if equal {
            self.next += 1;
        }
        equal
    }

    fn expect_close(&mut self, context: &str) -> Parsed<()> {
        if self.take(&TokenKind::Close) {
            return Ok(());
        }
        Err(self.error(format!("unexpected token in {context}")))
    }

    fn keyword(&mut self) -> Option<&'s str> {
        match self.peek_word() {
            Some(TokenKind::Name(name)) => Some(name.as_str()),
            _ => None,
        }
    }

    fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(format!("more than {MAX_DEPTH} nested actions")));
        }
        Ok(())
    }

    /// Nodes up to the end of the block. The action that ends it is consumed up to its keyword.
    fn nodes(&mut self) -> Parsed<(Vec<Node>, Option<End>)> {
        self.enter()?;
        let mut nodes = Vec::new();
        let end = loop {
            match self.peek() {
                None => break None,
                Some(TokenKind::Text(text)) => {
                    self.next += 1;
                    nodes.push(Node::Text(text.as_str().into()));
                }
                Some(TokenKind::Open) => {
                    self.next += 1;
                    match self.keyword() {
                        Some("end") => {
                            self.next += 1;
                            self.expect_close("end")?;
                            break Some(End::End);
                        }
                        Some("else") => {
                            self.next += 1;
                            break Some(End::Else);
                        }
                        _ => nodes.extend(self.action()?),
                    }
                }
                Some(_) => return Err(self.error("unexpected token")),
            }
        };
        self.depth -= 1;
        Ok((nodes, end))
    }

    fn action(&mut self) -> Parsed<Option<Node>> {
        let start = self.position();
        let keyword = self.keyword();
        if keyword.is_some_and(|keyword| {
            ["if", "range", "with", "define", "template", "block", "break", "continue"].contains(&keyword)
        }) {
            self.next += 1;
        }
        let node = match keyword {
            Some("if") => Node::If(self.branch("if", start)?),
            Some("range") => Node::Range(self.branch("range", start)?),
            Some("with") => Node::With(self.branch("with", start)?),
            Some("define") => {
                let name = self.template_name("define clause")?;
                self.expect_close("define clause")?;
                self.definition(name)?;
                return Ok(None);
            }
            Some("template") => {
                let name = self.template_name("template clause")?;
                let pipeline = match self.peek_word() {
                    Some(TokenKind::Close) => None,
                    _ => Some(self.pipeline("template clause")?),
                };
                let span = Span { start, end: self.previous_end() };
                self.expect_close("template clause")?;
                Node::Template { span, name, pipeline }
            }
            Some("block") => {
                let name = self.template_name("block clause")?;
                let pipeline = self.pipeline("block clause")?;
                let span = Span { start, end: self.previous_end() };
                self.expect_close("block clause")?;
                self.definition(name.clone())?;
                Node::Template { span, name, pipeline: Some(pipeline) }
            }
            Some(word @ ("break" | "continue")) => {
                self.expect_close(word)?;
                if self.loops == 0 {
                    return Err(self.error(format!("{{{{{word}}}}} outside {{{{range}}}}")));
                }
                if word == "break" { Node::Break } else { Node::Continue }
            }
            _ => {
                let pipeline = self.pipeline("command")?;
                self.expect_close("command")?;
                Node::Action(pipeline)
            }
        };
        Ok(Some(node))
    }

    fn template_name(&mut self, context: &str) -> Parsed<String> {
        match self.peek_word() {
            Some(TokenKind::String(name)) => {
                self.next += 1;
                Ok(name.clone())
            }
            _ => Err(self.error(format!("expected a string in {context}"))),
        }
    }

    fn definition(&mut self, name: String) -> Parsed<()> {
        let variables = std::mem::replace(&mut self.variables, vec!["$".to_owned()]);
        let loops = std::mem::take(&mut self.loops);
        let (body, end) = self.nodes()?;
        if end != Some(End::End) {
            return Err(self.error("expected {{end}} of a definition"));
        }
        self.variables = variables;
        self.loops = loops;
        let is_empty = body.iter().all(|node| matches!(node, Node::Text(text) if text.trim().is_empty()));
        // An empty definition does not replace another one.
        if !is_empty || !self.defined.contains_key(&name) {
            self.defined.insert(name, Definition { source: self.shared.clone(), body });
        }
        Ok(())
    }

    fn branch(&mut self, keyword: &str, start: usize) -> Parsed<Branch> {
        self.enter()?;
        let declared = self.variables.len();
        let pipeline = self.pipeline(keyword)?;
        let span = Span { start, end: self.previous_end() };
        self.expect_close(keyword)?;
        self.loops += usize::from(keyword == "range");
        let (body, end) = self.nodes()?;
        self.loops -= usize::from(keyword == "range");
        let otherwise = match end {
            Some(End::End) => Vec::new(),
            Some(End::Else) => self.otherwise(keyword)?,
            None => return Err(self.error(format!("unexpected end of the template in {keyword}"))),
        };
        self.variables.truncate(declared);
        self.depth -= 1;
        Ok(Branch { span, pipeline, body, otherwise })
    }

    /// The part behind `else`: a chain of `else if` is a nested branch that shares the `end`.
    fn otherwise(&mut self, keyword: &str) -> Parsed<Vec<Node>> {
        if let Some(word @ ("if" | "with")) = self.keyword()
            && keyword == word
        {
            let start = self.position();
            self.next += 1;
            let branch = self.branch(word, start)?;
            return Ok(vec![if word == "if" { Node::If(branch) } else { Node::With(branch) }]);
        }
        self.expect_close("else")?;
        match self.nodes()? {
            (nodes, Some(End::End)) => Ok(nodes),
            _ => Err(self.error("expected {{end}}")),
        }
    }

    fn pipeline(&mut self, context: &str) -> Parsed<Pipeline> {
        self.enter()?;
        self.skip_spaces();
        let start = self.position();
        let (variables, declares) = self.declaration(context)?;
        let mut commands = Vec::new();
        loop {
            let command = self.command(context)?;
            let is_constant = matches!(
                command.operands.as_slice(),
                [Operand { term: Term::Dot | Term::Nil | Term::Constant(_), .. }, ..]
            );
            if is_constant && !commands.is_empty() {
                return Err(self.error(format!("non executable command in pipeline stage {}", commands.len() + 1)));
            }
            commands.push(command);
            if !self.take(&TokenKind::Pipe) {
                break;
            }
        }
        if declares {
            self.variables.extend(variables.iter().cloned());
        }
        self.depth -= 1;
        let span = Span { start, end: self.previous_end() };
        Ok(Pipeline { span, variables, declares, commands })
    }

    /// `$v :=`, `$v =`, or `$i, $v :=` of a range.
    fn declaration(&mut self, context: &str) -> Parsed<(Vec<String>, bool)> {
        let start = self.next;
        let mut names = Vec::new();
        while let Some(TokenKind::Variable(name)) = self.peek_word() {
            self.next += 1;
            names.push(name.clone());
            let assigns = match self.peek_word() {
                Some(TokenKind::Declare) => false,
                Some(TokenKind::Assign) => true,
                Some(TokenKind::Comma) if context == "range" && names.len() < 2 => {
                    self.next += 1;
                    continue;
                }
                _ => break,
            };
            self.next += 1;
            if assigns && let Some(unknown) = names.iter().find(|name| !self.variables.contains(name)) {
                return Err(self.error(format!("undefined variable \"{unknown}\"")));
            }
            return Ok((names, !assigns));
        }
        self.next = start;
        Ok((Vec::new(), false))
    }

    fn command(&mut self, context: &str) -> Parsed<Command> {
        let mut operands = Vec::new();
        self.skip_spaces();
        loop {
            match self.peek() {
                Some(TokenKind::Space) => self.next += 1,
                Some(TokenKind::Close | TokenKind::RightParenthesis | TokenKind::Pipe) => break,
                None => return Err(self.error("unclosed action")),
                Some(_) => {
                    operands.push(self.operand(context)?);
                    if !matches!(
                        self.peek(),
                        Some(TokenKind::Space | TokenKind::Close | TokenKind::RightParenthesis | TokenKind::Pipe)
                    ) {
                        return Err(self.error("unexpected token in operand"));
                    }
                }
            }
        }
        if operands.is_empty() {
            return Err(self.error(format!("missing value for {context}")));
        }
        Ok(Command { operands })
    }

    fn operand(&mut self, context: &str) -> Parsed<Operand> {
        let start = self.position();
        let Some(kind) = self.peek() else { return Err(self.error("unclosed action")) };
        self.next += 1;
        let term = match kind {
            TokenKind::Name(name) => self.named(name)?,
            TokenKind::Dot => Term::Dot,
            TokenKind::Field(name) => {
                let mut names = vec![name.clone()];
                names.extend(self.fields());
                Term::Field(names)
            }
            TokenKind::Variable(name) => {
                if !self.variables.contains(name) {
                    self.next -= 1;
                    return Err(self.error(format!("undefined variable \"{name}\"")));
                }
                Term::Variable(name.clone(), self.fields())
            }
            TokenKind::Number(digits) => Term::Constant(self.number(digits)?),
            TokenKind::Character(character) => Term::Constant(Value::Integer(i64::from(u32::from(*character)))),
            TokenKind::String(text) => Term::Constant(Value::text(text.as_str())),
            TokenKind::LeftParenthesis => {
                let pipeline = self.pipeline("parenthesized pipeline")?;
                if !self.take(&TokenKind::RightParenthesis) {
                    return Err(self.error("unclosed left parenthesis"));
                }
                Term::Pipeline(Box::new(pipeline))
            }
            _ => {
                self.next -= 1;
                return Err(self.error(format!("unexpected token in {context}")));
            }
        };
        let operand = Operand { span: Span { start, end: self.previous_end() }, term };
        let fields = self.fields();
        if fields.is_empty() {
            return Ok(operand);
        }
        if matches!(operand.term, Term::Dot | Term::Nil | Term::Constant(_)) {
            return Err(self.error("unexpected . after term"));
        }
        let span = Span { start, end: self.previous_end() };
        Ok(Operand { span, term: Term::Chain(Box::new(operand), fields) })
    }

    fn named(&mut self, name: &str) -> Parsed<Term> {
        Ok(match name {
            "true" => Term::Constant(Value::Bool(true)),
            "false" => Term::Constant(Value::Bool(false)),
            "nil" => Term::Nil,
            "and" => Term::And,
            "or" => Term::Or,
            name => match (self.find)(name) {
                Some(function) => Term::Function(name.to_owned(), function),
                None => {
                    self.next -= 1;
                    return Err(self.error(format!("function \"{name}\" not defined")));
                }
            },
        })
    }

    /// `.A.B` directly behind an operand.
    fn fields(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(TokenKind::Field(name)) = self.peek() {
            self.next += 1;
            names.push(name.clone());
        }
        names
    }

    fn number(&self, digits: &str) -> Parsed<Value> {
        let text = digits.replace('_', "");
        let (sign, magnitude) = match text.strip_prefix('-') {
            Some(magnitude) => (-1, magnitude),
            None => (1, text.strip_prefix('+').unwrap_or(&text)),
        };
        let based = |prefix: &[&str], base| {
            let digits = prefix.iter().find_map(|prefix| magnitude.strip_prefix(prefix))?;
            i64::from_str_radix(digits, base).ok()
        };
        let integer = based(&["0x", "0X"], 16)
            .or_else(|| based(&["0b", "0B"], 2))
            .or_else(|| based(&["0o", "0O"], 8))
            .or_else(|| based(&["0"], 8).filter(|_| !magnitude.contains(['.', 'e', 'E'])))
            .or_else(|| magnitude.parse::<i64>().ok());
        if let Some(integer) = integer {
            return Ok(Value::Integer(sign * integer));
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Float(number)),
            _ => Err(self.error(format!("bad number syntax: \"{digits}\""))),
        }
    }
}
