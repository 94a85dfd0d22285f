//! What derives from what: the collections of the mesh
