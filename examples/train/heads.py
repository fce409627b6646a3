"""Trains draft heads for a Llama-style target: `python examples/train/heads.py --data DIR --heads eagle3 medusa`.

Neighbours: `heads_model.py` computes, `continuations.py` writes the text, `optim.py` updates, `export.py` reads the
target. The target is frozen: a head learns to foretell what the target writes next from the target's own hidden rows.

The target foretells what follows a token of any text, so training text serves too, and there is more of it than a
target writes in an hour.

Surprising decision: every step of a batch runs the head several times over the same text, each time on its own last
guesses instead of the target's hidden rows (training-time test, EAGLE-3, arXiv 2503.01840, section 3.1). A head that
has only ever seen the target's rows drafts one good token and then none.
"""

import argparse
import csv
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from safetensors.torch import load_file, save
from tqdm import tqdm

import continuations
import optim
from data import MIX, Sampler, load_streams
from export import load
from heads_model import HEADS, target_rows

LOG_STEPS = 20
CHECKPOINT_SECONDS = 240
# Later steps of a draft are reached less often, so they weigh less.
STEP_DECAY = 0.8
# Below 1 the head spends itself on what the target is likeliest to write.
TEACHER_TEMPERATURE = 0.5
PROMPT_WEIGHT = 0.3
WARMUP_STEPS = 30


def head_loss(head, target, batch: torch.Tensor, seen: tuple, steps: int) -> tuple[torch.Tensor, list[float]]:
    """KL from the target's sharpened distribution, summed over `steps` unrolled steps, and the share of first guesses
    that are the target's, by step; `batch` is `[rows, length]`, prompts marked, `seen` what the target makes of it."""
    learned, tokens = batch < continuations.PROMPT_MARK, batch % continuations.PROMPT_MARK
    rows, wanted = seen
    total, hits = torch.zeros((), device=batch.device), []
    for step, (guess, places) in enumerate(head.unroll(target, tokens, rows, steps)):
        teacher = wanted[:, places]
        # The target foretells what follows a prompt's tokens too, but is asked about its own.
        weight = torch.where(learned, 1.0, PROMPT_WEIGHT)[:, places]
        counts = learned[:, places].float()
        log = guess.float().log_softmax(-1)
        loss = -(head.restrict(teacher) * log).sum(-1)
        total = total + STEP_DECAY**step * (loss * weight).sum() / weight.sum()
        with torch.no_grad():
            same = head.widen(guess.argmax(-1)) == teacher.argmax(-1)
            hits.append(((same * counts).sum() / counts.sum()).item())
    return total, hits


class Pupil:
    """A head in training; goes on from the checkpoint in `folder`, if there is one."""

    def __init__(self, name: str, head, folder: Path, device: torch.device):
        self.name, self.head, self.folder = name, head, folder
        self.optimisers = optim.build(head)
        self.step, self.before, self.elapsed, self.window = 0, 0.0, 0.0, []
        self.path = folder / "checkpoint.pt"
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            saved = torch.load(self.path, map_location=device, weights_only=True)
            head.load_state_dict(saved["head"])
            for optimiser, state in zip(self.optimisers, saved["optimisers"]):
                optimiser.load_state_dict(state)
            self.step, self.before = saved["step"], saved["elapsed"]
            self.elapsed = self.before
        else:
            (folder / "log.csv").write_text("step,tokens,seconds,loss,hits\n")

    def keep(self) -> None:
        """Writes the checkpoint."""
        states = [optimiser.state_dict() for optimiser in self.optimisers]
        kept = {"head": self.head.state_dict(), "optimisers": states, "step": self.step, "elapsed": self.elapsed}
        torch.save(kept, self.path)

    def learn(self, target, batch: torch.Tensor, seen: tuple, args) -> None:
        """One step on what `seen` holds."""
        optim.set_rate(self.optimisers, self.step, self.elapsed / (60 * args.minutes), args.rate, WARMUP_STEPS)
        with optim.autocast(batch.device):
            loss, hits = head_loss(self.head, target, batch, seen, args.unroll)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        self.window.append([loss.item(), *hits])

    def log(self, tokens: int) -> str:
        """Writes the mean of the last steps to `log.csv`; returns it in words."""
        mean = np.mean(self.window, axis=0)
        self.window.clear()
        shares = " ".join(f"{share:.3f}" for share in mean[1:])
        with open(self.folder / "log.csv", "a", newline="") as file:
            csv.writer(file).writerow([self.step, tokens, f"{self.elapsed:.1f}", f"{mean[0]:.4f}", shares])
        return f"{self.name} {shares}"


def fit(pupils: list[Pupil], target, sampler: Sampler, args, device: torch.device) -> None:
    """Trains by the clock. All heads learn from the same pass of the target, half of the cost of one."""
    started = saved_at = time.monotonic()
    bar = tqdm(total=1.0, desc="heads", disable=None, bar_format="{l_bar}{bar}| {postfix}")
    while pupils_left := [pupil for pupil in pupils if pupil.elapsed < 60 * args.minutes]:
        batch = sampler.batch(pupils_left[0].step, args.rows, args.length)[:, :-1]
        batch = torch.from_numpy(batch).to(device)
        with torch.no_grad(), optim.autocast(device):
            rows, logits = target_rows(target, batch % continuations.PROMPT_MARK)
            seen = rows, (logits / TEACHER_TEMPERATURE).softmax(-1)
        for pupil in pupils_left:
            pupil.learn(target, batch, seen, args)
            pupil.elapsed = pupil.before + time.monotonic() - started
        if pupils_left[0].step % LOG_STEPS == 0:
            lines = [pupil.log(pupil.step * args.rows * args.length) for pupil in pupils_left]
            progress = min(pupil.elapsed for pupil in pupils) / (60 * args.minutes)
            bar.update(min(progress, 1.0) - bar.n)
            bar.set_postfix_str("; ".join(lines))
            if bar.disable:
                print(f"{100 * progress:.1f}% step {pupils_left[0].step}: {'; '.join(lines)}", flush=True)
        if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            saved_at = time.monotonic()
            for pupil in pupils:
                pupil.keep()
    for pupil in pupils:
        pupil.keep()


def export_head(head, folder: Path) -> None:
    """Writes the head's config and bf16 weights under the names that its published checkpoints have."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16) if weight.is_floating_point() else weight.cpu()
        for name, weight in head.published().items()
    }
    weights = {name: weight.contiguous() for name, weight in weights.items()}
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / "config.json").write_text(json.dumps(head.config(), indent=2) + "\n")


def share(text: str) -> tuple[str, float]:
    """`gsm8k=0.5` as a name and a number."""
    name, _, number = text.partition("=")
    if name not in MIX or not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(MIX)} and its share, as in python=0.5")
    return name, float(number)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train draft heads for a Llama-style target.")
    parser.add_argument("--data", type=Path, required=True, help="folder of gsm8k_train.jsonl, tinyshakespeare.txt")
    parser.add_argument("--heads", choices=list(HEADS), nargs="+", required=True)
    parser.add_argument("--target", type=Path, default=Path("examples/models/tiny"), help="the target's folder")
    parser.add_argument("--out", type=Path, default=Path("examples/models"), help="where the heads' folders go")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "foretoken-train")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--minutes", type=float, default=60, help="length of the training")
    parser.add_argument("--rows", type=int, default=8, help="sequences per step")
    parser.add_argument("--length", type=int, default=448, help="tokens per sequence")
    parser.add_argument("--unroll", type=int, default=5, help="steps that the head is run on its own guesses")
    parser.add_argument("--continuations", type=int, default=24, help="batches of the target's own text")
    parser.add_argument("--text", type=float, default=0.5, help="share of training text, beside the target's own")
    parser.add_argument("--mix", type=share, nargs="+", default=list(MIX.items()), help="kinds of text, as python=0.5")
    parser.add_argument("--go-on", action="store_true", help="begin with the heads that are in --out already")
    parser.add_argument("--rate", type=float, default=0.6, help="share of the recipe's peak learning rates")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for PyTorch's own choice")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    target, tokenizer = load(args.target)
    target.to(device).requires_grad_(False)
    total = sum(part for _, part in args.mix)
    mix = {name: part / total for name, part in args.mix}
    text = Sampler(load_streams(tokenizer, args.data, args.work), mix, 0, args.seed)
    stamp = args.target.name
    written = continuations.load_or_write(target, text, args.continuations, args.work / f"continuations-{stamp}.npy")
    streams = {**text.streams, "continuations": continuations.mark_prompts(written)}
    mix = {name: part * args.text for name, part in mix.items()}
    sampler = Sampler(streams, {**mix, "continuations": 1 - args.text}, 0, args.seed)
    counts = torch.bincount(torch.from_numpy(written.astype(np.int64)), minlength=target.shape.vocab)
    pupils = []
    for name in args.heads:
        head = HEADS[name](target.shape)
        print(f"{name}: {sum(weight.numel() for weight in head.parameters()):,} parameters", flush=True)
        if args.go_on:
            head.load_published(load_file(args.out / f"{stamp}-{name}" / "model.safetensors"))
        else:
            head.begin(counts, target)
        pupils.append(Pupil(name, head.to(device), args.work / f"{stamp}-{name}", device))
    fit(pupils, target, sampler, args, device)
    for pupil in pupils:
        folder = args.out / f"{stamp}-{pupil.name}"
        export_head(pupil.head, folder)
        print(f"{pupil.name}: written to {folder}", flush=True)


if __name__ == "__main__":
    main()
