"""Writes a model in Hugging Face's Llama layout, reads it back, and checks it against transformers.

Neighbours: `train.py` calls `export` at the end of a run; every other command loads models through `load`. As a command
it exports the latest checkpoint at any time, also of a run still going, and `--check` compares logits.

Surprising decision: weights are rounded to bf16 on export, and `load` reads them back into f32. All published figures
are measured on the rounded weights, the ones that are shipped.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from tokenizers import Tokenizer

import tokenizer as tokens
from model import SHAPES, Llama, Shape


def config_of(shape: Shape, bos_id: int) -> dict:
    """The fields of `config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos_id,
        "eos_token_id": bos_id,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


def export(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes config, bf16 weights and tokenizer files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    bos_id = tokenizer.token_to_id(tokens.BOS)
    weights = {name: weight.detach().to("cpu", torch.bfloat16) for name, weight in model.named_parameters()}
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / "config.json").write_text(json.dumps(config_of(model.shape, bos_id), indent=2) + "\n")
    generation = {"bos_token_id": bos_id, "eos_token_id": bos_id, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokens.save(tokenizer, folder)


def load(folder: Path, device: str = "cpu") -> tuple[Llama, Tokenizer]:
    """Reads a folder written by `export`; weights in f32."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        layers=config["num_hidden_layers"],
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        head_dim=config["head_dim"],
        context=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )
    model = Llama(shape)
    weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(weights)
    return model.to(device).eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


@torch.no_grad()
def check(folder: Path) -> None:
    """Compares logits and token ids with transformers' own classes; raises where they differ."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = load(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = Path(__file__).read_text()[:3000]
    ids = tokenizer.encode(text).ids
    reference_tokenizer = AutoTokenizer.from_pretrained(folder)
    assert reference_tokenizer(text)["input_ids"] == ids, "AutoTokenizer and tokenizers disagree"
    assert ids[0] == tokenizer.token_to_id(tokens.BOS), "no BOS in front"
    assert tokenizer.decode(ids) == text, "decoding does not give the text back"
    inputs = torch.tensor([ids[: model.shape.context]])
    difference = (model(inputs) - reference(inputs).logits).abs().max().item()
    assert difference <= 1e-4, f"logits differ by {difference}"
    print(f"{folder}: {model.parameter_count():,} parameters, largest logit difference {difference:.1e}")
    print(reference_tokenizer.apply_chat_template([{"role": "user", "content": "2 + 2?"}], tokenize=False))


def main() -> None:
    parser = argparse.ArgumentParser(description="Export the latest checkpoint of a run, or check exported folders.")
    parser.add_argument("--model", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "foretoken-train")
    parser.add_argument("--out", type=Path, default=Path("examples/models"))
    parser.add_argument("--check", action="store_true", help="only compare the exported folders with transformers")
    args = parser.parse_args()
    for name in SHAPES if args.model == "all" else [args.model]:
        if not args.check:
            saved = torch.load(args.work / name / "checkpoint.pt", map_location="cpu", weights_only=True)
            model = Llama(Shape(**saved["shape"]))
            model.load_state_dict(saved["model"])
            export(model, Tokenizer.from_file(str(args.work / "tokenizer.json")), args.out / name)
        check(args.out / name)


if __name__ == "__main__":
    main()
