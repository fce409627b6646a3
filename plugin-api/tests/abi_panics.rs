//! Panics at the border: contained in the library that panicked, reported, and the instance poisoned.
//!
//! Every test here would abort the whole process if a guard were missing, which fails the run as loudly as an assertion.

mod parts;

use std::sync::Arc;

use foretoken_plugin_api::abi::host::{HostObject, import_host};
use foretoken_plugin_api::abi::model::ModelObject;
use foretoken_plugin_api::abi::{kv, proposer, sampler, scheduler};
use foretoken_plugin_api::testkit::{FakeHost, RecordingPlan, ToyModel};
use foretoken_plugin_api::{
    CommitBatch, Drafts, ErrorKind, ForwardBatch, Host, KvFacts, KvStats, LaneId, ModelApi, ModelFacts, NoiseKey, Plan,
    ProposeBatch, QueueView, Result, SeqId, StepReport, TargetFacts, TensorView, Verdicts, VerifyBatch,
};
use parts::bomb::Bomb;
use parts::panicking_host::{PanickingHost, PanickingService, Sink};

fn options(at: &str) -> String {
    format!("at = {at:?}")
}

fn fake() -> Host {
    FakeHost::new(ToyModel::new(16, 1)).shared().handle()
}

type Call<T> = (&'static str, fn(&mut T) -> Result<()>);

/// The bombed callback panics, and from then on no callback runs; the others ran before.
fn assert_poisons<T>(calls: &[Call<T>], make: impl Fn(&str) -> Result<T>) {
    for (bombed, call) in calls {
        for at in [bombed.to_string(), format!("{bombed} with payload")] {
            let mut part = make(&at).unwrap();
            for (name, call) in calls.iter().filter(|(name, _)| name != bombed) {
                call(&mut part).unwrap_or_else(|error| panic!("{name} before {bombed} panicked: {error}"));
            }
            let error = call(&mut part).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Panicked, "{error}");
            assert!(error.message.contains(bombed), "{error}");
            for (name, call) in calls {
                let error = call(&mut part).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Poisoned, "{name} after {bombed} panicked: {error}");
            }
        }
    }
    for at in ["new", "new with payload"] {
        assert_eq!(make(at).err().unwrap().kind, ErrorKind::Panicked);
    }
    for at in ["drop", "drop with payload"] {
        drop(make(at).unwrap());
    }
}

#[test]
fn a_proposer_that_panics_is_poisoned() {
    let calls: [Call<proposer::LoadedProposer>; 4] = [
        ("propose", |part| part.propose(ProposeBatch::new(&[]), &mut Drafts::new(&mut Sink))),
        ("commit", |part| part.commit(CommitBatch::new(&[]))),
        ("finish", |part| part.finish(SeqId(1))),
        ("needs", |part| part.needs().map(drop)),
    ];
    assert_poisons(&calls, |at| proposer::LoadedProposer::new(proposer::export::<Bomb>, &options(at), &fake()));
}

fn verify(part: &mut sampler::LoadedSampler) -> Result<()> {
    let empty = TensorView::from_f32(&[], 0, 1);
    let (mut next, mut lens, mut keep) = ([0], [0], [0; 4]);
    part.verify(VerifyBatch::new(empty, empty, &[]), &mut Verdicts::new(&mut next, &mut lens, &mut keep, 4))
}

#[test]
fn a_sampler_that_panics_is_poisoned() {
    let calls: [Call<sampler::LoadedSampler>; 2] =
        [("verify", verify), ("guarantees", |part| part.guarantees().map(drop))];
    assert_poisons(&calls, |at| sampler::LoadedSampler::new(sampler::export::<Bomb>, &options(at), &fake()));
}

#[test]
fn a_scheduler_that_panics_is_poisoned() {
    let calls: [Call<scheduler::LoadedScheduler>; 3] = [
        ("schedule", |part| {
            let mut plan = RecordingPlan::default();
            part.schedule(QueueView::new(&[], KvStats::default()), &mut Plan::new(&mut plan))
        }),
        ("observe", |part| part.observe(StepReport::new(&[], 0, 0, 0))),
        ("supports_pairs", |part| part.supports_pairs().map(drop)),
    ];
    assert_poisons(&calls, |at| scheduler::LoadedScheduler::new(scheduler::export::<Bomb>, &options(at), &fake()));
}

#[test]
fn a_kv_manager_that_panics_is_poisoned() {
    let calls: [Call<kv::LoadedKv>; 10] = [
        ("admit", |part| part.admit(SeqId(1), &[]).map(drop)),
        ("reserve", |part| part.reserve(SeqId(1), 1)),
        ("slots", |part| part.slots(SeqId(1)).map(drop)),
        ("commit", |part| part.commit(SeqId(1), &[], &[])),
        ("rollback", |part| part.rollback(SeqId(1))),
        ("fork", |part| part.fork(SeqId(1), SeqId(2))),
        ("free", |part| part.free(SeqId(1))),
        ("stats", |part| part.stats().map(drop)),
        ("check", |part| part.check()),
        ("can_rollback", |part| part.can_rollback().map(drop)),
    ];
    let facts = KvFacts { num_slots: 4 };
    assert_poisons(&calls, |at| kv::LoadedKv::new(kv::export::<Bomb>, &options(at), &facts, &fake()));
}

#[test]
fn a_sampler_that_keeps_more_than_there_is_room_for_is_contained() {
    let mut part = sampler::LoadedSampler::new(sampler::export::<Bomb>, &options("too many kept"), &fake()).unwrap();
    let error = verify(&mut part).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Panicked);
    assert!(error.message.contains("more than 4 nodes"), "{error}");
}

fn propose(at: &str, host: Host) -> [Result<()>; 2] {
    let mut part = proposer::LoadedProposer::new(proposer::export::<Bomb>, &options(at), &host).unwrap();
    // The part's handle is now the last one, so the host is dropped behind the border.
    drop(host);
    [(); 2].map(|()| part.propose(ProposeBatch::new(&[]), &mut Drafts::new(&mut Sink)))
}

#[test]
fn a_task_on_the_pool_that_panics_is_the_plugins_own_panic() {
    for at in ["task", "task with payload"] {
        let [first, second] = propose(at, fake()).map(|result| result.unwrap_err().kind);
        assert_eq!((first, second), (ErrorKind::Panicked, ErrorKind::Poisoned), "{at}");
    }
}

#[test]
fn a_host_that_panics_is_an_error_and_does_not_poison_the_plugin() {
    for error in propose("host", Host::new(Arc::new(PanickingHost))).map(Result::unwrap_err) {
        assert_eq!(error.kind, ErrorKind::Failed, "{error}");
        assert!(error.message.contains("the host panicked in embed: boom in the host"), "{error}");
    }
    for error in propose("sink", fake()).map(Result::unwrap_err) {
        assert_eq!(error.kind, ErrorKind::Failed, "{error}");
    }
}

#[test]
fn every_service_of_a_host_that_panics_returns() {
    let host = import_host(HostObject::new(Host::new(Arc::new(PanickingHost))));
    assert_eq!((host.target(), host.threads()), (TargetFacts::default(), 1));
    host.noise(NoiseKey::new(1, 0), 0, &mut [0.0]);
    host.metric("name", 1.0);
    host.log(1, "target", "message");
    assert_eq!(host.lanes().rows(LaneId(0)), 0);
    let results = [
        host.parallel(1, &|_| {}),
        host.model_facts("m").map(drop),
        host.load_model("m", None).map(drop),
        host.load_tensors("t").map(drop),
        host.lm_head(&[], &mut []),
        host.lm_head_topk(&[], 1, &mut []),
        host.lanes().mark(LaneId(0), &[]),
    ];
    assert!(results.into_iter().all(|result| result.unwrap_err().message.starts_with("the host panicked in")));
}

#[test]
fn a_model_that_panics_returns() {
    let model = ModelObject::new(Arc::new(PanickingService));
    assert_eq!(model.facts(), ModelFacts::default());
    let batch = ForwardBatch::new(LaneId(0), &[]);
    assert!(model.forward(&batch, &mut []).unwrap_err().message.contains("boom in the host"));
}
