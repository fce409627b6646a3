//! An engine whose every service panics.

use std::sync::Arc;

use foretoken_plugin_api::author::DraftSink;
use foretoken_plugin_api::author::host::LanesApi;
use foretoken_plugin_api::{
    DraftError, ForwardBatch, HostApi, ModelApi, ModelFacts, NodeId, NoiseKey, Result, TargetFacts, TensorsApi, Token,
};

use super::bomb::Payload;

/// A sink that panics, as a faulty engine's would.
pub struct Sink;

impl DraftSink for Sink {
    fn push(&mut self, _: usize, _: Option<NodeId>, _: Token) -> Result<NodeId, DraftError> {
        std::panic::panic_any(Payload)
    }

    fn draw(&mut self, _: usize, _: Option<NodeId>, _: &[f32]) -> Result<(NodeId, Token), DraftError> {
        panic!("boom in the sink")
    }

    fn draw_n(
        &mut self,
        _: usize,
        _: Option<NodeId>,
        _: &[f32],
        _: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError> {
        panic!("boom in the sink")
    }

    fn remaining(&self, _: usize) -> usize {
        panic!("boom in the sink")
    }
}

pub struct PanickingHost;

macro_rules! boom {
    ($(fn $name:ident(&self $(, $arg:ty)*) $(-> $out:ty)?;)+) => {
        $(fn $name(&self $(, _: $arg)*) $(-> $out)? {
            panic!("boom in the host")
        })+
    };
}

impl HostApi for PanickingHost {
    boom! {
        fn target(&self) -> TargetFacts;
        fn threads(&self) -> usize;
        fn parallel(&self, usize, &(dyn Fn(usize) + Sync)) -> Result<()>;
        fn noise(&self, NoiseKey, u32, &mut [f64]);
        fn model_facts(&self, &str) -> Result<ModelFacts>;
        fn load_model(&self, &str, Option<&str>) -> Result<Arc<dyn ModelApi>>;
        fn load_tensors(&self, &str) -> Result<Arc<dyn TensorsApi>>;
        fn embed(&self, &[Token], &mut [f32]) -> Result<()>;
        fn lm_head(&self, &[f32], &mut [f32]) -> Result<()>;
        fn lm_head_topk(&self, &[f32], usize, &mut [(Token, f32)]) -> Result<()>;
        fn lanes(&self) -> &dyn LanesApi;
        fn metric(&self, &str, f64);
        fn log(&self, u8, &str, &str);
    }
}

impl Drop for PanickingHost {
    fn drop(&mut self) {
        panic!("boom in the host's drop");
    }
}

/// A model and a file whose methods panic on the engine's side.
pub struct PanickingService;

impl ModelApi for PanickingService {
    boom! {
        fn facts(&self) -> ModelFacts;
        fn forward(&self, &ForwardBatch<'_>, &mut [f32]) -> Result<()>;
    }
}
