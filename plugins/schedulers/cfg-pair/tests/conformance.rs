//! The suite that every scheduler passes, called directly and through the ABI.

use foretoken_cfg_pair::{CfgPair, Fcfs};
use foretoken_plugin_api::testkit::conformance::{Fixture, scheduler};

#[test]
fn both_conform() {
    let narrow = "max_num_seqs = 2\nmax_num_batched_tokens = 7\nenable_chunked_prefill = false";
    for options in ["", narrow, "num_speculative_tokens = 1"] {
        scheduler::<Fcfs>(&Fixture::new(options)).assert_passed();
        scheduler::<CfgPair>(&Fixture::new(options)).assert_passed();
    }
}
