"""Trains tiny and its draft with one command: `python examples/train/train.py --data DIR`.

Neighbours: `data.py` samples, `model.py` computes, `optim.py` updates, `export.py` writes the model folders, `plot.py`
draws the curve from the log this writes. Four stages: `tiny` learns from text; `tiny-tuned` unlearns its repetitions
(`unlikelihood.py`); `draft-text` is the draft on text, which needs no tiny and may run beside it; `tiny-draft` goes on
from there with tiny's sharpened distribution over tiny's own continuations of training text (KL divergence).

Surprising decision: the learning-rate schedule may run on a clock (`--minutes`) and not on a step count. On a machine
shared with other work nobody knows the step rate beforehand, and a run cut off before its decay is worth far less.
"""

import argparse
import csv
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

# Waiting threads sleep. Spinning ones cost two thirds of the speed on a machine that also compiles.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.nn.functional as F
from tqdm import tqdm

import continuations
import optim
import tokenizer as tokens
import unlikelihood
from data import MIX, Sampler, documents, load_streams
from evaluate import mean_loss, windows
from export import export
from model import SHAPES, Llama, Shape

CHECKPOINT_SECONDS = 240
LOG_STEPS = 10
HELDOUT_STEPS = 100
HELDOUT_WINDOWS = 24
STAGES = ("tiny", "tiny-tuned", "draft-text", "tiny-draft")
# Where nothing else is asked for: outside the checkout, since checkpoints and token caches are never committed.
DEFAULT_WORK = Path(tempfile.gettempdir()) / "foretoken-train"
# Below 1 the draft spends its few weights on what tiny is likeliest to write, at some cost in likelihood of real text.
TEACHER_TEMPERATURE = 0.1


@dataclass
class Run:
    """What one model's training needs, apart from the model itself."""

    name: str
    sampler: Sampler
    heldout: list
    folder: Path
    device: str
    rows: int
    length: int
    steps: int
    minutes: float | None
    compiled: bool

    def progress(self, step: int, elapsed: float) -> float:
        """Share of the schedule done, by the clock where one is set, else by steps."""
        return elapsed / (60 * self.minutes) if self.minutes else step / self.steps


def text_loss(model: Llama, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, nats per token; `batch` is `[rows, length + 1]`."""
    logits = model(batch[:, :-1]).float().flatten(0, 1)
    return F.cross_entropy(logits, batch[:, 1:].flatten())


def distil_loss(model: Llama, teacher: Llama, batch: torch.Tensor) -> torch.Tensor:
    """KL(teacher || model) per token (arXiv 1503.02531), with the teacher sharpened to `TEACHER_TEMPERATURE`.

    Tokens that carry `continuations.PROMPT_MARK` are read, not learned.
    """
    learned = batch[:, 1:] < continuations.PROMPT_MARK
    tokens = batch[:, :-1] % continuations.PROMPT_MARK
    with torch.no_grad():
        teacher_log = (teacher(tokens).float() / TEACHER_TEMPERATURE).log_softmax(-1)
    log = model(tokens).float().log_softmax(-1)
    divergence = (teacher_log.exp() * (teacher_log - log)).sum(-1)
    return (divergence * learned).sum() / learned.sum()


def save_checkpoint(path: Path, model: Llama, optimisers, step: int, elapsed: float) -> None:
    """Writes beside the old checkpoint first, so that an interruption never leaves half a file."""
    state = {
        "shape": asdict(model.shape),
        "model": model.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "step": step,
        "elapsed": elapsed,
    }
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def load_checkpoint(path: Path, model: Llama, optimisers, device: str) -> tuple[int, float]:
    """Restores a run in place; returns its step and the seconds trained so far, zeros where there is none."""
    if not path.exists():
        return 0, 0.0
    saved = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    for optimiser, state in zip(optimisers, saved["optimisers"]):
        optimiser.load_state_dict(state)
    return saved["step"], saved["elapsed"]


def fit(run: Run, model: Llama, teacher: Llama | None = None) -> None:
    """Trains until the schedule ends; resumes from `run.folder` where a checkpoint lies there."""
    run.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = run.folder / "checkpoint.pt"
    optimisers = optim.build(model)
    step, before = load_checkpoint(checkpoint, model, optimisers, run.device)
    # Compiled as a whole, so that the [tokens, vocab] softmax is fused into the loss and its gradient.
    loss_of = torch.compile(batch_loss, dynamic=False) if run.compiled else batch_loss
    started = saved_at = time.monotonic()
    elapsed = before
    bar = tqdm(total=1.0, disable=not sys.stderr.isatty(), desc=run.name, bar_format="{l_bar}{bar}| {postfix}")
    log = Log(run, step)
    while run.progress(step, elapsed) < 1:
        progress = run.progress(step, elapsed)
        optim.set_rate(optimisers, step, progress)
        batch = torch.from_numpy(run.sampler.batch(step, run.rows, run.length)).to(run.device)
        with optim.autocast(torch.device(run.device)):
            loss = loss_of(model, teacher, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step += 1
        elapsed = before + time.monotonic() - started
        log.add(model, step, elapsed, progress, loss.item(), bar)
        if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            save_checkpoint(checkpoint, model, optimisers, step, elapsed)
            saved_at = time.monotonic()
    bar.close()
    save_checkpoint(checkpoint, model, optimisers, step, elapsed)


def batch_loss(model: Llama, teacher: Llama | None, batch: torch.Tensor) -> torch.Tensor:
    """The loss of one batch, by whether there is a teacher."""
    return text_loss(model, batch) if teacher is None else distil_loss(model, teacher, batch)


class Log:
    """Writes `log.csv` (step, tokens, seconds, training loss, held-out loss) and tells the reader where the run is."""

    def __init__(self, run: Run, step: int):
        self.run = run
        self.losses: list[float] = []
        self.path = run.folder / "log.csv"
        # What an interrupted run wrote after its last checkpoint is going to be written again.
        lines = self.path.read_text().splitlines()[1:] if step else []
        kept = [line for line in lines if int(line.split(",")[0]) <= step]
        self.path.write_text("\n".join(["step,tokens,seconds,loss,heldout", *kept, ""]))

    def add(self, model: Llama, step: int, elapsed: float, progress: float, loss: float, bar: tqdm) -> None:
        """Collects one step's loss; every few steps writes the mean."""
        self.losses.append(loss)
        if step % LOG_STEPS:
            return
        mean = sum(self.losses) / len(self.losses)
        self.losses.clear()
        heldout = ""
        if step % HELDOUT_STEPS == 0:
            model.eval()
            heldout = f"{mean_loss(model, self.run.heldout, self.run.device):.4f}"
            model.train()
        count = step * self.run.rows * self.run.length
        with open(self.path, "a", newline="") as file:
            csv.writer(file).writerow([step, count, f"{elapsed:.1f}", f"{mean:.4f}", heldout])
        line = f"step {step} loss {mean:.3f} {count / 1e6:.1f}M tokens {elapsed / 60:.1f} min"
        line += f" held-out python {heldout}" if heldout else ""
        bar.update(progress - bar.n)
        bar.set_postfix_str(line)
        if bar.disable and (heldout or step % 50 == 0):
            print(f"{self.run.name} {100 * progress:.1f}% {line}", flush=True)


def trained(work: Path, stage: str, device: str) -> Llama:
    """The model of a stage as it stands in its latest checkpoint."""
    saved = torch.load(work / stage / "checkpoint.pt", map_location=device, weights_only=True)
    model = Llama(Shape(**saved["shape"])).to(device)
    model.load_state_dict(saved["model"])
    return model


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the example models tiny and tiny-draft.")
    parser.add_argument("--data", type=Path, required=True, help="folder of gsm8k_train.jsonl, tinyshakespeare.txt")
    parser.add_argument("--model", choices=[*STAGES, "all"], default="all", help="one stage, or all in turn")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--out", type=Path, default=Path("examples/models"), help="where the model folders go")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="checkpoints, token cache, logs")
    parser.add_argument("--steps", type=int, default=2400, help="length of the schedule in steps")
    parser.add_argument("--minutes", type=float, help="length of the schedule in minutes, instead of --steps")
    parser.add_argument("--rows", type=int, default=8, help="sequences per step")
    parser.add_argument("--length", type=int, default=1024, help="tokens per sequence")
    parser.add_argument("--continuations", type=int, default=32, help="batches of tiny's own text for the draft")
    parser.add_argument("--tuning-steps", type=int, default=60, help="steps of unlikelihood tuning")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for PyTorch's own choice")
    parser.add_argument("--no-compile", action="store_true", help="run without torch.compile (no C++ compiler needed)")
    return parser.parse_args()


def draft_sampler(sampler: Sampler, teacher: Llama, batches: int, folder: Path) -> Sampler:
    """Windows of what the teacher wrote, prompts marked."""
    written = continuations.load_or_write(teacher, sampler, batches, folder / "continuations.npy")
    streams = {"continuations": continuations.mark_prompts(written)}
    return Sampler(streams, {"continuations": 1.0}, sampler.bos_id, sampler.seed)


def tune(args: argparse.Namespace, sampler: Sampler, device: str) -> Llama:
    """The stage `tiny-tuned`, and its checkpoint in the form of the other stages'."""
    model = trained(args.work, "tiny", device)
    unlikelihood.tune(model, sampler, args.tuning_steps, args.work / "tiny-tuned", not args.no_compile)
    save_checkpoint(args.work / "tiny-tuned" / "checkpoint.pt", model, [], args.tuning_steps, 0.0)
    return model


def main() -> None:
    args = parse()
    device = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if args.threads:
        torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = tokens.load_or_train(args.data, args.work)
    streams = load_streams(tokenizer, args.data, args.work)
    text = Sampler(streams, MIX, tokenizer.token_to_id(tokens.BOS), args.seed)
    heldout = windows(tokenizer, documents(args.data, held_out=True)["python"], args.length)
    heldout = heldout[:: max(len(heldout) // HELDOUT_WINDOWS, 1)]
    for name in STAGES if args.model == "all" else [args.model]:
        torch.manual_seed(args.seed)
        teacher, sampler = None, text
        if name == "tiny-tuned":
            export(tune(args, text, device), tokenizer, args.out / "tiny")
            continue
        model = Llama(SHAPES["tiny" if name == "tiny" else "tiny-draft"]).to(device)
        if name == "tiny-draft":
            model = trained(args.work, "draft-text", device)
            teacher = trained(args.work, "tiny-tuned", device).eval().requires_grad_(False)
            sampler = draft_sampler(text, teacher, args.continuations, args.work / name)
        run = Run(
            name=name,
            sampler=sampler,
            heldout=heldout,
            folder=args.work / name,
            device=device,
            rows=args.rows,
            length=args.length,
            steps=args.steps,
            minutes=args.minutes,
            compiled=not args.no_compile,
        )
        print(f"{name}: {model.parameter_count():,} parameters on {device}", flush=True)
        fit(run, model, teacher)
        if name in SHAPES:
            export(model, tokenizer, args.out / name)
            print(f"{name}: written to {args.out / name}", flush=True)


if __name__ == "__main__":
    main()
