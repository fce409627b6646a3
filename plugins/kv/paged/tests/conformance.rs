//! The suite that every KV manager passes, called directly and through the ABI.

use foretoken_paged::{Paged, Radix};
use foretoken_plugin_api::testkit::conformance::{Fixture, kv};

#[test]
fn both_conform() {
    for options in ["", "block_size = 1", "block_size = 7", "block_size = 1000"] {
        kv::<Paged>(&Fixture::new(options)).assert_passed();
        kv::<Radix>(&Fixture::new(options)).assert_passed();
    }
}
