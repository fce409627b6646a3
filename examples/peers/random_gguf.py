"""Writes a Llama model of random weights as a GGUF file that llama.cpp and Foretoken both read.

Neighbours: `llama_cpp.py` times the file. Weights are normal with variance 1 / columns, so that activations stay of
order one; what a pass costs does not depend on them otherwise. Tensors are made, written and dropped one at a time.
The file has no tokenizer (`no_vocab`, dummy tokens): neither program's bench opens one. It is bf16 and nothing else;
llama-quantize makes every other type from it, so that formats differ in rounding only.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize

SEED = 20
BF16, F32 = GGMLQuantizationType.BF16, GGMLQuantizationType.F32


class Shape(NamedTuple):
    """The sizes of a Llama model, as `foretoken bench --random-weights` names them."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes `[rows, columns]`, in the order of the file; norms are vectors."""
        head_dim = self.width // self.heads
        yield "token_embd.weight", (self.vocab, self.width)
        for layer in range(self.layers):
            block = f"blk.{layer}"
            yield f"{block}.attn_norm.weight", (self.width,)
            yield f"{block}.attn_q.weight", (self.width, self.width)
            yield f"{block}.attn_k.weight", (self.kv_heads * head_dim, self.width)
            yield f"{block}.attn_v.weight", (self.kv_heads * head_dim, self.width)
            yield f"{block}.attn_output.weight", (self.width, self.width)
            yield f"{block}.ffn_norm.weight", (self.width,)
            yield f"{block}.ffn_gate.weight", (self.inner, self.width)
            yield f"{block}.ffn_up.weight", (self.inner, self.width)
            yield f"{block}.ffn_down.weight", (self.width, self.inner)
        yield "output_norm.weight", (self.width,)
        yield "output.weight", (self.vocab, self.width)

    def parameters(self) -> int:
        """Weights that a pass with logits reads: all but the embedding."""
        return sum(int(np.prod(shape)) for name, shape in self.tensors() if name != "token_embd.weight")


SHAPES = {
    "1.1b": Shape(22, 2048, 5632, 32, 4, 32_000),
    "134m": Shape(12, 768, 2048, 12, 12, 32_000),
    "8.9m": Shape(8, 256, 768, 4, 4, 4096),
}


def write(path: Path, name: str, shape: Shape) -> None:
    """Writes `path`, the same bytes every time: bf16 matrices, norms of ones in f32, output and embedding untied."""
    writer = GGUFWriter(path, "llama")
    writer.add_name(f"random {name}")
    writer.add_file_type(LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(shape.layers)
    writer.add_context_length(32_768)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")
    for tensor, sizes in shape.tensors():
        kind, item = (F32, 4) if len(sizes) == 1 else (BF16, 2)
        writer.add_tensor_info(tensor, sizes, np.dtype(np.float32), item * int(np.prod(sizes)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.default_rng(SEED)
    for _, sizes in shape.tensors():
        writer.write_tensor_data(values(generator, sizes))
    writer.close()


def values(generator: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
    """A tensor's values as they lie in the file."""
    if len(sizes) == 1:
        return np.ones(sizes, np.float32)
    normal = generator.standard_normal(sizes, np.float32)
    normal *= sizes[1] ** -0.5
    return quantize(normal, BF16)
