"""Foretoken beside llama.cpp: the same random weights, the same GGUF files, interleaved rounds, a table of speeds.

Neighbours: `random_gguf.py` writes the weights, README.md says what is compared with what, and why that is fair.

Surprising decision: llama.cpp has no program that times a pass of n rows with the logits of all, the cost that
speculation lives on. `llama-batched-bench` comes closest (n sequences behind one shared prompt, a row each), so it
stands in. It runs under four settings, llama-bench under two, and each of the peer's cells is the best of all of them.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import random_gguf
from random_gguf import SHAPES

ROWS = (1, 2, 4, 8, 16, 32)
PREFILL = 512
FORMATS = ("bf16", "f16", "f32", "q8_0", "q4_0", "q4_k_m", "q6_k")
# Rows that follow the prompt in each sequence. Few, so that a KV shared by all sequences stays as short as one's own.
STEPS = 8
# What a passage of the peer's costs is repeated until about this many weights have been read.
WEIGHTS_READ = 4e9
BATCHED = {
    f"batched-bench, flash attention {flash}, KV {kv}": ["-fa", flash, *(["-kvu"] if kv == "shared" else [])]
    for flash in ("on", "off")
    for kv in ("shared", "split")
}
BUILD = """build it, from a checkout of https://github.com/ggml-org/llama.cpp or from vendor/llama.cpp in the source
       package of llama-cpp-python (pip download --no-deps --no-binary :all: llama-cpp-python):
         cmake -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF
         cmake --build build --target llama-bench llama-batched-bench llama-quantize
       and give --llama-cpp build/bin"""

Milliseconds = dict[str, list[float]]


class Failure(Exception):
    """What went wrong, where, what was expected, and how to put it right."""


class Peer:
    """llama.cpp's programs."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder, threads
        for name in ("llama-bench", "llama-batched-bench", "llama-quantize"):
            if not os.access(folder / name, os.X_OK):
                raise Failure(f"no program {name} in {folder}; expected llama.cpp's built programs\n  fix: {BUILD}")
        self.version = run([folder / "llama-bench", "--version"], both=True).splitlines()[0]

    def quantize(self, source: Path, target: Path, kind: str) -> None:
        """Writes `target` from a bf16 file."""
        run([self.folder / "llama-quantize", source, target, kind.upper(), self.threads])

    def passes(self, model: Path, setting: str, context: int, repeats: int) -> dict[int, float]:
        """Milliseconds of a pass of n rows behind `context` tokens, one row a sequence, logits of all."""
        cells = ROWS[-1] * (math.ceil((context + STEPS + 1) / 256) * 256)
        lists = {"-npp": context, "-ntg": ",".join([str(STEPS)] * repeats), "-npl": ",".join(map(str, ROWS))}
        options = [word for option in lists.items() for word in option] + BATCHED[setting]
        command = [self.folder / "llama-batched-bench", "-m", model, "-c", cells, "-t", self.threads, "-pps", *options]
        lines = run([*command, "--output-format", "jsonl"]).splitlines()
        samples: dict[int, list[float]] = {rows: [] for rows in ROWS}
        for cell in (json.loads(line) for line in lines if line.startswith("{")):
            samples[cell["pl"]].append(1e3 * cell["t_tg"] / cell["tg"])
        if not all(samples.values()):
            raise Failure(f"llama-batched-bench gave no times for some of {ROWS} rows; expected a JSON line for each\n"
                          f"  fix: another version of llama.cpp; this one says {self.version}")
        return {rows: statistics.median(times) for rows, times in samples.items()}

    def bench(self, model: Path, context: int, repeats: int) -> Iterator[tuple[str, float]]:
        """Cells of llama-bench: milliseconds of decoding a token, and of the prompt."""
        both = [self.folder / "llama-bench", "-m", model, "-t", self.threads, "-fa", "on,off", "-o", "json"]
        decode = ["-p", 0, "-n", 4 * STEPS, "-d", context, "-r", max(2, repeats // 4)]
        for options, tokens, cell in ((decode, 4 * STEPS, "1"), (["-p", PREFILL, "-n", 0, "-r", 2], 1, "prefill")):
            for test in json.loads(run([*both, *options])):
                flash = "on" if test["flash_attn"] == 1 else "off"
                yield f"{cell}|llama-bench, flash attention {flash}", statistics.median(test["samples_ns"]) / 1e6 / tokens


def run(command: list[Any], both: bool = False) -> str:
    """What `command` printed to stdout; with `both`, to stderr too."""
    words = [str(word) for word in command]
    try:
        # "replace": dummy tokens have no text, and programs that print them anyway print anything.
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise Failure(f"cannot run {words[0]}: {error}\n  fix: give the path of the built program") from error
    if done.returncode != 0:
        last = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-8:])
        raise Failure(f"{' '.join(words)}\n  ended with status {done.returncode}, expected 0; its last words:\n{last}\n"
                      "  fix: run that command by itself")
    return done.stdout + done.stderr if both else done.stdout


def model_file(work: Path, peer: Peer, shape: str, kind: str) -> Path:
    """The GGUF file of a shape and a format, made unless it is there. A file is whole once it has its name."""
    # Absolute: llama-quantize takes an output name like 8.9m.gguf for a type number.
    path = work.resolve() / f"random-{shape}-{kind}.gguf"
    if not path.exists():
        part = path.with_suffix(".part.gguf")
        if kind == "bf16":
            random_gguf.write(part, shape, SHAPES[shape])
        else:
            peer.quantize(model_file(work, peer, shape, "bf16"), part, kind)
        part.rename(path)
    return path


def foretoken_bench(program: Path, model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Foretoken's report on the very file, its weights held as stored."""
    config = model.with_suffix(".toml")
    config.write_text(f"threads = {args.threads}\n[model]\npath = {json.dumps(str(model))}\n")
    command = [program, "bench", config, "--context", args.context, "--rounds", 3, "--json"]
    return json.loads(run(command))


def measure(shape: str, kind: str, peer: Peer, work: Path, args: argparse.Namespace, say: Any) -> dict[str, Any]:
    """All rounds of one file: llama.cpp, Foretoken, llama.cpp, Foretoken, .."""
    say(f"{shape} {kind}: weights")
    model = model_file(work, peer, shape, kind)
    repeats = max(1, min(16, round(WEIGHTS_READ / STEPS / SHAPES[shape].parameters())))
    theirs: Milliseconds = {}
    ours: list[dict[str, Any]] = []
    for number in range(args.rounds):
        for setting in BATCHED:
            say(f"{shape} {kind}: round {number + 1} of {args.rounds}, {setting}")
            for rows, time in peer.passes(model, setting, args.context, repeats).items():
                theirs.setdefault(f"{rows}|{setting}", []).append(time)
        say(f"{shape} {kind}: round {number + 1} of {args.rounds}, llama-bench")
        for cell, time in peer.bench(model, args.context, repeats):
            theirs.setdefault(cell, []).append(time)
        say(f"{shape} {kind}: round {number + 1} of {args.rounds}, Foretoken")
        ours.append(foretoken_bench(args.foretoken, model, args))
    return summary(theirs, ours) | {"shape": shape, "format": kind, "file_bytes": model.stat().st_size,
                                    "llama_cpp_ms": theirs, "foretoken": ours}


def summary(theirs: Milliseconds, ours: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of every cell, the peer's best setting taken; `speed` is theirs / ours."""
    cells = {}
    for cell in (*map(str, ROWS), "prefill"):
        medians = {key.split("|")[1]: statistics.median(times) for key, times in theirs.items() if key.split("|")[0] == cell}
        setting = min(medians, key=lambda name: medians[name])
        own = [PREFILL / round_["prefill_tok_s"] * 1e3 if cell == "prefill" else round_["verify_ms"][cell] for round_ in ours]
        mine = statistics.median(own)
        cells[cell] = {"llama_cpp_ms": medians[setting], "setting": setting, "settings_ms": medians, "foretoken_ms": mine,
                       "speed": medians[setting] / mine}
    return {"cells": cells, "held_as": ours[0]["dtype"], "bandwidth_gb_s": [round_["read_bandwidth_gb_s"] for round_ in ours]}


def table(result: dict[str, Any]) -> str:
    """One file's table, Markdown."""
    cells = result["cells"]
    rates = ", ".join(f"{rate:.1f}" for rate in result["bandwidth_gb_s"])
    lines = [
        f"### {result['shape']}, {result['format']}", "",
        f"{result['file_bytes'] / 1e6:.1f} MB; reading memory at {rates} GB/s by round", "",
        "|          | llama.cpp | t(n)/t(1) | Foretoken | t(n)/t(1) |   speed | llama.cpp's best setting |",
        "|----------|----------:|----------:|----------:|----------:|--------:|--------------------------|",
    ]
    for rows in ROWS:
        cell, one = cells[str(rows)], cells["1"]
        lines.append(f"| {f't({rows}) ms':<8} | {cell['llama_cpp_ms']:9.3f} | {cell['llama_cpp_ms'] / one['llama_cpp_ms']:9.2f} "
                     f"| {cell['foretoken_ms']:9.3f} | {cell['foretoken_ms'] / one['foretoken_ms']:9.2f} "
                     f"| {cell['speed']:6.2f}x | {cell['setting']} |")
    for name, key, tokens in (("decode", "1", 1), ("prefill", "prefill", PREFILL)):
        cell = cells[key]
        lines.append(f"| {name:<8} | {1e3 * tokens / cell['llama_cpp_ms']:5.0f} t/s |           "
                     f"| {1e3 * tokens / cell['foretoken_ms']:5.0f} t/s |           | {cell['speed']:6.2f}x | {cell['setting']} |")
    return "\n".join([*lines, ""])


def overview(results: list[dict[str, Any]]) -> str:
    """All files at a glance, Markdown."""
    names = [*(f"t({rows})" for rows in ROWS), "prefill"]
    lines = ["### Foretoken's speed over llama.cpp's (above 1: Foretoken is faster)", "",
             "| shape | format | " + " | ".join(f"{name:>7}" for name in names) + " |",
             "|-------|--------|" + "|".join(["--------:"] * len(names)) + "|"]
    for result in results:
        speeds = " | ".join(f"{cell['speed']:6.2f}x" for cell in result["cells"].values())
        lines.append(f"| {result['shape']:<5} | {result['format']:<6} | {speeds} |")
    return "\n".join(lines)


def machine(threads: int) -> dict[str, Any]:
    """Where this was measured."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "threads": threads, "system": f"{platform.system()} {platform.machine()}"}


def commit() -> str | None:
    """The commit of this checkout, with a + if files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    with contextlib.suppress(Failure):
        return run([*git, "rev-parse", "--short", "HEAD"]).strip() + ("+" if run([*git, "status", "--porcelain", "-uno"]).strip() else "")
    return None


def arguments() -> argparse.Namespace:
    """The command line."""
    def names(known: Any) -> Any:
        def parse(text: str) -> list[str]:
            for name in text.split(","):
                if name not in known:
                    raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
            return text.split(",")
        return parse

    def positive(text: str) -> int:
        if not text.isdecimal() or int(text) == 0:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
        return int(text)

    parser = argparse.ArgumentParser(description="Foretoken beside llama.cpp on the same random weights; tables in Markdown.")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR", help="llama.cpp's built programs")
    parser.add_argument("--foretoken", type=Path, default=Path("target/release/foretoken"), metavar="FILE")
    parser.add_argument("--shapes", type=names(SHAPES), default=list(SHAPES), help=f"of {','.join(SHAPES)} (default: all)")
    parser.add_argument("--formats", type=names(FORMATS), default=["bf16", "f16", "q8_0", "q4_k_m"],
                        help=f"of {','.join(FORMATS)} (default: bf16,f16,q8_0,q4_k_m)")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="of both programs (default: 2)")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="interleaved rounds (default: 3)")
    parser.add_argument("--context", type=positive, default=128, metavar="N", help="tokens in the KV (default: 128)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps the model files, up to 9 GB (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes every sample here")
    return parser.parse_args()


def main() -> None:
    """Measures every shape and format asked for."""
    args = arguments()
    peer = Peer(args.llama_cpp, args.threads)
    if not os.access(args.foretoken, os.X_OK):
        raise Failure(f"no program {args.foretoken}; expected Foretoken's\n  fix: cargo build --release --workspace, or --foretoken FILE")
    about = {"machine": machine(args.threads), "llama_cpp": peer.version, "commit": commit(),
             "foretoken": run([args.foretoken, "--version"]).strip(), "context": args.context, "rounds": args.rounds}

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    results = []
    print(f"{about['machine']['cpu']}, {args.threads} threads; context {args.context}, medians of {args.rounds} rounds")
    print(f"llama.cpp {peer.version}; {about['foretoken']}, commit {about['commit'] or 'unknown'}\n", flush=True)
    with tempfile.TemporaryDirectory() if args.work is None else contextlib.nullcontext(args.work) as work:
        Path(work).mkdir(parents=True, exist_ok=True)
        for shape in args.shapes:
            for kind in args.formats:
                results.append(measure(shape, kind, peer, Path(work), args, say))
                say("")
                print(table(results[-1]), flush=True)
                if args.json:
                    args.json.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")
    print(overview(results))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"error: {failure}")
