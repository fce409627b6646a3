"""A Llama-style decoder in plain PyTorch, with the parameter names Hugging Face uses.

Neighbours: `train.py` optimises it, `export.py` writes its state dict as it is, `evaluate.py` and `acceptance.py` run
it. Grouped-query attention, rotary positions (half-split layout), SwiGLU, RMSNorm, tied embeddings.

Surprising decision: our own 120 lines instead of transformers' class. They compile to one graph and make the recipe
readable; `export.py --check` holds them to transformers' logits within 1e-4.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Sizes of one model; `context` is the longest sequence it is trained on."""

    hidden: int
    heads: int
    kv_heads: int
    layers: int
    intermediate: int
    vocab: int = 4096
    head_dim: int = 64
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


SHAPES = {
    "tiny": Shape(hidden=384, heads=6, kv_heads=2, layers=6, intermediate=1024),
    "tiny-draft": Shape(hidden=128, heads=2, kv_heads=1, layers=2, intermediate=384),
}


def rotary_tables(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, `[context, head_dim]`, both halves alike (RoFormer, arXiv 2104.09864)."""
    exponents = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
    angles = torch.outer(torch.arange(shape.context).float(), shape.rope_theta**-exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Applies rotary positions to `[rows, heads, length, head_dim]`."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-second, first], dim=-1) * sin


class Norm(nn.Module):
    """Root-mean-square norm, computed in f32."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.hidden))
        self.eps = shape.norm_eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).type_as(states)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rows, length, _ = states.shape
        split = lambda wide: wide.view(rows, length, -1, self.shape.head_dim).transpose(1, 2)
        query = rotate(split(self.q_proj(states)), cos, sin)
        key = rotate(split(self.k_proj(states)), cos, sin)
        value = split(self.v_proj(states))
        groups = self.shape.heads // self.shape.kv_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = F.scaled_dot_product_attention(query.type_as(value), key.type_as(value), value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))


class Layer(nn.Module):
    """Attention and feed-forward, each on a normed residual stream."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.input_layernorm = Norm(shape)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = Mlp(shape)

    def forward(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        states = states + self.self_attn(self.input_layernorm(states), cos, sin)
        return states + self.mlp(self.post_attention_layernorm(states))


class Body(nn.Module):
    """Embedding, layers and final norm; the `model.` prefix of Hugging Face's names."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)


class Llama(nn.Module):
    """Maps token ids `[rows, length]` to logits `[rows, length, vocab]`."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Layers that write to the residual stream start smaller, so that its variance does not grow with depth.
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        states = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            states = layer(states, cos, sin)
        return F.linear(self.model.norm(states), self.model.embed_tokens.weight)

    def parameter_count(self) -> int:
        """Parameters, the tied embedding counted once."""
        return sum(weight.numel() for weight in self.parameters())
