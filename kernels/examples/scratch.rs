use foretoken_kernels::{blocks::Linear, ops::*, *};
use std::time::Instant;
fn main() {
    let threads: usize = std::env::args().nth(1).map_or(1, |s| s.parse().unwrap());
    let copies: usize = std::env::args().nth(2).map_or(1, |s| s.parse().unwrap());
    let exec = Exec::cpu(threads).unwrap();
    println!("{exec:?}");
    for shape in [[1024usize, 384], [4096, 384], [384, 1024], [5632, 2048]] {
        for dtype in [WeightDtype::Bf16, WeightDtype::F32] {
            print!("{shape:?} {dtype} ");
            let ls: Vec<Linear> = (0..copies)
                .map(|_| {
                    Linear::new("a", Weight::from_f32(dtype, shape, &vec![0.01; shape[0] * shape[1]]), None).unwrap()
                })
                .collect();
            let mut t1 = 0.0;
            for n in [1usize, 2, 3, 4, 6, 8, 64] {
                let mut p = PackedRows::new();
                p.pack(&exec, dtype, shape[1], &vec![0.5; n * shape[1]]);
                let mut out = vec![0.0; n * shape[0]];
                let mut best = f64::MAX;
                for _ in 0..200 {
                    let s = Instant::now();
                    for l in &ls {
                        linear(&exec, &p, &mut [LinearJob { linear: l, out: &mut out }]);
                    }
                    best = best.min(s.elapsed().as_secs_f64() / copies as f64);
                    if best * 200.0 * copies as f64 > 4.0 && s.elapsed().as_secs_f64() > 0.05 {
                        break;
                    }
                }
                if n == 1 {
                    t1 = best;
                    print!("{:.1} GB/s {:.1} us | ", ls[0].weight().byte_len() as f64 / best / 1e9, best * 1e6);
                } else {
                    print!("{n}: {:.2} ({:.0} GF) ", best / t1, 2e-9 * (n * shape[0] * shape[1]) as f64 / best);
                }
            }
            println!();
        }
    }
}
