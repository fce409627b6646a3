"""The draft heads that `heads.py` trains, with the parameter names of their published checkpoints.

Neighbours: `model.py` lends its parts; the plugins under `plugins/proposers` read what is exported.

Row i of a recurrent head reads the embedding of token i + 1 and a feature of position i, and guesses token i + 2. The
feature is the target's in the first step of a draft and the head's own afterwards.

Surprising decision: only a few drafts of each text are unrolled. The first step, behind every token, is where a head
learns most; the later ones teach it to read its own features, cost as much each, and repeat what their neighbours
teach. A step attends to the first step's keys up to where its draft began and to its own draft's after it, as it will
when it drafts.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from model import Llama, Mlp, Norm, Shape, rotary_tables, rotate


# Drafts that are unrolled in each sequence of a batch.
STARTS = 96


def chosen(count: int, most: int, device) -> torch.Tensor:
    """At most `most` of the places 0 to `count`, by chance, in order."""
    return torch.randperm(count, device=device)[:most].sort().values


def target_rows(target: Llama, tokens: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The residual stream after every layer and, last, the final norm's output; and the logits."""
    length = tokens.shape[1]
    cos, sin = target.cos[:length], target.sin[:length]
    states, rows = target.model.embed_tokens(tokens), []
    for layer in target.model.layers:
        states = layer(states, cos, sin)
        rows.append(states)
    rows.append(target.model.norm(states))
    return rows, F.linear(rows[-1], target.model.embed_tokens.weight)


class DraftAttention(nn.Module):
    """Attention of unrolled steps; `width` is what q, k and v read."""

    def __init__(self, shape: Shape, width: int):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, states: torch.Tensor, cos, sin, seen, cache: list) -> torch.Tensor:
        """Step `len(cache)` on `states`, `[rows, count, width]`; appends its keys and values to `cache`. The first step is
        causal, a later one sees the first one's rows that `seen` marks, `[count, length]`, and its own draft's."""
        rows, count, _ = states.shape
        size = self.shape.head_dim
        split = lambda wide: wide.view(rows, count, -1, size).transpose(1, 2)
        query, key = rotate(split(self.q_proj(states)), cos, sin), rotate(split(self.k_proj(states)), cos, sin)
        groups = self.shape.heads // self.shape.kv_heads
        key, value = (kv.repeat_interleave(groups, dim=1) for kv in (key, split(self.v_proj(states))))
        cache.append((key, value))
        if len(cache) == 1:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            keys, values = cache[0]
            scores = (query @ keys.mT).masked_fill(~seen, float("-inf"))
            own = [(query * key).sum(-1, keepdim=True) for key, _ in cache[1:]]
            weights = (torch.cat([scores, *own], dim=-1) / size**0.5).softmax(-1)
            mixed = weights[..., : keys.shape[2]] @ values
            for ahead, (_, value) in enumerate(cache[1:]):
                mixed = mixed + weights[..., keys.shape[2] + ahead, None] * value
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, count, -1))


class Head(nn.Module):
    """What all heads share."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def start(self) -> None:
        """Initial weights."""
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def unroll(self, target: Llama, tokens: torch.Tensor, rows: list[torch.Tensor], count: int):
        """Yields `count` steps: logits of guesses, and the rows of the target that foretell the same tokens."""
        raise NotImplementedError

    def restrict(self, wanted: torch.Tensor) -> torch.Tensor:
        """The target's distribution over the head's own vocabulary."""
        return wanted

    def begin(self, counts: torch.Tensor, target: Llama) -> None:
        """Told how often the target writes each token, before training: what can start as the target's does."""

    def widen(self, tokens: torch.Tensor) -> torch.Tensor:
        """The head's tokens in the target's vocabulary."""
        return tokens

    def published(self) -> dict[str, torch.Tensor]:
        """Weights under their published names."""
        return dict(self.state_dict())

    def load_published(self, weights: dict[str, torch.Tensor]) -> None:
        """Takes what `published` gives."""
        self.load_state_dict(weights)

    def llama_config(self) -> dict:
        """The fields that Llama-like heads have."""
        shape = self.shape
        return {
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "max_position_embeddings": shape.context,
            "model_type": "llama",
            "num_attention_heads": shape.heads,
            "num_hidden_layers": 1,
            "num_key_value_heads": shape.kv_heads,
            "rms_norm_eps": shape.norm_eps,
            "rope_theta": shape.rope_theta,
            "vocab_size": shape.vocab,
        }

    def steps(self, target: Llama, tokens: torch.Tensor, features: torch.Tensor, count: int):
        """Runs `step(target, embeddings, features, place)` of a recurrent head: behind every token once, and on its own
        features behind a few of them."""
        embeddings = target.model.embed_tokens(tokens[:, 1:])
        length = embeddings.shape[1]
        everywhere, cache = torch.arange(length, device=tokens.device), []
        at = lambda places, seen: (self.cos[places], self.sin[places], seen, cache)
        features, logits = self.step(target, embeddings, features[:, :length], at(everywhere, None))
        yield logits, everywhere + 1
        anchors = chosen(length - count + 1, STARTS, tokens.device)
        seen = everywhere[None, :] <= anchors[:, None]
        features = features[:, anchors]
        for places in (anchors + ahead for ahead in range(1, count)):
            # The head's feature of a row stands for the position behind it.
            features, logits = self.step(target, embeddings[:, places], features, at(places, seen))
            yield logits, places + 1


@torch.no_grad()
def start_on_feature(fc: nn.Linear, layer: nn.Module) -> None:
    """A recurrent head begins by passing on the last of what `fc` joins, the target's feature, and learns to change it."""
    fc.weight.mul_(0.1)[:, -fc.out_features :].copy_(torch.eye(fc.out_features))
    for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
        weight.mul_(0.1)


@torch.no_grad()
def start_as(layer: nn.Module, source: nn.Module) -> None:
    """A draft layer begins with the attention and the MLP of one of the target's layers: what it has learned to look for
    in a text is what a draft needs too."""
    theirs = dict(source.named_parameters())
    for name, weight in layer.named_parameters():
        if name in theirs and theirs[name].shape == weight.shape:
            weight.copy_(theirs[name])


class EagleLayer(nn.Module):
    """A decoder layer without a norm before attention."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.self_attn = DraftAttention(shape, shape.hidden)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = Mlp(shape)

    def forward(self, states, place):
        states = states + self.self_attn(states, *place)
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle(Head):
    """EAGLE-1 (arXiv 2401.15077), whose weights EAGLE-2 (2406.16858) shares: one layer on features after the final norm,
    the target's own output projection."""

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden)
        self.layers = nn.ModuleList([EagleLayer(shape)])
        self.start()
        nn.init.zeros_(self.fc.bias)

    def begin(self, counts, target):
        last = target.model.layers[-1]
        start_as(self.layers[0], last)
        with torch.no_grad():
            # Without a norm before attention, what that norm did goes into the projections.
            scale = last.input_layernorm.weight / target.model.norm.weight.square().mean().sqrt()
            for name in ("q_proj", "k_proj", "v_proj"):
                getattr(self.layers[0].self_attn, name).weight.mul_(scale)
        start_on_feature(self.fc, self.layers[0])

    def step(self, target, embeddings, features, place):
        states = self.layers[0](self.fc(torch.cat([embeddings, features], dim=-1)), place)
        return states, F.linear(states, target.model.embed_tokens.weight)

    def unroll(self, target, tokens, rows, count):
        yield from self.steps(target, tokens, rows[-1], count)

    def config(self):
        return {"architectures": ["LlamaForCausalLMEagle"], "bias": True, **self.llama_config()}


class Eagle3Layer(nn.Module):
    """A decoder layer whose attention reads the embedding and the feature side by side."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.input_layernorm = Norm(shape)
        self.hidden_norm = Norm(shape)
        self.self_attn = DraftAttention(shape, 2 * shape.hidden)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = Mlp(shape)

    def forward(self, embeddings, features, place):
        read = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(features)], dim=-1)
        states = features + self.self_attn(read, *place)
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle3(Head):
    """EAGLE-3 (arXiv 2503.01840): features of three layers, a draft vocabulary and output projection of its own."""

    DRAFT_VOCAB = 2048

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Eagle3Layer(shape)
        self.norm = Norm(shape)
        self.lm_head = nn.Linear(shape.hidden, self.DRAFT_VOCAB, bias=False)
        # Filled by `begin`.
        self.register_buffer("kept", torch.arange(self.DRAFT_VOCAB))
        self.start()

    def layers(self) -> list[int]:
        """Layers whose outputs are fused: a low, a middle and the last one. The reference takes 1, L // 2 - 1 and L - 4,
        which for a few layers are no longer three."""
        count = self.shape.layers
        return [count // 4, count // 2, count - 1]

    def begin(self, counts, target):
        """Keeps the tokens that the target writes most; norm and projection start as the target's."""
        start_on_feature(self.fc, self.midlayer)
        self.kept.copy_(counts.argsort(descending=True)[: self.DRAFT_VOCAB].sort().values)
        with torch.no_grad():
            self.norm.weight.copy_(target.model.norm.weight)
            self.lm_head.weight.copy_(target.model.embed_tokens.weight[self.kept])

    def step(self, target, embeddings, features, place):
        states = self.midlayer(embeddings, features, place)
        return states, self.lm_head(self.norm(states))

    def unroll(self, target, tokens, rows, count):
        fused = self.fc(torch.cat([rows[layer] for layer in self.layers()], dim=-1))
        yield from self.steps(target, tokens, fused, count)

    def restrict(self, wanted):
        kept = wanted[..., self.kept]
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-6)

    def widen(self, tokens):
        return self.kept[tokens]

    def published(self):
        weights = dict(self.state_dict())
        kept = weights.pop("kept")
        weights["d2t"] = kept - torch.arange(self.DRAFT_VOCAB)
        weights["t2d"] = torch.zeros(self.shape.vocab, dtype=torch.bool).index_fill(0, kept, True)
        return weights

    def load_published(self, weights):
        own = {name: weight for name, weight in weights.items() if name not in ("d2t", "t2d")}
        self.load_state_dict({**own, "kept": weights["d2t"] + torch.arange(self.DRAFT_VOCAB)})

    def config(self):
        own = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": self.DRAFT_VOCAB}
        # Counted from the embedding: id i is the input of layer i.
        own["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in self.layers()]
        return {**own, **self.llama_config()}


class MtpLayer(nn.Module):
    """A multi-token-prediction module: normed embedding and feature joined, then a whole decoder layer."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.enorm = Norm(shape)
        self.hnorm = Norm(shape)
        self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.input_layernorm = Norm(shape)
        self.self_attn = DraftAttention(shape, shape.hidden)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = Mlp(shape)
        self.shared_head = nn.ModuleDict({"norm": Norm(shape)})

    def forward(self, embeddings, features, place):
        embeddings, (*_, cache) = self.enorm(embeddings), place
        if not cache:
            # What the first row knows of its token, inference engines leave out.
            embeddings = torch.cat([torch.zeros_like(embeddings[:, :1]), embeddings[:, 1:]], dim=1)
        states = self.eh_proj(torch.cat([embeddings, self.hnorm(features)], dim=-1))
        states = states + self.self_attn(self.input_layernorm(states), *place)
        return states + self.mlp(self.post_attention_layernorm(states))


class MultiToken(Head):
    """One module of DeepSeek-V3's kind (arXiv 2412.19437, section 2.2), on features after the final norm, run again and
    again; the target's own output projection."""

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.module = MtpLayer(shape)
        self.start()

    def begin(self, counts, target):
        start_as(self.module, target.model.layers[-1])
        start_on_feature(self.module.eh_proj, self.module)
        with torch.no_grad():
            self.module.shared_head.norm.weight.fill_(target.model.norm.weight.square().mean().sqrt())

    def step(self, target, embeddings, features, place):
        states = self.module(embeddings, features, place)
        return states, F.linear(self.module.shared_head.norm(states), target.model.embed_tokens.weight)

    def unroll(self, target, tokens, rows, count):
        yield from self.steps(target, tokens, rows[-1], count)

    def published(self):
        prefix = f"model.layers.{self.shape.layers}."
        return {name.replace("module.", prefix, 1): weight for name, weight in self.state_dict().items()}

    def load_published(self, weights):
        prefix = f"model.layers.{self.shape.layers}."
        self.load_state_dict({name.replace(prefix, "module.", 1): weight for name, weight in weights.items()})

    def config(self):
        own = {"architectures": ["LlamaForCausalLM"], "num_nextn_predict_layers": 1}
        return {**own, **self.llama_config(), "num_hidden_layers": self.shape.layers}


class WideHead(nn.Module):
    """W2 silu(W1 x + b1), three times as wide as the row inside; starts as the target's projection of x."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.inner = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.lm_head = nn.Linear(3 * shape.hidden, shape.vocab, bias=False)

    def begin(self, embeddings: torch.Tensor) -> None:
        """silu(x) - silu(-x) = x: two thirds pass the row on, the last one is free."""
        unit = torch.eye(self.inner.in_features)
        with torch.no_grad():
            self.inner.weight.copy_(torch.cat([unit, -unit, 0.02 * torch.randn_like(unit)]))
            self.inner.bias.zero_()
            self.lm_head.weight.copy_(torch.cat([embeddings, -embeddings, torch.zeros_like(embeddings)], 1))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.lm_head(F.silu(self.inner(states)))


class Medusa(Head):
    """Medusa (arXiv 2401.10774): head k guesses token i + 2 + k from the final norm's row i, each by itself.

    Surprising decision: the heads are plain two-layer ones and not Medusa-1's residual blocks, which are as wide as the row.
    Trained on from the same weights, those learned a fraction as fast; three blocks on top of each other were no better than
    one.
    """

    COUNT = 4

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.heads = nn.ModuleList(WideHead(shape) for _ in range(self.COUNT))

    def begin(self, counts, target):
        """Projections start as the target's."""
        for head in self.heads:
            head.begin(target.model.embed_tokens.weight)

    def unroll(self, target, tokens, rows, count):
        """All places: there is no context to attend to, so each costs the same."""
        anchors = torch.arange(tokens.shape[1] - self.COUNT, device=tokens.device)
        for ahead, head in enumerate(self.heads, 1):
            yield head(rows[-1][:, anchors]), anchors + ahead

    PUBLISHED = {"inner.weight": "0.weight", "inner.bias": "0.bias", "lm_head.weight": "2.weight"}

    def published(self):
        return {f"{i}.{theirs}": head.get_parameter(ours) for i, head in enumerate(self.heads) for ours, theirs in self.PUBLISHED.items()}

    def load_published(self, weights):
        for i, head in enumerate(self.heads):
            head.load_state_dict({ours: weights[f"{i}.{theirs}"] for ours, theirs in self.PUBLISHED.items()})

    def config(self):
        return {"medusa_num_heads": self.COUNT}


class BlockAttention(nn.Module):
    """Attention of blocks behind their anchors: each row reads the context before the anchor and its whole block."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        narrow = replace(shape, hidden=shape.head_dim)
        self.q_norm, self.k_norm = Norm(narrow), Norm(narrow)

    def forward(self, states: torch.Tensor, context: torch.Tensor, anchors: torch.Tensor, cos, sin) -> torch.Tensor:
        """`states` is `[rows, anchors, block, hidden]`, `context` `[rows, length, hidden]`."""
        rows, count, block, _ = states.shape
        length, size = context.shape[1], self.shape.head_dim
        groups = self.shape.heads // self.shape.kv_heads
        heads = lambda wide: wide.view(rows, -1, wide.shape[-1] // size, size).transpose(1, 2)
        place = (anchors[:, None] + torch.arange(block, device=anchors.device)).flatten()
        rotated = lambda wide, norm, place: rotate(norm(heads(wide)), cos[place], sin[place])
        flat = states.flatten(1, 2)
        query = rotated(self.q_proj(flat), self.q_norm, place)
        own_key, own_value = rotated(self.k_proj(flat), self.k_norm, place), heads(self.v_proj(flat))
        everywhere = torch.arange(length, device=anchors.device)
        key, value = rotated(self.k_proj(context), self.k_norm, everywhere), heads(self.v_proj(context))
        own_key, own_value, key, value = (kv.repeat_interleave(groups, 1) for kv in (own_key, own_value, key, value))
        seen, own_seen = self.seen(everywhere, anchors, block)
        scores = (query @ key.mT).masked_fill(~seen, float("-inf"))
        blocks = lambda wide: wide.unflatten(2, (count, block))
        own_scores = (blocks(query) @ blocks(own_key).mT).masked_fill(~own_seen, float("-inf")).flatten(2, 3)
        weights = (torch.cat([scores, own_scores], dim=-1) / size**0.5).softmax(-1)
        mixed = weights[..., :length] @ value
        mixed = mixed + (blocks(weights[..., length:]) @ blocks(own_value)).flatten(2, 3)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)).unflatten(1, (count, block))

    def seen(self, everywhere, anchors, block: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which places of the context each row of each block sees, `[anchors * block, length]`, and which of its block."""
        before = everywhere[None, :] < anchors[:, None].expand(-1, block).reshape(-1, 1)
        return before, torch.ones(block, block, dtype=torch.bool, device=anchors.device)


class BlockLayer(nn.Module):
    """A decoder layer on blocks."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.input_layernorm = Norm(shape)
        self.self_attn = BlockAttention(shape)
        self.post_attention_layernorm = Norm(shape)
        self.mlp = Mlp(shape)

    def forward(self, states, context, anchors, cos, sin):
        states = states + self.self_attn(self.input_layernorm(states), context, anchors, cos, sin)
        return states + self.mlp(self.post_attention_layernorm(states))


class DFlash(Head):
    """DFlash (arXiv 2602.06036): masks behind an anchor are filled in at once; the target's hidden rows are the context's
    keys and values; the target's embedding and output projection."""

    BLOCK, LAYERS, ANCHORS, MASK = 8, 3, 64, 0

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.fc = nn.Linear(len(self.ids()) * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = Norm(shape)
        self.layers = nn.ModuleList(BlockLayer(shape) for _ in range(self.LAYERS))
        self.norm = Norm(shape)
        self.start()

    def ids(self) -> list[int]:
        """Layers whose outputs are read: a low, a middle and the last one."""
        count = self.shape.layers
        return [count // 4, count // 2, count - 1]

    @torch.no_grad()
    def begin(self, counts, target):
        """Layers start as the target's last ones, on the keys and values that those have in the target: `fc` picks the
        middle of the rows it reads, and norms of queries and keys begin with the size that these have there."""
        first = self.shape.layers - self.LAYERS
        width = self.fc.out_features
        self.fc.weight.mul_(0.1)[:, width : 2 * width].copy_(torch.eye(width))
        self.hidden_norm.weight.copy_(target.model.layers[first].input_layernorm.weight)
        self.norm.weight.copy_(target.model.norm.weight)
        rows, _ = target_rows(target, torch.multinomial(counts.float(), 256)[None])
        for layer, source, states in zip(self.layers, target.model.layers[first:], rows[first - 1 :]):
            start_as(layer, source)
            normed = source.input_layernorm(states)
            for name in ("q", "k"):
                heads = getattr(source.self_attn, f"{name}_proj")(normed).unflatten(-1, (-1, self.shape.head_dim))
                size = heads.square().mean(-1).sqrt().mean()
                getattr(layer.self_attn, f"{name}_norm").weight.fill_(size)

    def fill(self, target, tokens, rows, anchors):
        """Logits `[rows, anchors, BLOCK - 1, vocab]` of the tokens behind `anchors`, places of `tokens`."""
        context = self.hidden_norm(self.fc(torch.cat([rows[layer] for layer in self.ids()], dim=-1)))
        block = torch.full((len(tokens), len(anchors), self.BLOCK), self.MASK, device=tokens.device)
        block[:, :, 0] = tokens[:, anchors]
        states = target.model.embed_tokens(block)
        for layer in self.layers:
            states = layer(states, context, anchors, self.cos, self.sin)
        return F.linear(self.norm(states[:, :, 1:]), target.model.embed_tokens.weight)

    def unroll(self, target, tokens, rows, count):
        last = tokens.shape[1] - self.BLOCK + 1
        anchors = chosen(last - 1, self.ANCHORS, tokens.device) + 1
        logits = self.fill(target, tokens, rows, anchors)
        for place in range(self.BLOCK - 1):
            yield logits[:, :, place], anchors + place

    def config(self):
        ids = {"mask_token_id": self.MASK, "target_layer_ids": self.ids()}
        own = {"architectures": ["DFlashDraftModel"], "block_size": self.BLOCK, "dflash_config": ids}
        layers = {"num_hidden_layers": self.LAYERS, "layer_types": ["full_attention"] * self.LAYERS}
        return {**own, **self.llama_config(), **layers, "num_target_layers": self.shape.layers}


HEADS = {"eagle": Eagle, "eagle3": Eagle3, "medusa": Medusa, "mtp": MultiToken, "dflash": DFlash}
