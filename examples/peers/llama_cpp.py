"""Foretoken beside llama.cpp: the same random weights, the same GGUF files, interleaved rounds, tables of speeds.

Neighbours: `random_gguf.py` writes the weights, `tables.py` prints, `machine.py` watches the machine; README.md says
what is compared with what, and why that is fair.

Surprising decision: the cost that speculation lives on, a pass of n rows with the logits of all, is had from
`llama-bench -p n -embd 1`. Without `-embd` it computes the last row's logits only; `llama-batched-bench`, the usual
stand-in, spreads the rows over n sequences, which costs a small model up to twice as much. Both are run, under every
setting that has a say, and each of the peer's cells is the best of them.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import machine
import random_gguf
import tables
from random_gguf import SHAPES
from tables import CELLS, PREFILL, ROWS

FORMATS = ("bf16", "f16", "f32", "q8_0", "q4_0", "q4_k_m", "q6_k")
# Words for flash attention: of the command line, and of the tables.
FLAGS = ("off", "on")
FLASH = {"off": "", "on": ", flash"}
# Weights read per cell and round, about: sets how often a pass is repeated.
WEIGHTS_READ = 1.5e9
# Passes behind the prompt in batched-bench. Few, so that a KV of all sequences is hardly longer than that of one.
STEPS = 8
# Runs that share the processor with others, by more than this part of it, are tried again, so often.
QUIET, TRIES = 0.05, 3
BUILD = """in a checkout of https://github.com/ggml-org/llama.cpp, or in vendor/llama.cpp of llama-cpp-python's source
  package (pip download --no-deps --no-binary llama-cpp-python llama-cpp-python), run
    cmake -B build -DCMAKE_BUILD_TYPE=Release
    cmake --build build --target llama-bench llama-batched-bench llama-quantize
  and give --llama-cpp build/bin"""


class Failure(Exception):
    """What went wrong, where, what was expected, and how to put it right."""


def run(*command: object) -> str:
    """What a command printed to stdout."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise Failure(f"cannot run {words[0]}: {error}\n  fix: give the path of a program built here") from error
    if done.returncode != 0:
        last = "\n".join(f"  | {line}" for line in (done.stderr.strip() or done.stdout.strip()).splitlines()[-8:])
        raise Failure(
            f"status {done.returncode}, expected 0, from\n  {' '.join(words)}\n  which ended with\n{last}\n"
            "  fix: run that command by itself; --work DIR keeps its files"
        )
    return done.stdout


class Peer:
    """llama.cpp's programs."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder.resolve(), threads
        for name in ("llama-bench", "llama-batched-bench", "llama-quantize"):
            if not os.access(self.folder / name, os.X_OK):
                raise Failure(f"no program {name} in {folder}, expected llama.cpp's programs\n  fix: {BUILD}")
        ask = [self.folder / "llama-bench", "--version"]
        said = subprocess.run(ask, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
        self.version = said.partition("\n")[0].removeprefix("version: ")

    def quantize(self, source: Path, target: Path, kind: str) -> None:
        """Writes `target` in another type."""
        run(self.folder / "llama-quantize", source, target, kind.upper(), self.threads)

    def bench(self, model: Path, *options: object) -> list[dict[str, Any]]:
        """llama-bench's tests, with flash attention and without."""
        common = ("-m", model, "-t", self.threads, "-fa", "on,off", "-o", "json")
        return json.loads(run(self.folder / "llama-bench", *common, *options))

    def one_sequence(self, model: Path, context: int, repeats: int) -> tables.Sample:
        """Passes of n rows behind `context` tokens with the logits of all, and decoding token by token."""
        tokens, sample = 32, tables.no_sample()
        options = ("-p", ",".join(map(str, ROWS)), "-n", tokens, "-d", context, "-embd", 1, "-r", repeats)
        for test in self.bench(model, *options):
            time, flash = statistics.median(test["samples_ns"]) / 1e6, FLASH[FLAGS[test["flash_attn"]]]
            if test["n_gen"]:
                sample["1"][f"generation{flash}"] = time / tokens
            else:
                sample[str(test["n_prompt"])][f"one sequence{flash}"] = time
        return sample

    def prefill(self, model: Path) -> tables.Sample:
        """The prompt, from nothing, with the logits of its last token."""
        sample = tables.no_sample()
        for test in self.bench(model, "-p", PREFILL, "-n", 0, "-r", 3):
            sample["prefill"][f"prompt{FLASH[FLAGS[test['flash_attn']]]}"] = statistics.median(test["samples_ns"]) / 1e6
        return sample

    def many_sequences(self, model: Path, context: int, repeats: int, flash: str) -> tables.Sample:
        """Passes of n rows in n sequences behind `context` tokens that they share, logits of all."""
        positions = 256 * math.ceil((context + ROWS[-1] * STEPS) / 256)
        steps, rows = ",".join([str(STEPS)] * repeats), ",".join(map(str, ROWS))
        work = ("-pps", "-kvu", "-npp", context, "-ntg", steps, "-npl", rows, "-c", positions, "-fa", flash)
        common = ("-m", model, "-t", self.threads, "--output-format", "jsonl")
        lines = run(self.folder / "llama-batched-bench", *common, *work).splitlines()
        times: dict[str, list[float]] = {}
        for cell in (json.loads(line) for line in lines if line.startswith("{")):
            times.setdefault(str(cell["pl"]), []).append(1e3 * cell["t_tg"] / cell["tg"])
        if missing := [rows for rows in ROWS if str(rows) not in times]:
            raise Failure(
                f"llama-batched-bench printed no line for passes of {missing} rows, expected one for each of {ROWS}\n"
                f"  fix: another version of llama.cpp; this one is {self.version}"
            )
        name = f"n sequences{FLASH[flash]}"
        return tables.no_sample() | {rows: {name: statistics.median(samples)} for rows, samples in times.items()}


def model_file(work: Path, peer: Peer, shape: str, kind: str) -> Path:
    """The GGUF file of a shape and a format, made unless it is there; a file that has its name is whole."""
    # Absolute, since llama-quantize takes an output name that begins with a digit for a type's number.
    path = work.resolve() / f"random-{shape}-{kind}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        if kind == "bf16":
            random_gguf.write(part, shape, SHAPES[shape])
        else:
            peer.quantize(model_file(work, peer, shape, "bf16"), part, kind)
        part.rename(path)
    return path


def foretoken(program: Path, model: Path, threads: int, context: int) -> dict[str, Any]:
    """Foretoken's report on that very file, the weights held as stored."""
    config = model.with_suffix(".toml")
    config.write_text(f"threads = {threads}\n[model]\npath = {json.dumps(str(model))}\n")
    return json.loads(run(program.resolve(), "bench", config, "--context", context, "--rounds", 3, "--json"))


def measure(shape: str, kind: str, peer: Peer, work: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one file: llama.cpp, Foretoken, llama.cpp, Foretoken, .."""
    progress(f"{shape} {kind}: weights")
    model = model_file(work, peer, shape, kind)
    repeats = max(3, min(30, round(WEIGHTS_READ / SHAPES[shape].parameters())))
    many = functools.partial(peer.many_sequences, model, args.context, max(1, repeats // STEPS))
    runs = {
        "one sequence": functools.partial(peer.one_sequence, model, args.context, repeats),
        "prompt": functools.partial(peer.prefill, model),
        "n sequences, flash": functools.partial(many, "on"),
        "n sequences": functools.partial(many, "off"),
    }
    theirs: tables.Samples = {cell: {} for cell in CELLS}
    ours, others = [], []
    for number in range(1, args.rounds + 1):
        title, shares = f"{shape} {kind}: round {number} of {args.rounds}", []
        for name, call in runs.items():
            progress(f"{title}, llama.cpp, {name}")
            sample, share = quietest(call, args.patience)
            shares.append(share)
            for cell, settings in sample.items():
                for setting, time in settings.items():
                    theirs[cell].setdefault(setting, []).append(time)
        progress(f"{title}, Foretoken")
        bench = functools.partial(foretoken, args.foretoken, model, args.threads, args.context)
        report, share = quietest(bench, args.patience)
        ours.append(report)
        others.append(max([*shares, share]))
    progress("")
    about = {"shape": shape, "format": kind, "file_bytes": model.stat().st_size, "others": others}
    return about | {"cells": tables.summarise(theirs, ours), "llama_cpp_samples_ms": theirs, "foretoken": ours}


def quietest(call: Callable[[], Any], patience: int) -> tuple[Any, float]:
    """What `call` gives while others are quiet, or of a few tries the least disturbed; with the others' share."""
    tries: list[tuple[Any, float]] = []
    while not tries or (tries[-1][1] > QUIET and len(tries) < TRIES):
        machine.wait_until_quiet(QUIET, patience)
        watch = machine.Others()
        tries.append((call(), watch.share()))
    return min(tries, key=lambda result_and_share: result_and_share[1])


def progress(text: str) -> None:
    """One line on a terminal's stderr, written over the last."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def commit() -> str | None:
    """The commit of this checkout, with a + where files differ from it."""
    git = ("git", "-C", Path(__file__).resolve().parent)
    with contextlib.suppress(Failure):
        changed = run(*git, "status", "--porcelain", "--untracked-files=no").strip()
        return run(*git, "rev-parse", "--short", "HEAD").strip() + ("+" if changed else "")
    return None


def positive(text: str) -> int:
    """A count on the command line."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number of 1 or more")
    return int(text)


def names(known: Collection[str]) -> Callable[[str], list[str]]:
    """A list on the command line."""

    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}, expected some of {','.join(known)}")
        return text.split(",")

    return parse


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Foretoken beside llama.cpp on the same random weights.")
    add = parser.add_argument
    add("--llama-cpp", type=Path, required=True, metavar="DIR", help="folder of llama.cpp's programs")
    add("--foretoken", type=Path, default=Path("target/release/foretoken"), metavar="FILE", help="default: %(default)s")
    add("--shapes", type=names(SHAPES), default=list(SHAPES), metavar="A,B", help=f"default: {','.join(SHAPES)}")
    formats = "bf16,f16,q8_0,q4_k_m"
    help_formats = f"some of {','.join(FORMATS)}; default: {formats}"
    add("--formats", type=names(FORMATS), default=formats.split(","), metavar="A,B", help=help_formats)
    add("--threads", type=positive, default=2, metavar="N", help="of both programs; default: %(default)s")
    add("--rounds", type=positive, default=3, metavar="N", help="interleaved rounds; default: %(default)s")
    add("--context", type=positive, default=128, metavar="N", help="tokens in the KV; default: %(default)s")
    patience = "seconds to wait for a quiet machine before each run; default: %(default)s"
    add("--patience", type=positive, default=20, metavar="N", help=patience)
    add("--work", type=Path, metavar="DIR", help="keep the model files there; default: a temporary folder")
    add("--json", type=Path, metavar="FILE", help="write every sample there")
    return parser.parse_args()


def main() -> None:
    """Measures every shape in every format."""
    args = arguments()
    peer = Peer(args.llama_cpp, args.threads)
    if not os.access(args.foretoken, os.X_OK):
        fix = "cargo build --release --workspace, or --foretoken FILE"
        raise Failure(f"no program {args.foretoken}, expected Foretoken's\n  fix: {fix}")
    about = {
        "machine": machine.describe(args.threads),
        "llama_cpp": peer.version,
        "foretoken": run(args.foretoken.resolve(), "--version").strip(),
        "foretoken_commit": commit(),
        "context": args.context,
        "rounds": args.rounds,
    }
    cpu = about["machine"]["cpu"]
    print(f"{cpu}, {args.threads} threads, context {args.context}, medians of {args.rounds} rounds")
    build = f"{about['foretoken']}, commit {about['foretoken_commit'] or 'unknown'}"
    print(f"llama.cpp {peer.version}; {build}\n", flush=True)
    results = []
    with tempfile.TemporaryDirectory() if args.work is None else contextlib.nullcontext(args.work) as work:
        Path(work).mkdir(parents=True, exist_ok=True)
        for shape in args.shapes:
            for kind in args.formats:
                results.append(measure(shape, kind, peer, Path(work), args))
                print(tables.table(results[-1]), flush=True)
                if args.json:
                    args.json.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")
    print(tables.overview(results))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"error: {failure}")
