//! Erased keys and values: a content hash and a shared pointer.

use std::any::Any;
use std::cmp::Ordering;
use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// A type that can be the key of a collection: ordered, hashable, printable, shareable between threads.
pub trait Key: Ord + Hash + Clone + Debug + Serialize + Send + Sync + 'static {}
impl<T: Ord + Hash + Clone + Debug + Serialize + Send + Sync + 'static> Key for T {}

/// A type that a collection can hold. The bounds are those of [`Key`], because values are compared and hashed by
/// content.
pub trait Value: Key {}
impl<T: Key> Value for T {}

/// Ties a handle to its types without owning a value of them.
pub(crate) type TypeMarker<T> = std::marker::PhantomData<fn() -> T>;

/// The operations the engine needs on a value whose type is erased.
trait ErasedContent: Any + Send + Sync {
    fn compare(&self, other: &dyn ErasedContent) -> Ordering;
    fn debug(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    fn json(&self) -> serde_json::Value;
    fn type_name(&self) -> &'static str;
}

impl<T: Key> ErasedContent for T {
    fn compare(&self, other: &dyn ErasedContent) -> Ordering {
        match (other as &dyn Any).downcast_ref::<T>() {
            Some(other) => self.cmp(other),
            None => std::any::type_name::<T>().cmp(other.type_name()),
        }
    }

    fn debug(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(self, f)
    }

    fn json(&self) -> serde_json::Value {
        // A map with structured keys has no JSON form; its Debug text is used instead.
        serde_json::to_value(self).unwrap_or_else(|_| serde_json::Value::String(format!("{self:?}")))
    }

    fn type_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }
}

/// A key or value of erased type. The typed handles ([`Collection`](crate::Collection), …) restore the type.
///
/// It orders by hash first, so that merges of arrangements rarely compare contents. Hashes have a fixed seed: the order
/// is the same in every process, but it has no meaning, and nothing that a user sees is in this order.
#[derive(Clone)]
pub(crate) struct Erased {
    hash: u64,
    value: Arc<dyn ErasedContent>,
}

impl Erased {
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

    /// The value as its type. Types are fixed when the graph is built, so a mismatch is a bug of the engine.
    pub(crate) fn get<T: Key>(&self) -> &T {
        match (&*self.value as &dyn Any).downcast_ref::<T>() {
            Some(value) => value,
            None => unreachable!("{} instead of {}", self.value.type_name(), std::any::type_name::<T>()),
        }
    }

    /// The value, if it has this type.
    pub(crate) fn downcast<T: Key>(&self) -> Option<&T> {
        (&*self.value as &dyn Any).downcast_ref()
    }

    pub(crate) fn as_pair(&self) -> Option<&Pair> {
        (&*self.value as &dyn Any).downcast_ref::<Pair>()
    }

    pub(crate) fn arc<T: Key>(&self) -> Arc<T> {
        let any: Arc<dyn Any + Send + Sync> = self.value.clone();
        match any.downcast::<T>() {
            Ok(value) => value,
            Err(_) => unreachable!("{} instead of {}", self.value.type_name(), std::any::type_name::<T>()),
        }
    }

    pub(crate) fn hash64(&self) -> u64 {
        self.hash
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        self.value.json()
    }

    /// Compares by content: the order that users see.
    pub(crate) fn by_content(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.value, &other.value) { Ordering::Equal } else { self.value.compare(&*other.value) }
    }
}

impl PartialEq for Erased {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.by_content(other).is_eq()
    }
}

impl Eq for Erased {}

impl PartialOrd for Erased {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Erased {
    fn cmp(&self, other: &Self) -> Ordering {
        self.hash.cmp(&other.hash).then_with(|| self.by_content(other))
    }
}

impl Hash for Erased {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Debug for Erased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.debug(f)
    }
}

impl Serialize for Erased {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

/// Two erased values as one: an index row (source key, row), or a joined pair of values. No user value has this type.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct Pair(pub(crate) Erased, pub(crate) Erased);

/// An erased key that orders by content: the order that users see.
#[derive(Clone, Debug)]
pub(crate) struct ContentOrdered(pub(crate) Erased);

impl PartialEq for ContentOrdered {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for ContentOrdered {}

impl PartialOrd for ContentOrdered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ContentOrdered {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.by_content(&other.0)
    }
}

/// A hasher that passes on the hash an [`Erased`] value already has.
#[derive(Clone, Copy, Default)]
pub(crate) struct PrecomputedHasher(u64);

impl Hasher for PrecomputedHasher {
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

pub(crate) type PrecomputedHash = std::hash::BuildHasherDefault<PrecomputedHasher>;
pub(crate) type ErasedMap<T> = std::collections::HashMap<Erased, T, PrecomputedHash>;
