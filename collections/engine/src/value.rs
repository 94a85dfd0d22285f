//! Erased keys and values: a content hash and a shared pointer.

use std::any::Any;
use std::cmp::Ordering;
use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// What a collection may be keyed by: ordered, hashable, printable, shareable.
pub trait Key: Ord + Hash + Clone + Debug + Serialize + Send + Sync + 'static {}
impl<T: Ord + Hash + Clone + Debug + Serialize + Send + Sync + 'static> Key for T {}

/// What a collection may hold. The same as [`Key`]: values are compared and hashed by content.
pub trait Value: Key {}
impl<T: Key> Value for T {}

/// Names the types a handle stands for, without owning any.
pub(crate) type Types<T> = std::marker::PhantomData<fn() -> T>;

/// What the engine needs of a value whose type it has forgotten.
trait Erased: Any + Send + Sync {
    fn compare(&self, other: &dyn Erased) -> Ordering;
    fn debug(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    fn json(&self) -> serde_json::Value;
    fn type_name(&self) -> &'static str;
}

impl<T: Key> Erased for T {
    fn compare(&self, other: &dyn Erased) -> Ordering {
        match (other as &dyn Any).downcast_ref::<T>() {
            Some(other) => self.cmp(other),
            None => std::any::type_name::<T>().cmp(other.type_name()),
        }
    }

    fn debug(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(self, f)
    }

    fn json(&self) -> serde_json::Value {
        // A map with structured keys has no JSON form; its Debug text is better than nothing.
        serde_json::to_value(self).unwrap_or_else(|_| serde_json::Value::String(format!("{self:?}")))
    }

    fn type_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }
}

/// A key or value whose type is known only to the typed face above it.
///
/// It orders by hash first, so merges of arrangements hardly ever look at contents. Hashes have a fixed seed: the order
/// is the same in every process, but it means nothing, so nothing a user sees is ever in this order.
#[derive(Clone)]
pub(crate) struct Dyn {
    hash: u64,
    value: Arc<dyn Erased>,
}

impl Dyn {
    pub(crate) fn new<T: Key>(value: T) -> Self {
        Self::shared(Arc::new(value))
    }

    pub(crate) fn shared<T: Key>(value: Arc<T>) -> Self {
        let mut hasher = rapidhash::quality::RapidHasher::default();
        value.hash(&mut hasher);
        Self { hash: hasher.finish(), value }
    }

    pub(crate) fn pair(first: &Self, second: &Self) -> Self {
        Self::new(Pair(first.clone(), second.clone()))
    }

    /// The value, of the type it was made of. Types are fixed when the graph is built, so a mismatch is a bug here.
    pub(crate) fn get<T: Key>(&self) -> &T {
        match (&*self.value as &dyn Any).downcast_ref::<T>() {
            Some(value) => value,
            None => unreachable!("{} where {} belongs", self.value.type_name(), std::any::type_name::<T>()),
        }
    }

    pub(crate) fn as_pair(&self) -> Option<&Pair> {
        (&*self.value as &dyn Any).downcast_ref::<Pair>()
    }

    pub(crate) fn arc<T: Key>(&self) -> Arc<T> {
        let any: Arc<dyn Any + Send + Sync> = self.value.clone();
        match any.downcast::<T>() {
            Ok(value) => value,
            Err(_) => unreachable!("{} where {} belongs", self.value.type_name(), std::any::type_name::<T>()),
        }
    }

    pub(crate) fn hash64(&self) -> u64 {
        self.hash
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        self.value.json()
    }

    /// Compares by content, the order users see.
    pub(crate) fn by_content(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.value, &other.value) { Ordering::Equal } else { self.value.compare(&*other.value) }
    }
}

impl PartialEq for Dyn {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.by_content(other).is_eq()
    }
}

impl Eq for Dyn {}

impl PartialOrd for Dyn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Dyn {
    fn cmp(&self, other: &Self) -> Ordering {
        self.hash.cmp(&other.hash).then_with(|| self.by_content(other))
    }
}

impl Hash for Dyn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Debug for Dyn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.debug(f)
    }
}

impl Serialize for Dyn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

/// Two erased values as one: an index row (source key, row), a joined pair.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct Pair(pub(crate) Dyn, pub(crate) Dyn);

/// An erased key in the order users see.
#[derive(Clone, Debug)]
pub(crate) struct ByContent(pub(crate) Dyn);

impl PartialEq for ByContent {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for ByContent {}

impl PartialOrd for ByContent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByContent {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.by_content(&other.0)
    }
}

/// Takes the hash a [`Dyn`] already has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = self.0.rotate_left(17) ^ value;
    }

    fn write_u32(&mut self, value: u32) {
        self.0 ^= u64::from(value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(crate) type ReadyState = std::hash::BuildHasherDefault<Ready>;
pub(crate) type DynMap<T> = std::collections::HashMap<Dyn, T, ReadyState>;
