use foretoken_kernels::{*, blocks::*, ops::*};
use std::time::Instant;
fn main() {
    let threads: usize = std::env::args().nth(1).map_or(2, |s| s.parse().unwrap());
    let exec = Exec::cpu(threads).unwrap();
    let d = WeightDtype::Bf16;
    let l = |o: usize, i: usize| Linear::new("x", Weight::from_f32(d, [o, i], &vec![0.01; o*i]), None).unwrap();
    let att = AttentionShape::new(6, 2, 64).unwrap();
    let shape = LayerShape { width: 384, attention_input: 384, attention: att, mlp_width: 1024, eps: 1e-5 };
    let layers: Vec<DecoderLayer> = (0..6).map(|_| DecoderLayer::new("l", shape, DecoderLayerTensors {
        input_norm: Some(vec![1.0; 384]), q: l(384,384), k: l(128,384), v: l(128,384), q_norm: None, k_norm: None, o: l(384,384),
        post_attention_norm: vec![1.0;384], gate: l(1024,384), up: l(1024,384), down: l(384,1024) }).unwrap()).collect();
    let head = l(4096, 384);
    let mut kv = KvStore::new(KvShape { layers: 6, kv_dim: 128, dtype: KvDtype::Bf16 }, 2048);
    let table = RopeTable::new(64, 10000.0, RopeScaling::None);
    let mut ws = Workspace::new(); let mut rope = RopeRows::new();
    let ctx: Vec<u32> = (0..1200).collect();
    let r = Instant::now(); for _ in 0..100000 { exec.pool().run(threads, &|_| {}); } println!("region {:.2} us", r.elapsed().as_secs_f64()*10.0);
    for (c, rows) in [(300usize,1usize),(300,2),(300,4),(300,6),(300,8),(0,512)] {
        let pos: Vec<u32> = (c as u32..(c+rows) as u32).collect();
        let mut hidden = vec![0.1; rows*384]; let mut logits = vec![0.0; rows*4096]; let mut packed = PackedRows::new();
        let mut best = f64::MAX;
        let mut all = vec![];
        for _ in 0..300 {
            hidden.fill(0.1);
            let s = Instant::now();
            rope.fill(&table, &pos);
            let seqs = [AttentionSeq { context: &ctx[..c], rows: 0..rows, new_slots: &ctx[c..c+rows], tree: None }];
            let fr = ForwardRows { rope: &rope, slots: &ctx[c..c+rows], seqs: &seqs };
            let mut v = kv.view_mut();
            for (i, l) in layers.iter().enumerate() { l.forward(&exec, &fr, &mut hidden, (&mut v, i), &mut ws); }
            head.forward(&exec, &hidden, &mut packed, &mut logits);
            let t = s.elapsed().as_secs_f64(); best = best.min(t); all.push(t);
            if all.iter().sum::<f64>() > 4.0 { break; }
        }
        all.sort_by(f64::total_cmp);
        println!("{c}+{rows}: best {:.3} ms median {:.3} ms", best*1e3, all[all.len()/2]*1e3);
    }
}
