//! The law of the rules, exactly and by histogram; their mutants; greedy text, broken input, allocation; conformance and
//! loading.

mod block;
mod conformance;
mod enumerate;
mod greedy;
mod laws;
mod loads;
mod mutants;
mod play;
mod reference;
mod script;
mod steady;
mod world;
