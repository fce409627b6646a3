"""Greedy generation with a KV cache, for several sequences in step.

Neighbours: `acceptance.py` measures with it, one row at a time; `continuations.py` writes many rows for the draft to
learn from. Both read the weights of a `model.Llama` and repeat its forward pass with a cache.

Surprising decision: the cache is one array per model, cut back by setting `length`. Rows always have the same length,
so nothing is padded; ragged batches are the engine's business, not the recipe's.
"""

import torch
import torch.nn.functional as F

from model import Llama, rotate


class Decoder:
    """`rows` sequences of one common length, with keys and values `[layers, rows, kv_heads, context, head_dim]`."""

    def __init__(self, model: Llama, rows: int):
        self.model = model
        self.rows = rows
        shape = model.shape
        device = model.model.embed_tokens.weight.device
        self.keys = torch.zeros(shape.layers, rows, shape.kv_heads, shape.context, shape.head_dim, device=device)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    @torch.no_grad()
    def feed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Appends `tokens`, `[rows, count]`, and returns the logits of the last, `[rows, vocab]`."""
        model, shape = self.model, self.model.shape
        start, end = self.length, self.length + tokens.shape[1]
        cos, sin = model.cos[start:end], model.sin[start:end]
        positions = torch.arange(end, device=tokens.device)
        seen = positions[None, :] <= positions[start:end, None]
        states = model.model.embed_tokens(tokens)
        for index, layer in enumerate(model.model.layers):
            normed, attention = layer.input_layernorm(states), layer.self_attn
            query = rotate(self.split(attention.q_proj(normed)), cos, sin)
            self.keys[index, :, :, start:end] = rotate(self.split(attention.k_proj(normed)), cos, sin)
            self.values[index, :, :, start:end] = self.split(attention.v_proj(normed))
            mixed = self.attend(query, self.keys[index, :, :, :end], self.values[index, :, :, :end], seen)
            states = states + attention.o_proj(mixed)
            states = states + layer.mlp(layer.post_attention_layernorm(states))
        self.length = end
        return F.linear(model.model.norm(states[:, -1]), model.model.embed_tokens.weight)

    def attend(self, query, key, value, seen: torch.Tensor) -> torch.Tensor:
        """Attention without copying keys: the query heads of one key head stand in line as if they were positions."""
        rows, heads, count, size = query.shape
        groups = heads // key.shape[1]
        lined = query.type_as(value).reshape(rows, key.shape[1], groups * count, size)
        mixed = F.scaled_dot_product_attention(lined, key, value, attn_mask=seen.repeat(groups, 1))
        return mixed.reshape(rows, heads, count, size).transpose(1, 2).reshape(rows, count, -1)

    def split(self, wide: torch.Tensor) -> torch.Tensor:
        """`[rows, count, heads * head_dim]` to `[rows, heads, count, head_dim]`."""
        return wide.view(self.rows, wide.shape[1], -1, self.model.shape.head_dim).transpose(1, 2)

    def greedy(self, tokens: list[list[int]], count: int) -> list[list[int]]:
        """Feeds equally long rows of `tokens`, then generates `count` per row; the last of them is not fed."""
        fed = torch.tensor(tokens, device=self.keys.device)
        output = [self.feed(fed).argmax(-1)]
        while len(output) < count:
            output.append(self.feed(output[-1][:, None]).argmax(-1))
        return torch.stack(output, dim=1).tolist()
