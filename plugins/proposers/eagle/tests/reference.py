"""Writes `checkpoints/`: a small random target, heads in each published form, and what PyTorch makes of them.

Run with the requirements of `examples/train`: `python plugins/proposers/eagle/tests/reference.py`. The networks are those
of `examples/train/heads_model.py`, which share nothing with the plugin.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[3] / "examples" / "train"))

import heads_model
from export import config_of
from heads_model import Eagle, Eagle3, Eagle3Layer, target_rows
from model import Llama, Shape

SHAPE = Shape(hidden=32, heads=4, kv_heads=2, layers=5, intermediate=48, vocab=64, head_dim=8, context=64)
TOKENS = [3, 61, 17, 5, 5, 40, 22, 9, 63, 0, 31, 12]


class NormedResidualLayer(Eagle3Layer):
    """`norm_before_residual`: the residual is the normed feature."""

    def forward(self, embeddings, features, cos, sin, cache):
        normed = self.hidden_norm(features)
        states = normed + self.self_attn(torch.cat([self.input_layernorm(embeddings), normed], dim=-1), cos, sin, cache)
        return states + self.mlp(self.post_attention_layernorm(states))


def shake(module: torch.nn.Module) -> None:
    """Random weights everywhere, norms and biases included, large enough to matter."""
    for name, weight in module.named_parameters():
        centre = 1.0 if "norm" in name else 0.0
        torch.nn.init.normal_(weight, mean=centre, std=0.2)


def write(name: str, weights: dict, config: dict, expected: dict | None = None) -> None:
    folder = HERE / "checkpoints" / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.detach().contiguous() for key, value in weights.items()}
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if expected is not None:
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def expected_of(head, target: Llama) -> dict:
    """Hidden rows that the head reads, and the logits of a first and a second step."""
    tokens = torch.tensor([TOKENS])
    rows, _ = target_rows(target, tokens)
    layers = head.layers() if isinstance(head, Eagle3) else [-1]
    hidden = torch.cat([rows[layer] for layer in layers], dim=-1)[0, :-1]
    first, second = [logits[0] for logits in head.unroll(target, tokens, rows, 2)]
    listed = lambda matrix: [round(value, 6) for value in matrix.flatten().tolist()]
    return {"tokens": TOKENS, "hidden": listed(hidden), "first": listed(first), "second": listed(second[-1])}


@torch.no_grad()
def main() -> None:
    torch.manual_seed(3)
    target = Llama(SHAPE)
    shake(target)
    write("base", dict(target.named_parameters()), {**config_of(SHAPE, 0), "torch_dtype": "float32"})

    eagle = Eagle(SHAPE)
    shake(eagle)
    # The reference's training keeps a copy of the target's embedding in the file.
    copied = {"embed_tokens.weight": target.model.embed_tokens.weight}
    write("eagle", {**eagle.published(), **copied}, eagle.config(), expected_of(eagle, target))

    Eagle3.DRAFT_VOCAB = 24
    eagle3 = Eagle3(SHAPE)
    shake(eagle3)
    eagle3.kept.copy_(torch.randperm(SHAPE.vocab)[:24].sort().values)
    # The reference's layers, which its configs do not name.
    eagle3.layers = lambda: [1, 1, 1]
    config = eagle3.config()
    del config["eagle_aux_hidden_state_layer_ids"]
    write("eagle3", eagle3.published(), config, expected_of(eagle3, target))

    speculators = Eagle3(SHAPE)
    speculators.midlayer = NormedResidualLayer(SHAPE)
    shake(speculators)
    speculators.kept.copy_(torch.randperm(SHAPE.vocab)[:24].sort().values)
    weights = {name.replace("midlayer.", "layers.0."): weight for name, weight in speculators.published().items()}
    llama = speculators.llama_config()
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": None},
        },
        "draft_vocab_size": 24,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in speculators.layers()],
        "transformer_layer_config": llama,
    }
    write("speculators", {**weights, **copied}, config, expected_of(speculators, target))


if __name__ == "__main__":
    main()
