//! Typed, keyed, incremental collections over differential dataflow
