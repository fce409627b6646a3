//! The text of a seed for any draft, its law, greedy text, broken input, allocation; conformance and loading.

mod conformance;
mod game;
mod law;
mod loads;
mod rows;
mod steady;
mod text;
