//! What crosses comes out as it went in: drafts, facts, options' errors, services of the host.

mod parts;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_plugin_api::abi::host::{HostObject, import_host};
use foretoken_plugin_api::abi::{kv, proposer, sampler, scheduler};
use foretoken_plugin_api::testkit::{FakeHost, FakeTensors, ProposerSubject, Runner, ToyModel};
use foretoken_plugin_api::{
    DType, ErrorKind, ForwardBatch, ForwardSequence, Guarantees, Host, KvFacts, LaneId, LaneNeed, LaneSource,
    LogitRows, Needs, NoiseKey, Proposer, SamplingParams, SeqId, Slot, TargetFacts, TokenText,
};
use parts::FaultOptions;
use parts::kv::Stack;
use parts::proposer::Drafter;
use parts::sampler::Sampled;
use parts::scheduler::Fcfs;

fn fake() -> Arc<FakeHost> {
    let toy = || ToyModel::new(16, 5).with_order(usize::MAX);
    let tensors = FakeTensors::new().with_config("{ \"a\": 1 }").with(
        "head.weight",
        &[2, 3, 2],
        (0..12u8).map(f32::from).collect(),
    );
    let text = |token: u8| TokenText { bytes: vec![b'a' + token], is_special: token == 1 };
    let host = FakeHost::new(toy()).with_model("draft", toy()).with_tensors("head", tensors);
    host.with_token_texts("toy", (0..16).map(text).collect()).shared()
}

fn crossed(fake: &Arc<FakeHost>) -> Host {
    import_host(HostObject::new(fake.handle()))
}

/// The drafts of twenty steps of three sequences.
fn drafts(host: &Arc<FakeHost>, part: &mut dyn ProposerSubject) -> Vec<Vec<u32>> {
    let mut runner = Runner::new(host, part, 512).unwrap().with_sampling(SamplingParams::default());
    let ids = [SeqId(1), SeqId(2), SeqId(3)];
    ids.iter().for_each(|&id| runner.admit(part, id, &[id.0 as u32, 4, 5], 2).unwrap());
    let mut all = Vec::new();
    for _ in 0..20 {
        let sink = runner.step(part, &ids, 3).unwrap();
        all.extend(sink.into_drafts().into_iter().map(|draft| draft.tokens().to_vec()));
    }
    all
}

#[test]
fn a_proposer_drafts_the_same_through_the_abi() {
    let (direct_host, abi_host) = (fake(), fake());
    let mut direct = Drafter::new(FaultOptions::default(), direct_host.handle()).unwrap();
    let mut loaded = proposer::LoadedProposer::new(proposer::export::<Drafter>, "", &abi_host.handle()).unwrap();
    let expected = drafts(&direct_host, &mut direct);
    assert!(expected.iter().any(|draft| draft.len() == 3));
    assert_eq!(drafts(&abi_host, &mut loaded), expected);
}

#[test]
fn a_draft_model_that_is_the_target_is_always_right() {
    // The toy reads its tokens back from the lane: one wrong slot anywhere and this acceptance is gone.
    for (fault, all_right) in [("", true), ("positions for slots", false)] {
        let host = fake();
        let mut part = Drafter::new(FaultOptions { fault: fault.to_owned() }, host.handle()).unwrap();
        let mut runner = Runner::new(&host, &mut part, 512).unwrap();
        runner.admit(&mut part, SeqId(1), &[1, 2, 3], usize::MAX).unwrap();
        runner.admit(&mut part, SeqId(2), &[7], usize::MAX).unwrap();
        for step in 0..30 {
            if step == 11 {
                runner.preempt(&mut part, SeqId(1)).unwrap();
            }
            runner.step(&mut part, &[SeqId(1), SeqId(2)], 3).unwrap();
        }
        let generated = runner.tokens(SeqId(1)).len() - 3;
        assert_eq!(generated == 2 + 30 * 4, all_right, "{fault:?}: {generated} tokens in 30 steps");
        let expected = host.toy().greedy_continuation(&[1, 2, 3], generated);
        assert_eq!(runner.tokens(SeqId(1))[3..], expected, "the text never depends on the proposer");
    }
}

#[test]
fn options_errors_name_the_unknown_key() {
    let (options, host) = ("falut = \"x\"", fake().handle());
    let errors = [
        proposer::LoadedProposer::new(proposer::export::<Drafter>, options, &host).err().unwrap(),
        sampler::LoadedSampler::new(sampler::export::<Sampled>, options, &host).err().unwrap(),
        scheduler::LoadedScheduler::new(scheduler::export::<Fcfs>, options, &host).err().unwrap(),
        kv::LoadedKv::new(kv::export::<Stack>, options, &KvFacts::default(), &host).err().unwrap(),
    ];
    for error in errors {
        assert_eq!(error.kind, ErrorKind::Options);
        assert!(error.message.contains("falut") && error.message.contains("fault"), "{error}");
    }
}

#[test]
fn a_refusal_keeps_its_kind_and_its_words() {
    let made = proposer::LoadedProposer::new(proposer::export::<Drafter>, "fault = \"refuse\"", &fake().handle());
    let error = made.err().unwrap();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Refused, "this target has no heads"));
}

#[test]
fn facts_roundtrip_and_skip_fields_of_later_levels() {
    let lanes = vec![
        LaneNeed { name: "kv".to_owned(), bytes_per_slot: 96, scratch_rows: 8, source: LaneSource::Plugin },
        LaneNeed { name: "h".to_owned(), bytes_per_slot: 0, scratch_rows: 0, source: LaneSource::Hidden(vec![1, 9]) },
    ];
    let needs = Needs { max_draft: 9, tree: true, draws: true, lanes, bytes_per_sequence: 7 };
    let mut json = serde_json::to_value(&needs).unwrap();
    assert_eq!(serde_json::from_value::<Needs>(json.clone()).unwrap(), needs);
    json["of_a_later_level"] = serde_json::json!({ "deep": [1, 2] });
    json["lanes"][0]["pinned"] = serde_json::json!(true);
    assert_eq!(serde_json::from_value::<Needs>(json).unwrap(), needs);
    assert_eq!(serde_json::from_str::<Needs>("{}").unwrap(), Needs::default());

    let facts = fake().handle().target();
    let mut json = serde_json::to_value(&facts).unwrap();
    json["experts"] = serde_json::json!(8);
    assert_eq!(serde_json::from_value::<TargetFacts>(json).unwrap(), facts);
    let promised = r#"{ "lossless": true, "of_a_later_level": 1 }"#;
    let expected = Guarantees { lossless: true, ..Guarantees::default() };
    assert_eq!(serde_json::from_str::<Guarantees>(promised).unwrap(), expected);
}

#[test]
fn the_host_answers_the_same_across_the_border() {
    let fake = fake();
    let (near, far) = (fake.handle(), crossed(&fake));
    assert_eq!((near.target(), near.threads()), (far.target(), far.threads()));
    let noise = |host: &Host| {
        let mut out = [0.0; 7];
        host.noise(NoiseKey::new(3, 1).for_output(9), 2, &mut out);
        out
    };
    assert_eq!(noise(&near), noise(&far));
    let sum = AtomicUsize::new(0);
    far.parallel(100, &|index| {
        sum.fetch_add(index, Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!(sum.into_inner(), 4950);

    let mut rows = vec![0.0; 32];
    far.embed(&[3, 5], &mut rows).unwrap();
    assert_eq!((rows[3], rows[16 + 5], rows.iter().sum::<f32>()), (1.0, 1.0, 2.0));
    assert!(far.embed(&[3], &mut rows).unwrap_err().message.contains("expected 16 values, got 32"));
    let mut top = [(0, 0.0); 4];
    far.lm_head_topk(&rows, 2, &mut top).unwrap();
    assert_eq!(top.map(|(token, _)| token), [3, 0, 5, 0]);

    let texts = far.token_texts("toy").unwrap();
    assert_eq!((&texts, texts[1].is_special), (&near.token_texts("toy").unwrap(), true));
    assert!(far.token_texts("nowhere").unwrap_err().message.contains("nowhere"));
    far.metric("hits", 2.0);
    far.log(2, "plugin", "careful");
    assert_eq!((fake.metrics()["hits"], fake.logs()[0].message.as_str()), (2.0, "careful"));
}

#[test]
fn tensors_and_models_cross() {
    let fake = fake();
    let host = crossed(&fake);
    let file = host.load_tensors("head").unwrap();
    assert_eq!((file.list()[0].name.as_str(), file.list()[0].shape.as_slice()), ("head.weight", &[2, 3, 2][..]));
    let view = file.view("head.weight").unwrap();
    assert_eq!((view.rows(), view.columns(), view.dtype()), (6, 2, DType::F32));
    assert_eq!(file.config(), "{ \"a\": 1 }");
    assert_eq!(view.row_f32(5).unwrap(), [10.0, 11.0]);
    assert!(file.view("head.bias").err().unwrap().message.contains("head.weight"));
    assert!(host.load_model("no/such", None).err().unwrap().message.contains("no/such"));

    let need = LaneNeed { name: "kv".to_owned(), bytes_per_slot: 4, scratch_rows: 1, source: LaneSource::Plugin };
    fake.allocate_lanes(&[need], 8);
    let model = host.load_model("draft", Some("bf16")).unwrap();
    let slots = [Slot(6), Slot(1), Slot(8)];
    let forward = [ForwardSequence::chain(&[4, 9, 2], &[], &slots, LogitRows::All)];
    let mut logits = vec![0.0; 3 * 16];
    model.forward(&ForwardBatch::new(LaneId(0), &forward), &mut logits).unwrap();
    assert_eq!(logits[32..], fake.toy().logits(&[4, 9, 2]));
    host.lanes().mark(LaneId(0), &slots[..2]).unwrap();
    assert_eq!(fake.fake_lanes().valid_until(&[Slot(6), Slot(1), Slot(2)]), [2]);
    assert!(host.lanes().mark(LaneId(0), &[Slot(9)]).unwrap_err().message.contains("row 9 of 9"));
}

#[test]
fn a_lane_is_lent_and_comes_back() {
    let fake = fake();
    let host = crossed(&fake);
    let need = LaneNeed { name: "kv".to_owned(), bytes_per_slot: 2, scratch_rows: 1, source: LaneSource::Plugin };
    fake.allocate_lanes(&[need], 3);
    let lanes = host.lanes();
    lanes
        .lend(LaneId(0), &mut |memory| {
            assert_eq!(memory.len(), 8);
            memory[4..6].copy_from_slice(&[7, 9]);
            // What is lent is nobody else's: an error, and no lock that is never opened.
            assert!(host.lanes().read(LaneId(0), &[Slot(2)], &mut [0; 2]).is_err());
            assert!(host.lanes().lend(LaneId(0), &mut |_| ()).unwrap_err().message.contains("lent"));
        })
        .unwrap();
    let mut row = [0; 2];
    lanes.read(LaneId(0), &[Slot(2)], &mut row).unwrap();
    assert_eq!(row, [7, 9]);
    let panicked = lanes.lend(LaneId(0), &mut |_| panic!("boom while it is lent")).unwrap_err();
    assert_eq!(panicked.kind, ErrorKind::Panicked);
    lanes.read(LaneId(0), &[Slot(2)], &mut row).unwrap();
    assert!(lanes.lend(LaneId(4), &mut |_| ()).is_err());
}
