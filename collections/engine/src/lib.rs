//! Typed, keyed collections that stay up to date by themselves.
//!
//! You say once how collections derive from one another; from then on each write costs work in proportion to what it
//! changes, and every reader sees all collections at the same moment. The engine knows nothing of what it holds: it has
//! no clock, no randomness and no I/O, and derived content is a function of the *set* of records written, never of their
//! order.
//!
//! ```
//! use sluice_engine::{Engine, EngineOptions};
//!
//! // The graph is built on the engine's own thread. What the closure returns comes back here.
//! let (engine, (pods, services, ready)) = Engine::start(EngineOptions::default(), |b| {
//!     b.dataflow("example", |g| {
//!         let (pods_in, pods) = g.input::<String, String>("pods"); // name -> service
//!         let (services_in, services) = g.input::<String, u16>("services"); // name -> port
//!
//!         // An n:m relation: the pods of each service.
//!         let by_service = pods.index("pods/by-service", |_name, service| [(service.clone(), ())]);
//!
//!         // "For this service, look up those pods": runs again when the service or one of its pods changes.
//!         let ready = services.derive("ready", |d| {
//!             let pods = d.by(&by_service);
//!             move |cx, name, port| {
//!                 let pods = cx.by(&pods, name);
//!                 (!pods.is_empty()).then(|| pods.iter().map(|(pod, _)| format!("{pod}:{port}")).collect::<Vec<_>>())
//!             }
//!         });
//!         (pods_in, services_in, ready.publish())
//!     })
//! });
//! let mut feed = engine.feed();
//!
//! services.set("web".into(), 80);
//! pods.set("web-1".into(), "web".into());
//! pods.set("web-2".into(), "web".into());
//! engine.flush(); // wait until all of this is through
//! let now = engine.snapshot();
//! assert_eq!(*now.get(&ready, &"web".into()).unwrap(), ["web-1:80", "web-2:80"]);
//!
//! // Writes of one transaction become visible together.
//! engine.transaction(|tx| {
//!     tx.delete(&pods, "web-1".into());
//!     tx.set(&pods, "web-3".into(), "web".into());
//! });
//! assert_eq!(*engine.snapshot().get(&ready, &"web".into()).unwrap(), ["web-2:80", "web-3:80"]);
//!
//! // A subscriber gets the state first, then what changed; one that was slow gets the net change.
//! let batch = feed.try_next().unwrap();
//! let event = batch.events(&ready).next().unwrap();
//! assert_eq!((event.old, event.new.unwrap().len()), (None, 2));
//! ```
//!
//! # Words
//! - A [`Collection`] has at most one value a key. It is an *input* ([`DataflowBuilder::input`]), *fixed* ([`DataflowBuilder::fixed`]), an
//!   *import* from an earlier dataflow, or derived. Values are compared by content: writing an equal one is no change,
//!   and a derived record that comes out the same is not put out.
//!   A singleton, such as settings, is a collection keyed by `()`.
//! - An [`Index`] has its rows under other keys, each with its source key.
//! - An [`Epoch`] is one consistent cut. The engine takes what is queued, runs it through, shows it, and meanwhile the
//!   next epoch gathers; there is no timer. A lone write is through at once, a storm makes larger epochs.
//! - A *dataflow* ([`GraphBuilder::dataflow`]) is a named part of the graph. An epoch runs the operators that a change
//!   reaches, each once, parents before children; one that nothing reaches costs nothing, however large the graph.
//!
//! # Two ways to derive
//! `join`, `left_join`, `group` and `join_group` are operators of differential dataflow and keep arrangements of what they
//! read; `index` keeps nothing, `count`, `distinct`, `union` and `union_merge` their rows: for relations. `derive` and `derive_many` run a
//! closure that looks things up through a [`Context`]; look-ups are recorded, found or not: for anything one would phrase
//! as "for this object, look up those". Both give a [`Collection`].
//!
//! # Rules for closures
//! - Pure: a function of the arguments and of what [`Context`] gave. They also run for values that are about to go.
//! - New keys of `flat_map`, `derive_many` and [`Index::join`] are unique over all records: make the parent's key part
//!   of them. If two records claim a key all the same, the smallest value wins and
//!   [`CollectionMetrics::conflicts`] counts it.
//! - `group` and `join_group` see all rows of a key each time one changes, and [`Context::all`] everything: not for
//!   keys with thousands of rows.
//! - A panic costs only its record: it keeps its last good output until an input of it changes, and
//!   [`Engine::panics`] names the collection and key.
//!
//! # Reading
//! [`Engine::snapshot`] gives all published collections at one epoch. A [`Feed`] gives batches of changes; it is pulled,
//! so nothing queues up for a slow reader.
//!
//! # Looking inside
//! [`Engine::graph`] lists every collection with its parents, [`Engine::metrics`] what each holds and costs,
//! [`Engine::dump`] all records of any of them as JSON while the engine runs. [`Engine::explain`] says why a record is as
//! it is, down to the inputs with their [`Origin`], and which writes last changed it.

mod builder;
mod clock;
mod collection;
mod derive;
mod dump;
mod engine;
mod explain;
mod feed;
mod flow;
mod gather;
mod index;
mod input;
mod metrics;
mod network;
mod output;
mod rows;
mod scan;
mod spines;
mod store;
mod transform;
mod value;
mod why;
mod worker;

pub use builder::{DataflowBuilder, GraphBuilder};
pub use clock::Clock;
pub use collection::{Collection, Export};
pub use derive::{Context, Dep, Deps, IndexDep};
pub use dump::{CollectionInfo, Dump};
pub use engine::{Engine, EngineOptions, Transaction};
pub use explain::{Cause, EpochSummary, Explanation, Reason, Write};
pub use feed::{Batch, Event, Feed};
pub use index::Index;
pub use input::{Input, Origin};
pub use metrics::{CollectionMetrics, EngineMetrics, PanicReport};
pub use output::{Epoch, EpochTiming, Published, Snapshot};
pub use value::{Key, Value};
