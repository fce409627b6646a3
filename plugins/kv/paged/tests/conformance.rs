//! The suite that every KV manager passes, called directly and through the ABI.

use foretoken_paged::Paged;
use foretoken_plugin_api::testkit::conformance::{Fixture, kv};

#[test]
fn paged_conforms() {
    for options in ["", "block_size = 1", "block_size = 7", "block_size = 1000"] {
        kv::<Paged>(&Fixture::new(options)).assert_passed();
    }
}
