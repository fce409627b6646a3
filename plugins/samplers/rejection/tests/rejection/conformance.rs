//! The testkit's suite, called directly and through the ABI.

use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_rejection::{Block, Rejection};

#[test]
fn rejection_conforms() {
    conformance::sampler::<Rejection>(&Fixture::new("")).assert_passed();
}

#[test]
fn block_conforms() {
    conformance::sampler::<Block>(&Fixture::new("")).assert_passed();
}
