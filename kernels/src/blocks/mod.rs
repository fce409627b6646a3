//! What models and heads are made of: a linear, the KV memory, the buffers of a pass, a decoder layer.
//!
//! The engine's decoder and a plugin's head compose these same blocks, so a head never touches the engine and a fast
//! kernel serves everyone. Constructors check every shape and name the tensor at fault; after that a pass cannot fail.

mod decoder_layer;
pub(crate) mod kv_format;
pub(crate) mod kv_store;
mod linear;
mod workspace;

pub use decoder_layer::{DecoderLayer, DecoderLayerTensors, ForwardRows, LayerShape};
pub use kv_format::{KvDtype, RowPlaces};
pub use kv_store::{KvLayer, KvShape, KvStore, KvViewMut};
pub use linear::Linear;
pub use workspace::Workspace;
