//! Typed, keyed collections that are updated incrementally.
//!
//! The caller states once how collections derive from one another. From then on each write costs work in proportion to
//! what it changes, and every reader sees all collections at the same epoch. The engine knows nothing about the content
//! of its collections. It has no randomness and no I/O, and reads a clock for metrics and time-outs only. Derived
//! content is a function of the *set* of written records, never of their order.
//!
//! ```
//! use sluice_engine::{Engine, EngineOptions};
//!
//! // The closure builds the graph on the dataflow thread. `start` returns what it returns.
//! let (engine, (pods, services, ready)) = Engine::start(EngineOptions::default(), |b| {
//!     b.dataflow("example", |g| {
//!         let (pods_in, pods) = g.input::<String, String>("pods"); // name -> service
//!         let (services_in, services) = g.input::<String, u16>("services"); // name -> port
//!
//!         // The pods of each service.
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
//! engine.flush(); // waits until these writes are committed
//! let now = engine.snapshot();
//! assert_eq!(*now.get(&ready, &"web".into()).unwrap(), ["web-1:80", "web-2:80"]);
//!
//! // The writes of a transaction become visible together.
//! engine.transaction(|tx| {
//!     tx.delete(&pods, "web-1".into());
//!     tx.set(&pods, "web-3".into(), "web".into());
//! });
//! assert_eq!(*engine.snapshot().get(&ready, &"web".into()).unwrap(), ["web-2:80", "web-3:80"]);
//!
//! // A subscriber gets the state first, then the changes; a slow subscriber gets the net change.
//! let batch = feed.try_next().unwrap();
//! let event = batch.events(&ready).next().unwrap();
//! assert_eq!((event.old, event.new.unwrap().len()), (None, 2));
//! ```
//!
//! # Terms
//! - A [`Collection`] has at most one value per key. It is an *input* ([`DataflowBuilder::input`]), *fixed*
//!   ([`DataflowBuilder::fixed`]), or derived. Values are compared by content: writing an equal value is no change, and
//!   a derived record with an equal value causes no update. A singleton, such as settings, is a collection with key
//!   `()`.
//! - An [`Index`] has the rows of a collection under other keys, each with its source key.
//! - An [`Epoch`] is a consistent cut. The engine takes the queued writes, runs them through the graph and publishes
//!   the result; meanwhile the writes of the next epoch queue up. There is no debounce timer: a single write is
//!   committed at once, and many writes make larger epochs.
//! - A *dataflow* ([`GraphBuilder::dataflow`]) is a named part of the graph. Collections of one dataflow are not
//!   visible in another. In an epoch each operator runs at most once, parents before children, and only if an update
//!   reaches it.
//!
//! # Operators, and which of them are differential dataflow's
//! | operation | implementation | state it keeps |
//! |---|---|---|
//! | [`Collection::join`], [`Index::join`] | differential's `join_core` over two arrangements (`arrange_core`) | the arrangements |
//! | [`Index::group`] | differential's `reduce_core` over an arrangement | the arrangements of rows and of values |
//! | [`Collection::map`], [`filter`](Collection::filter), [`filter_map`](Collection::filter_map), [`flat_map`](Collection::flat_map), [`index`](Collection::index) | the engine's, one record at a time (`operators/record.rs`) | none, except owners of renamed keys |
//! | [`Collection::union`], [`union_merge`](Collection::union_merge) | the engine's (`operators/merge.rs`) | the rows of the parents |
//! | [`Collection::union_disjoint`] | the engine's (`operators/disjoint.rs`) | none |
//! | [`Index::distinct`] | the engine's (`operators/distinct.rs`) | a count per key |
//! | [`Collection::group_chunks`] | the engine's (`operators/chunk.rs`) | the keys in order, the last outputs, the rows of its parent |
//! | [`Collection::restrict`] | the engine's (`operators/restrict.rs`) | the rows, their keys by group while not all pass |
//! | [`Collection::incremental`] | the user's, an [`Incremental`] | that of the user, the last outputs, the rows of its parent |
//! | [`Collection::derive`], [`derive_many`](Collection::derive_many) | the engine's (`operators/lookup.rs`) | hashes of look-ups, the filters of fetches, the last outputs, one store per collection or index looked up |
//!
//! The engine also uses differential's update triples `(record, time, diff)` and their consolidation everywhere, its
//! input sessions, and the traces of its arrangements for dumps and explanations.
//!
//! Reasons for the engine's own parts:
//! - *Scheduling* (`network.rs`). Each differential operator runs in a small timely dataflow of its own, as one
//!   operator of the engine's network. In one timely dataflow, every epoch advances the frontier of every operator of
//!   the graph, even of those that no update reaches.
//! - *Unions and `distinct`*. No other operator reads their input rows by key, so arrangements would only cost memory.
//! - *`restrict`*. A join would copy each record, and keep arrangements of both sides.
//! - *`group_chunks`*. Differential's `reduce` reads all rows of a key, and orders them by hash.
//! - *`derive`*. Look-ups depend on data that was looked up before, which a fixed join plan cannot express without
//!   materialising every intermediate relation. `derive` is also cheaper for small fan-outs: `benches/README.md` has
//!   the figures of both forms of one composite (index, join and group, and the same by `derive`), and of each
//!   operator.
//!
//! Use relations (`join`, `group`, `union`, …) where the relation itself is wanted, and `derive` for "for this object,
//! look up those objects". Both return a [`Collection`].
//!
//! # Cost
//! - A write costs the epoch a queue entry and a comparison with the present value. An epoch visits only the operators that a
//!   change reaches.
//! - An operator on records (`map`, `filter`, `index`, …) costs one call of its closure for each changed record. `derive` costs
//!   one call for each changed record and for each record that has looked up something that changed: a closure that looks up
//!   one record is called once when that record changes, however many records there are. For a fetch by a condition, each
//!   changed record is tested against each such fetch of the collection: prefer a key or an index.
//! - `join` costs the pairs of each changed record, `group` the rows of each changed key.
//! - Memory is the records of inputs and published collections, the arrangements and stores of the table above, and for each
//!   record of a `derive` the hashes of what it looked up. Values are shared, not copied.
//! - A snapshot costs nothing to take: it shares the collections of its epoch, and keeps them in memory while it exists.
//!
//! `benches/README.md` has the figures, and `benches/results/controllers.md` those of the workload of krt's own bench.
//!
//! # Errors
//! Operations on a running engine return no errors, because they do no I/O. A panic of the closure that builds the graph
//! continues in the caller of [`Engine::start`]. What can go wrong with data has a place:
//! - Invalid input is a record: derive a collection of problems beside that of results. It is corrected like any other
//!   record.
//! - A closure that panics keeps the last output of its record ([`Engine::panics`]), and a handler that panics is not called
//!   again ([`HandlerRegistration::panic`]).
//! - Two records of one output key are a conflict, which [`CollectionMetrics::conflicts`] counts.
//! - A write to an engine that has stopped is ignored, and waits for it return.
//!
//! # Limits
//! - The dataflow has one thread. Epochs are as long as their closures run: a closure must not block.
//! - All collections are in memory. Nothing is stored on disk, and an engine starts empty.
//! - The graph cannot change while it runs; records and [`Members`] can.
//! - A cycle of collections is not possible: a collection derives from those that were made before it.
//! - Events between two reads of a subscriber are merged. A history of every event is not kept
//!   ([`Engine::explain`] has the last write of each record).
//!
//! # Examples
//! `cargo run -p sluice-engine --example NAME` runs them, from `collections/engine/examples`:
//! - `endpoints`: Services × Pods → endpoints by labels, with collections that code writes, and a handler.
//! - `config_directory`: a directory of files that is followed, with a collection of their problems.
//! - `status_controller`: informers of Services and Pods, and a condition in the status of each Service, written by the replica
//!   that leads.
//!
//! # A controller
//! A controller needs sources, a graph, and handlers. The crate `sluice-controller` has sources for files and the Kubernetes
//! API, and a writer of statuses:
//! - A *source* is code outside the engine that writes an [`Input`]. A source replaces everything when it has read everything
//!   again ([`Input::replace_all`]), which causes changes only where something differs, and then calls
//!   [`Input::mark_synced`].
//! - The *graph* is built once. What comes and goes, such as clusters, are records, not collections: [`Members`] is a set of
//!   collections that changes while the engine runs.
//! - A *handler* ([`Engine::register`]) is called with the changes of a published collection, on a thread of its own. Code on
//!   an async runtime awaits [`Feed::next`] instead.
//!
//! # Fetches
//! A closure of [`derive`](Collection::derive) reads other collections with [`Context::get`] (a key), [`Context::by`] (an
//! index key), [`Context::fetch`] and [`Context::fetch_by`] (a [`RecordFilter`]: keys, labels, selectors, any condition). It
//! runs again when a change concerns what it read: for a filter, when a record passes it before or after the change.
//! [`Context::fetch_part`] limits that to changes of a part of each record, and [`Context::exists`] to its presence.
//!
//! # Coming from krt
//! Istio's `krt` has the same purpose. Its operations and their counterparts here; `tests/conformance.rs` covers them:
//!
//! | krt | here |
//! |---|---|
//! | `NewCollection`, `NewManyCollection`, `MapCollection` | [`Collection::derive`] or `filter_map`, `derive_many` or `flat_map`, `map` |
//! | `NewSingleton`, `NewManyFromNothing` | [`DataflowBuilder::singleton`], [`DataflowBuilder::derive_all`] |
//! | `NewStatusCollection`, `NewStatusManyCollection`, `ObjectWithStatus` | [`Collection::derive_with_status`], [`Collection::derive_many_with_status`], [`ObjectWithStatus`] |
//! | `Fetch`, `FetchOne`, `ResourceExists`, `Index.Fetch` | [`Context::fetch`], [`Context::fetch_one`] or `get`, [`Context::exists`], [`Context::fetch_by`] or `by` |
//! | `FetchOrList` without a context | [`Snapshot::fetch`] |
//! | `FilterObjectName`, `FilterKey`, `FilterKeys` | [`RecordFilter::key`] with a [`NamespacedName`], [`RecordFilter::keys`] |
//! | `FilterLabel`, `FilterSelects`, `FilterSelectsNonEmpty`, `FilterGeneric` | [`RecordFilter::labels`], [`RecordFilter::selects`], [`RecordFilter::selects_non_empty`], [`RecordFilter::matching`] |
//! | `FilterIndex` | [`Context::fetch_by`] |
//! | `PartialFetch`, `PartialFetchComparable` | [`Context::fetch_part`]; or `map` to the part that matters, and look that up |
//! | `DiscardResult` | [`Context::discard_result`] |
//! | `NewIndex`, `NewNamespaceIndex`, `Index.AsCollection`, `FetchIndexObjects` | [`Collection::index`], [`Collection::by_namespace`], [`Index::collect`] or [`Index::group`], `get` of that |
//! | `JoinCollection`, also with `WithJoinUnchecked` | [`Collection::union`], [`Collection::union_disjoint`] |
//! | `JoinWithMergeCollection`, `NestedJoinWithMergeCollection` | [`Collection::union_merge`], [`Collection::merge_members`] of [`DataflowBuilder::members`] |
//! | `NewStatic`, `NewStaticCollection`: `UpdateObject`, `DeleteObject`, `DeleteObjects`, `Reset` | [`DataflowBuilder::input_with`]: [`Input::set`], [`Input::delete`], [`Transaction::delete_where`], [`Input::replace_all`] |
//! | `ConditionalUpdateObject` | [`Input::set`]: an equal value is never a change |
//! | `NewInformer`, `NewFilteredInformer`, `WrapClient` | `Informer` of the crate `sluice-controller` |
//! | `FolderWatch` with `FileCollection`, `FileSingleton` | `FolderSource`, `FileSource` of `sluice-controller` |
//! | `StatusCollections`, `RegisterStatus` | [`Collection::status_changes`], and `StatusWriter` of `sluice-controller` |
//! | `RecomputeTrigger`, `RecomputeProtected` | [`Trigger`] with [`Context::depend_on`], [`Protected`] |
//! | `WithName`, `WithMetadata`, `OptionsBuilder` | the name argument of each operation, [`Collection::with_metadata`], [`DataflowBuilder::with_prefix`] |
//! | `WithObjectAugmentation` | [`Labeled`], [`LabelSelecting`], [`Namespaced`] for the value or the key |
//! | `Register`, `RegisterBatch`, `UnregisterHandler` | [`Engine::register`], [`Engine::register_batch`], [`HandlerRegistration`], [`Feed`] |
//! | `HasSynced`, `WaitUntilSynced` of collections and handlers | [`Snapshot::is_synced`], [`Engine::wait_synced_of`], [`HandlerRegistration::wait_synced`] |
//! | `GetKey`, `List`, `Metadata` | [`Snapshot::get`], [`Snapshot::iter`], [`Engine::graph`] |
//! | `DebugHandler`, `WithDebugging` | [`DebugHandler`] |
//! | `WithStop` | the engine stops when its last handle is dropped |
//!
//! What differs, because all collections change together in epochs:
//! - A closure that reads several collections never sees one of them at an earlier time than another, and runs once for all
//!   changes of an epoch.
//! - A handler that does not keep up gets the net change since its last call, so that no queue grows without limit. An object
//!   that is added and removed between two calls is not reported.
//! - If two records make the same output key, the smaller value wins, in any order of arrival; in krt that is undefined.
//! - A status is discarded together with the output of a run, and a singleton has the key `()`: another value is an update.
//!
//! # Rules for closures
//! - A closure is pure: its result depends only on its arguments and on what [`Context`] returns. It also runs for
//!   values that are being removed.
//! - New keys of `flat_map`, `derive_many` and [`Index::join`] are unique over all records: make the parent's key a
//!   part of them. If two records make the same key, the smallest value wins and [`CollectionMetrics::conflicts`]
//!   counts it.
//! - The closure of `group` reads all rows of a key each time one changes, and [`Context::all`] reads all records: not
//!   for thousands of rows.
//! - A panic affects only its record: the record keeps its last good output until an input of it changes, and
//!   [`Engine::panics`] names the collection and the key.
//!
//! # Reading
//! [`Engine::snapshot`] returns all published collections at one epoch. A [`Feed`] returns a batch of changes when the
//! reader takes the next one, so nothing is queued for a slow reader.
//!
//! # Inspection
//! [`Engine::graph`] lists every collection with its parents, [`Engine::metrics`] the size and the cost of each, and
//! [`Engine::dump`] all records of any of them as JSON while the engine runs. [`Engine::explain`] reports the records
//! that a record derives from, down to the inputs with their [`Origin`], and the writes that last changed it.
//! [`Engine::derivations`] reports the same for all records of a collection, one step back.
//! [`Engine::inputs`] returns all inputs at one epoch, and [`Engine::start_copy`] starts a second engine of the same graph in
//! the state of a running one, to try changes there. [`DebugDump`] serialises all
//! collections in the form of krt's debug page, and a [`DebugHandler`] those of all engines of a program.
//!
//! # Modules
//! A module uses only modules of the lines above it:
//! - values: `value`, `update`, `epoch`, `clock`, `metrics`, `options`, `filter`
//! - state: `rows`, `store`, `copied_state`, `spines` (differential dataflow)
//! - operators: `operators`, `network`
//! - the graph: `node`, `input_state`, `input_snapshot`, `output`, `engine_state`, `explanation`, `feed`, `command`, `build`
//! - typed handles: `collection`, `operations`, `input`, `builder`, `names`, `trigger`, `members`
//! - running: `worker` (the dataflow thread), `dump`, `engine`, `inspect`, `derivations`, `handlers`, `debug`

mod build;
mod builder;
mod clock;
mod collection;
mod command;
mod copied_state;
mod debug;
mod derivations;
mod dump;
mod engine;
mod engine_state;
mod epoch;
mod explanation;
mod feed;
mod filter;
mod handlers;
mod input;
mod input_snapshot;
mod input_state;
mod inspect;
mod members;
mod metrics;
mod names;
mod network;
mod node;
mod operations;
mod operators;
mod options;
mod output;
mod rows;
mod spines;
mod store;
mod trigger;
mod update;
mod value;
mod worker;

pub use builder::{DataflowBuilder, GraphBuilder};
pub use clock::Clock;
pub use collection::{Collection, Index};
pub use debug::{DebugDump, DebugHandler};
pub use derivations::{Derivation, Derivations, KeysRead};
pub use dump::{CollectionInfo, Dump};
pub use engine::{Engine, Transaction};
pub use engine_state::CopyError;
pub use epoch::{Epoch, EpochTiming, Origin};
pub use explanation::{Cause, ChangedKeys, EpochSummary, Explanation, HistoryQuery, Reason, Write};
pub use feed::{Batch, Event, EventKind, Feed};
pub use filter::{LabelSelecting, Labeled, RecordFilter};
pub use handlers::{ExistingState, HandlerRegistration};
pub use input::Input;
pub use input_snapshot::InputsSnapshot;
pub use input_state::InputRecord;
pub use members::{Member, MemberCollections, Members};
pub use metrics::{CollectionMetrics, EngineMetrics, PanicReport};
pub use names::{InvalidName, Namespaced, NamespacedName};
pub use operations::derive::Deps;
pub use operations::status::{ObjectWithStatus, StatusAndOutput, StatusChange};
pub use operators::incremental::Incremental;
pub use operators::lookup::{Context, Dep, IndexDep};
pub use options::{EngineOptions, HistoryLimits};
pub use output::{Published, Snapshot};
pub use trigger::{Protected, Trigger};
pub use value::{Key, Value};
