//! Executes templates. Time, output and memory are bounded.

use super::node::{Branch, Command, Definitions, Node, Operand, Pipeline, Span, Term};
use super::text::printed;
use super::value::{FindFunction, Function, MissingKeys, Scope, Value};
use super::{Source, TemplateFailure, parser, place};

/// Maximum size of a list or map, and of all arguments of a function.
const MAX_VALUE_BYTES: usize = 16 << 20;
/// Maximum nesting of a list or map.
const MAX_VALUE_DEPTH: usize = 200;
/// Size of a value that counts as one step.
const BYTES_OF_STEP: usize = 64;
/// Maximum nesting of templates that include each other.
const MAX_TEMPLATE_DEPTH: usize = 50;
/// Maximum length of the source in an error.
const MAX_CONTEXT_CHARACTERS: usize = 20;

/// The text of the nodes of `source` for `data`. It includes the templates of `defined`.
pub(super) fn execute(
    (source, main): (&Source, &[Node]),
    defined: &Definitions,
    find: FindFunction,
    data: &Value,
    scope: &Scope<'_>,
) -> Result<String, TemplateFailure> {
    let mut executor = Executor {
        source,
        defined: vec![defined],
        find,
        scope,
        output: String::new(),
        variables: vec![("$".to_owned(), data.clone())],
        steps: 0,
        depth: 0,
        at: Span::default(),
    };
    match executor.walk_all(main, data) {
        Ok(_) => Ok(executor.output),
        Err(reason) => Err(executor.failure(reason)),
    }
}

/// What an executed list of nodes asks the enclosing loop to do.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

struct Executor<'t> {
    /// The text that the executed nodes are from.
    source: &'t Source,
    /// What can be included; the last ones have precedence.
    defined: Vec<&'t Definitions>,
    find: FindFunction,
    scope: &'t Scope<'t>,
    output: String,
    variables: Vec<(String, Value)>,
    steps: usize,
    depth: usize,
    at: Span,
}

type Executed<T> = Result<T, String>;

impl<'t> Executor<'t> {
    fn failure(&self, reason: String) -> TemplateFailure {
        let text = &self.source.text;
        let (line, column) = place(text, self.at.start);
        let expression = &text[self.at.start..self.at.end.max(self.at.start)];
        let mut context: String = expression.chars().take(MAX_CONTEXT_CHARACTERS).collect();
        if expression.chars().count() > MAX_CONTEXT_CHARACTERS {
            context.push_str("...");
        }
        TemplateFailure { name: self.source.name.clone(), line, column, context, reason }
    }

    fn charge(&mut self, steps: usize) -> Executed<()> {
        self.steps = self.steps.saturating_add(steps);
        let limit = self.scope.limits.steps;
        if self.steps > limit {
            return Err(format!("the template takes more than {limit} steps"));
        }
        Ok(())
    }

    fn write(&mut self, text: &str) -> Executed<()> {
        let limit = self.scope.limits.output_bytes;
        if self.output.len() + text.len() > limit {
            return Err(format!("the output exceeds the limit of {limit} bytes"));
        }
        self.output.push_str(text);
        Ok(())
    }

    fn walk_all(&mut self, nodes: &'t [Node], dot: &Value) -> Executed<Flow> {
        let mark = self.variables.len();
        let mut flow = Flow::Next;
        for node in nodes {
            flow = self.walk(node, dot)?;
            if flow != Flow::Next {
                break;
            }
        }
        self.variables.truncate(mark);
        Ok(flow)
    }

    fn walk(&mut self, node: &'t Node, dot: &Value) -> Executed<Flow> {
        self.charge(1)?;
        match node {
            Node::Text(text) => self.write(text)?,
            Node::Action(pipeline) => {
                self.at = pipeline.span;
                let value = self.pipeline(pipeline, dot)?;
                if pipeline.variables.is_empty() {
                    self.write(&printed(&value))?;
                }
            }
            Node::If(branch) | Node::With(branch) => return self.branch(node, branch, dot),
            Node::Range(branch) => {
                let mark = self.variables.len();
                let flow = self.range(branch, dot);
                self.variables.truncate(mark);
                return flow;
            }
            Node::Template { span, name, pipeline } => {
                self.at = *span;
                let data = match pipeline {
                    Some(pipeline) => self.pipeline(pipeline, dot)?,
                    None => Value::Nil,
                };
                self.include(name, data)?;
            }
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn include(&mut self, name: &str, data: Value) -> Executed<()> {
        let Some(definition) = self.defined.iter().rev().find_map(|defined| defined.get(name)) else {
            return Err(format!("template \"{name}\" not defined"));
        };
        self.enter()?;
        let outer = std::mem::replace(&mut self.variables, vec![("$".to_owned(), data.clone())]);
        // It stays after a failure, which names the place in the included text.
        let source = std::mem::replace(&mut self.source, &definition.source);
        self.walk_all(&definition.body, &data)?;
        self.source = source;
        self.variables = outer;
        self.depth -= 1;
        Ok(())
    }

    fn enter(&mut self) -> Executed<()> {
        if self.depth >= MAX_TEMPLATE_DEPTH {
            return Err(format!("exceeded the maximum template depth ({MAX_TEMPLATE_DEPTH})"));
        }
        self.depth += 1;
        Ok(())
    }

    /// The text of a defined template.
    fn included(&mut self, arguments: &[Value]) -> Executed<Value> {
        let [Value::Text(name), data] = arguments else {
            return Err("the arguments are the name of a template and its data".to_owned());
        };
        let outer = std::mem::take(&mut self.output);
        self.include(name, data.clone())?;
        Ok(Value::text(std::mem::replace(&mut self.output, outer)))
    }

    /// The text of a template that is an argument.
    fn rendered(&mut self, arguments: &[Value]) -> Executed<Value> {
        let [Value::Text(text), data] = arguments else {
            return Err("the arguments are the text of a template and its data".to_owned());
        };
        self.enter()?;
        let mut defined = Definitions::new();
        let tree = parser::parse("tpl", text, self.find, &mut defined).map_err(|error| error.to_string())?;
        let mut executor = Executor {
            source: &tree.source,
            defined: self.defined.iter().copied().chain([&defined]).collect(),
            find: self.find,
            scope: self.scope,
            output: String::new(),
            variables: vec![("$".to_owned(), data.clone())],
            steps: self.steps,
            depth: self.depth,
            at: Span::default(),
        };
        let walked = executor.walk_all(&tree.main, data);
        self.steps = executor.steps;
        self.depth -= 1;
        match walked {
            Ok(_) => Ok(Value::text(executor.output)),
            Err(reason) => Err(executor.failure(reason).to_string()),
        }
    }

    fn branch(&mut self, node: &Node, branch: &'t Branch, dot: &Value) -> Executed<Flow> {
        let mark = self.variables.len();
        self.at = branch.span;
        let value = self.pipeline(&branch.pipeline, dot)?;
        let flow = if value.is_true() {
            let dot = if matches!(node, Node::With(_)) { &value } else { dot };
            self.walk_all(&branch.body, dot)?
        } else {
            self.walk_all(&branch.otherwise, dot)?
        };
        self.variables.truncate(mark);
        Ok(flow)
    }

    fn range(&mut self, branch: &'t Branch, dot: &Value) -> Executed<Flow> {
        self.at = branch.span;
        let mark = self.variables.len();
        let value = self.pipeline(&branch.pipeline, dot)?;
        let items: Vec<(Value, Value)> = match &value {
            Value::Missing | Value::Nil => Vec::new(),
            Value::List(items) => (0..).map(Value::Integer).zip(items.iter().cloned()).collect(),
            Value::Dict(dict) => {
                dict.entries.iter().map(|(key, value)| (Value::text(key.as_str()), value.clone())).collect()
            }
            Value::Integer(count) => {
                let count = usize::try_from(*count).unwrap_or_default();
                self.charge(count)?;
                (0..).map(Value::Integer).zip((0..).map(Value::Integer)).take(count).collect()
            }
            other => return Err(format!("range can't iterate over {other}")),
        };
        if items.is_empty() {
            return self.walk_all(&branch.otherwise, dot);
        }
        self.charge(items.len())?;
        let names = &branch.pipeline.variables;
        for (key, item) in items {
            self.variables.truncate(mark);
            let values = if names.len() > 1 { vec![key, item.clone()] } else { vec![item.clone()] };
            for (name, value) in names.iter().zip(values) {
                match branch.pipeline.declares {
                    true => self.variables.push((name.clone(), value)),
                    false => self.assign(name, value),
                }
            }
            if self.walk_all(&branch.body, &item)? == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }

    fn assign(&mut self, name: &str, value: Value) {
        if let Some((_, variable)) = self.variables.iter_mut().rev().find(|(known, _)| known == name) {
            *variable = value;
        }
    }

    fn pipeline(&mut self, pipeline: &'t Pipeline, dot: &Value) -> Executed<Value> {
        self.at = pipeline.span;
        let mut value = None;
        for command in &pipeline.commands {
            value = Some(self.command(command, dot, value)?);
        }
        let value = value.unwrap_or(Value::Missing);
        for name in &pipeline.variables {
            match pipeline.declares {
                true => self.variables.push((name.clone(), value.clone())),
                false => self.assign(name, value.clone()),
            }
        }
        Ok(value)
    }

    fn command(&mut self, command: &'t Command, dot: &Value, last: Option<Value>) -> Executed<Value> {
        let Some((first, arguments)) = command.operands.split_first() else { return Ok(Value::Missing) };
        self.charge(1)?;
        match &first.term {
            Term::And | Term::Or => self.short_circuit(first, arguments, dot, last),
            Term::Function(name, function) => {
                let mut values = Vec::with_capacity(arguments.len() + 1);
                for argument in arguments {
                    values.push(self.operand(argument, dot)?);
                }
                values.extend(last);
                self.at = first.span;
                let size = values.iter().fold(0, |size: usize, value| size.saturating_add(value.extent().bytes));
                if size > MAX_VALUE_BYTES {
                    return Err(format!("{name}: the arguments exceed the limit of {MAX_VALUE_BYTES} bytes"));
                }
                self.charge(size / BYTES_OF_STEP)?;
                let value = self.call(name, *function, &values)?;
                self.check_size(name, &value)?;
                if let Some(argument) = arguments.last() {
                    self.at = argument.span;
                }
                // Go changes the map itself.
                if let ("set" | "unset", Some(Term::Variable(variable, path))) =
                    (name.as_str(), arguments.first().map(|argument| &argument.term))
                    && path.is_empty()
                {
                    self.assign(variable, value.clone());
                }
                Ok(value)
            }
            _ if arguments.is_empty() && last.is_none() => self.operand(first, dot),
            _ => self.method(first, arguments, dot, last),
        }
    }

    fn call(&mut self, name: &str, function: Function, arguments: &[Value]) -> Executed<Value> {
        let called = match function {
            Function::Native(function) => function(self.scope, arguments),
            // The place of the failure is in the included template.
            Function::Include => return self.included(arguments),
            Function::Tpl => self.rendered(arguments),
        };
        called.map_err(|reason| format!("error calling {name}: {reason}"))
    }

    /// The result of a method with arguments, such as `.Files.Get "name"`.
    fn method(
        &mut self,
        operand: &'t Operand,
        arguments: &'t [Operand],
        dot: &Value,
        last: Option<Value>,
    ) -> Executed<Value> {
        let found = match &operand.term {
            Term::Field(names) => names.split_last().map(|(name, path)| (Ok(dot.clone()), path, name)),
            Term::Variable(variable, names) => {
                names.split_last().map(|(name, path)| (self.variable(variable), path, name))
            }
            Term::Chain(inner, names) => names.split_last().map(|(name, path)| (self.operand(inner, dot), path, name)),
            _ => None,
        };
        let Some((receiver, path, name)) = found else {
            self.at = operand.span;
            return Err("can't give argument to a value that is not a function".to_owned());
        };
        let receiver = self.fields(receiver?, path)?;
        let mut values = Vec::with_capacity(arguments.len() + 1);
        for argument in arguments {
            values.push(self.operand(argument, dot)?);
        }
        values.extend(last);
        self.at = operand.span;
        let called = match &receiver {
            Value::Object(object) => object.call(name, &values)?,
            _ => None,
        };
        let Some(value) = called else {
            return Err(format!("{name} has arguments but is not a method of {}", receiver.type_name()));
        };
        self.check_size(name, &value)?;
        Ok(value)
    }

    fn variable(&self, name: &str) -> Executed<Value> {
        let found = self.variables.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).ok_or_else(|| format!("undefined variable: {name}"))
    }

    fn check_size(&mut self, name: &str, value: &Value) -> Executed<()> {
        let extent = value.extent();
        self.charge(extent.bytes / BYTES_OF_STEP)?;
        let limit = if matches!(value, Value::Text(_)) { self.scope.limits.text_bytes } else { MAX_VALUE_BYTES };
        if extent.bytes > limit {
            return Err(format!("{name}: the value exceeds the limit of {limit} bytes"));
        }
        if extent.depth > MAX_VALUE_DEPTH {
            return Err(format!("{name}: the value exceeds the limit of {MAX_VALUE_DEPTH} levels"));
        }
        Ok(())
    }

    fn short_circuit(
        &mut self,
        function: &Operand,
        arguments: &'t [Operand],
        dot: &Value,
        last: Option<Value>,
    ) -> Executed<Value> {
        let stops_at = matches!(function.term, Term::Or);
        let mut value = Value::Missing;
        if arguments.is_empty() && last.is_none() {
            return Err("wrong number of args: want at least 1 got 0".to_owned());
        }
        for argument in arguments {
            value = self.operand(argument, dot)?;
            if value.is_true() == stops_at {
                return Ok(value);
            }
        }
        Ok(last.unwrap_or(value))
    }

    fn operand(&mut self, operand: &'t Operand, dot: &Value) -> Executed<Value> {
        self.charge(1)?;
        self.at = operand.span;
        match &operand.term {
            Term::Dot => Ok(dot.clone()),
            Term::Nil => Ok(Value::Nil),
            Term::Constant(value) => Ok(value.clone()),
            Term::Field(names) => self.fields(dot.clone(), names),
            Term::Variable(name, names) => {
                let value = self.variable(name)?;
                self.fields(value, names)
            }
            Term::Function(name, function) => self.call(name, *function, &[]),
            Term::And | Term::Or => Err("wrong number of args: want at least 1 got 0".to_owned()),
            Term::Pipeline(pipeline) => self.pipeline(pipeline, dot),
            Term::Chain(operand, names) => {
                let value = self.operand(operand, dot)?;
                self.fields(value, names)
            }
        }
    }

    fn fields(&mut self, mut value: Value, names: &[String]) -> Executed<Value> {
        for name in names {
            self.charge(1)?;
            value = field(&value, name, self.scope.missing_keys)?;
        }
        Ok(value)
    }
}

fn field(value: &Value, name: &str, missing_keys: MissingKeys) -> Executed<Value> {
    match value {
        Value::Missing => Ok(Value::Missing),
        Value::Nil => Err(format!("nil pointer evaluating interface {{}}.{name}")),
        Value::Object(object) => match object.field(name)? {
            Some(value) => Ok(value),
            None => Err(format!("can't evaluate field {name} in type {}", object.type_name())),
        },
        Value::Dict(_) => match (value.entry(name), missing_keys) {
            (Some(Value::Missing) | None, MissingKeys::Null) => Ok(Value::Nil),
            (entry, _) => Ok(entry.unwrap_or(Value::Missing)),
        },
        other => Err(format!("can't evaluate field {name} in type {}", other.type_name())),
    }
}
