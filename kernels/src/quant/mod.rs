//! Quantised weights: blocks as GGUF files store them, and the panels that the kernels read.
//!
//! A file stores each row's blocks one after another. At load 16 rows are interleaved into a [`Panel`], so that one
//! vector holds the same k of 16 rows and a dot product needs no horizontal sum; without that, eight input rows cost
//! about four instructions per 64 products. A panel takes the bytes that its rows took (3% more for q4_K, whose scales
//! are unpacked from 6 bits to 8), so nothing but the copy at load is paid for it.
//!
//! `blocks` reads GGUF's blocks, `encode` makes blocks from f32, `panel` places both.

mod blocks;
mod encode;
mod panel;

pub(crate) use blocks::{BlockFormat, RowBlock};
pub(crate) use encode::encode_row;
pub(crate) use panel::{BAND, BAND_ROWS, PANEL, Pair, Panel, PanelLayout, Panels, SPAN, SUPER, meta_bytes};
