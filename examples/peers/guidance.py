"""Guided greedy text of Foretoken beside that of Hugging Face transformers, in f32: `guidance.py --foretoken target/release/foretoken`.

Neighbours: README.md says what is compared; `engine/tests/engine/guidance.rs` compares with what `--out` wrote, so that
the tests need no Python.

Surprising decision: the margin of every token of transformers is kept beside it. Two implementations sum in different
orders, so their logits differ in the last digits; a token that differs where the best two are as near as that is a tie,
and one that differs elsewhere is a fault.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

# Closer than this, the best two tokens may change places.
TIE = 1e-3


def transformers_lines(args, prompts: list[str]) -> list[dict]:
    """`{"tokens", "margins"}` of each prompt, by `generate`."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = lambda text: tokenizer(text, return_tensors="pt").input_ids
    lines = []
    for prompt in tqdm(prompts, desc="transformers", disable=None):
        prompt = ids(prompt)
        made = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            negative_prompt_ids=ids(args.negative_prompt),
            guidance_scale=args.scale,
            do_sample=False,
            max_new_tokens=args.max_tokens,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        best = torch.stack(made.scores)[:, 0].topk(2).values
        margins = [round(margin, 5) for margin in (best[:, 0] - best[:, 1]).tolist()]
        lines.append({"tokens": made.sequences[0, prompt.shape[1] :].tolist(), "margins": margins})
    return lines


def foretoken_lines(args, prompts: list[str]) -> list[list[int]]:
    """Tokens of each prompt."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
        file.flush()
        command = [args.foretoken, "run", "configs/cfg-pair.toml", "--prompts", file.name, "--json", "--ignore-eos"]
        command += ["--set", 'model.dtype="f32"', "--set", 'kv.dtype="f32"', "--set", f"sampling.guidance_scale={args.scale}"]
        command += ["--negative-prompt", args.negative_prompt, "--max-tokens", str(args.max_tokens)]
        done = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line["tokens"] for line in sorted(map(json.loads, done), key=lambda line: line["request"])]


def main() -> None:
    parser = argparse.ArgumentParser(description="Guided text of Foretoken beside that of transformers.")
    parser.add_argument("--foretoken", default="target/release/foretoken")
    parser.add_argument("--model", default="examples/models/tiny")
    parser.add_argument("--prompts", type=Path, default=Path("examples/prompts/python.jsonl"))
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--scale", type=float, default=1.5)
    parser.add_argument("--negative-prompt", default="# Nothing\nimport")
    parser.add_argument("--out", type=Path, help="where transformers' tokens and margins are kept")
    args = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines()[: args.count]]
    theirs = transformers_lines(args, prompts)
    if args.out:
        args.out.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in theirs))
    equal, faults = 0, 0
    for number, (own, line) in enumerate(zip(foretoken_lines(args, prompts), theirs)):
        place = next((place for place, pair in enumerate(zip(own, line["tokens"])) if pair[0] != pair[1]), None)
        equal += place is None
        if place is not None:
            margin = line["margins"][place]
            faults += margin > TIE
            print(f"prompt {number}, token {place}: {own[place]} for {line['tokens'][place]}, margin {margin}")
    print(f"{equal} of {len(prompts)} equal over {args.max_tokens} tokens, {faults} faults")
    raise SystemExit(faults > 0)


if __name__ == "__main__":
    main()
