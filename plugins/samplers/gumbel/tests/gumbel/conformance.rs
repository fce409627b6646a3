//! The testkit's suite: called directly, through the ABI, and on the library that the engine loads.

use foretoken_gumbel::Gumbel;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};

#[test]
fn gumbel_conforms() {
    conformance::sampler::<Gumbel>(&Fixture::new("")).assert_passed();
}
