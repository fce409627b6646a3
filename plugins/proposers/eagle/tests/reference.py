"""Writes `checkpoints/`: a small random target, heads in each published form, and what PyTorch makes of them.

Run with the requirements of `examples/train`: `python plugins/proposers/eagle/tests/reference.py`. The networks are those
of `examples/train/heads_model.py`, which share nothing with the plugin.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[3] / "examples" / "train"))

import heads_model
from export import config_of
from heads_model import Eagle, Eagle3, Eagle3Layer, MtpLayer, MultiToken, target_rows
from model import Llama, Norm, Shape

SHAPE = Shape(hidden=32, heads=4, kv_heads=2, layers=5, intermediate=48, vocab=64, head_dim=8, context=64)
TOKENS = [3, 61, 17, 5, 5, 40, 22, 9, 63, 0, 31, 12]


class NormedResidualLayer(Eagle3Layer):
    """`norm_before_residual`: the residual is the normed feature."""

    def forward(self, embeddings, features, cos, sin, cache):
        normed = self.hidden_norm(features)
        states = normed + self.self_attn(torch.cat([self.input_layernorm(embeddings), normed], dim=-1), cos, sin, cache)
        return states + self.mlp(self.post_attention_layernorm(states))


class PlusOneNorm(Norm):
    """Qwen3-Next's norm, which multiplies by 1 + weight."""

    def forward(self, states):
        return super().forward(states) + self.unscaled(states)

    def unscaled(self, states):
        return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self.eps)


class QwenLayer(MtpLayer):
    """Norms of 1 + weight, also on the heads of queries and keys; nothing left out of the first row."""

    def __init__(self, shape: Shape):
        super().__init__(shape)
        narrow = replace(shape, hidden=shape.head_dim)
        for name in ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm"):
            setattr(self, name, PlusOneNorm(shape))
        self.shared_head["norm"] = PlusOneNorm(shape)
        self.self_attn.q_norm, self.self_attn.k_norm = PlusOneNorm(narrow), PlusOneNorm(narrow)

    def join(self, embeddings, features):
        return self.eh_proj(torch.cat([self.enorm(embeddings), self.hnorm(features)], dim=-1))

    def forward(self, embeddings, features, cos, sin, cache):
        states = self.join(embeddings, features)
        states = states + self.self_attn(self.input_layernorm(states), cos, sin, cache)
        return states + self.mlp(self.post_attention_layernorm(states))


class MimoLayer(QwenLayer):
    """The feature first, biases on q, k and v, plain norms."""

    def __init__(self, shape: Shape):
        MtpLayer.__init__(self, shape)
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            setattr(self.self_attn, name, torch.nn.Linear(old.in_features, old.out_features))

    def join(self, embeddings, features):
        embeddings = torch.cat([torch.zeros_like(embeddings[:, :1]), self.enorm(embeddings)[:, 1:]], dim=1)
        return self.eh_proj(torch.cat([self.hnorm(features), embeddings], dim=-1))


class NormedFeatures(MultiToken):
    """The next row reads the features normed."""

    def __init__(self, shape: Shape, layer):
        super().__init__(shape)
        self.module = layer(shape)

    def step(self, target, embeddings, features, cos, sin, cache):
        states = self.module.shared_head["norm"](self.module(embeddings, features, cos, sin, cache))
        return states, torch.nn.functional.linear(states, target.model.embed_tokens.weight)

    def renamed(self, names: dict[str, str], otherwise: str) -> dict:
        """Weights, `module.X` called `names[X]` for the first such X that it begins with, else `otherwise + X`."""
        renamed = {}
        for name, weight in self.state_dict().items():
            name = name.removeprefix("module.")
            found = next((key for key in names if name.startswith(key)), None)
            renamed[name.replace(found, names[found], 1) if found else otherwise + name] = weight
        return renamed


class TwoModules(MultiToken):
    """DeepSeek-V3's modules, of which the second reads what the first gave one row earlier."""

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.second = MtpLayer(shape)
        self.heads = [torch.nn.Linear(shape.hidden, shape.vocab, bias=False) for _ in range(2)]

    def unroll(self, target, tokens, rows, count):
        embeddings, length = target.model.embed_tokens(tokens[:, 1:]), tokens.shape[1] - 1
        cos, sin = self.cos[:length], self.sin[:length]
        first = self.module(embeddings, rows[-1][:, :-1], cos, sin, [])
        yield self.heads[0](self.module.shared_head["norm"](first)), None
        # It begins one row later, so no embedding is left out.
        attention = self.second.self_attn
        embedded = self.second.enorm(embeddings[:, 1:])
        states = self.second.eh_proj(torch.cat([embedded, self.second.hnorm(first[:, :-1])], dim=-1))
        states = states + attention(self.second.input_layernorm(states), cos[1:], sin[1:], [])
        states = states + self.second.mlp(self.second.post_attention_layernorm(states))
        yield self.heads[1](self.second.shared_head["norm"](states)), None

    def published(self):
        published = {}
        for index, (module, head) in enumerate(zip((self.module, self.second), self.heads)):
            prefix = f"model.layers.{self.shape.layers + index}."
            published |= {prefix + name: weight for name, weight in module.state_dict().items()}
            published[prefix + "shared_head.head.weight"] = head.weight
        return published

    def config(self):
        return {**super().config(), "num_nextn_predict_layers": 2}


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
    first, second = [logits[0] for logits, _ in head.unroll(target, tokens, rows, 2)]
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

    # In the target's own file, as models bring them along.
    deepseek = TwoModules(SHAPE)
    shake(deepseek)
    own = {**config_of(SHAPE, 0), "torch_dtype": "float32"}
    both = {**dict(target.named_parameters()), **deepseek.published()}
    write("deepseek", both, {**own, "num_nextn_predict_layers": 2}, expected_of(deepseek, target))

    qwen = NormedFeatures(SHAPE, QwenLayer)
    shake(qwen)
    names = {
        "enorm": "mtp.pre_fc_norm_embedding",
        "hnorm": "mtp.pre_fc_norm_hidden",
        "eh_proj": "mtp.fc",
        "shared_head.norm": "mtp.norm",
    }
    config = {"architectures": ["Qwen3NextForCausalLM"], "mtp_num_hidden_layers": 1, **qwen.llama_config()}
    write("qwen", qwen.renamed(names, "mtp.layers.0."), {"text_config": config}, expected_of(qwen, target))

    mimo = NormedFeatures(SHAPE, MimoLayer)
    shake(mimo)
    prefix = "model.mtp_layers.0."
    names = {
        "enorm": prefix + "token_layernorm",
        "hnorm": prefix + "hidden_layernorm",
        "eh_proj": prefix + "input_proj",
        "shared_head.norm": prefix + "final_layernorm",
    }
    config = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1, **mimo.llama_config()}
    write("mimo", mimo.renamed(names, prefix), config, expected_of(mimo, target))


if __name__ == "__main__":
    main()
