//! Functions of numbers.

use crate::value::{Scope, Value};

use super::arguments::{Called, Table, at_least_one, exactly, to_float, to_integer};

pub(super) const FUNCTIONS: Table = &[
    ("add", |_, args| Ok(Value::Integer(args.iter().map(to_integer).fold(0, i64::wrapping_add)))),
    ("add1", |_, args| exactly::<1>(args).map(|[value]| Value::Integer(to_integer(value).wrapping_add(1)))),
    ("atoi", |_, args| exactly::<1>(args).map(|[value]| Value::Integer(to_integer(value)))),
    ("ceil", |_, args| exactly::<1>(args).map(|[value]| Value::Float(to_float(value).ceil()))),
    ("div", |_, args| divide(args, i64::checked_div)),
    ("float64", |_, args| exactly::<1>(args).map(|[value]| Value::Float(to_float(value)))),
    ("floor", |_, args| exactly::<1>(args).map(|[value]| Value::Float(to_float(value).floor()))),
    ("int", |_, args| exactly::<1>(args).map(|[value]| Value::Integer(to_integer(value)))),
    ("int64", |_, args| exactly::<1>(args).map(|[value]| Value::Integer(to_integer(value)))),
    ("max", |_, args| extreme(args, i64::max)),
    ("min", |_, args| extreme(args, i64::min)),
    ("mod", |_, args| divide(args, i64::checked_rem)),
    ("mul", |_, args| Ok(Value::Integer(args.iter().map(to_integer).fold(1, i64::wrapping_mul)))),
    ("round", round),
    ("sub", |_, args| {
        exactly::<2>(args).map(|[left, right]| Value::Integer(to_integer(left).wrapping_sub(to_integer(right))))
    }),
];

fn divide(args: &[Value], operation: fn(i64, i64) -> Option<i64>) -> Called {
    let [left, right] = exactly(args)?;
    let result = operation(to_integer(left), to_integer(right));
    result.map(Value::Integer).ok_or_else(|| "integer divide by zero".to_owned())
}

fn extreme(args: &[Value], choose: fn(i64, i64) -> i64) -> Called {
    let (first, others) = at_least_one(args)?;
    Ok(Value::Integer(others.iter().map(to_integer).fold(to_integer(first), choose)))
}

fn round(_: &Scope<'_>, args: &[Value]) -> Called {
    let (value, digits) = at_least_one(args)?;
    let digits = digits.first().map_or(0, to_integer).clamp(0, 15);
    let factor = 10f64.powi(i32::try_from(digits).unwrap_or_default());
    Ok(Value::Float((to_float(value) * factor).round() / factor))
}
