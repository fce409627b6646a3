"""The byte-level BPE tokenizer that both models share.

Neighbours: `data.py` gives the training text; `train.py` calls `load_or_train`; `export.py` copies the files made by
`save` into each model folder. One special token, `<|endoftext|>`, is both BOS and EOS.

Surprising decision: only 4096 entries. At this model size a 32k vocabulary would put nearly all parameters into the
embedding, and the output projection would dominate a decoding step, unlike in the large models these stand in for.
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from data import documents

VOCAB_SIZE = 4096
BOS = "<|endoftext|>"
CONTEXT = 1024
# Llama 3's pattern: letters may take one leading symbol (`.name`, `(self`), digits come in threes.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Mirrors `data.gsm8k_text`: a user turn is a question, an assistant turn its answer and the end of the document.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ ' ' + message['content'] + '\\n' + eos_token }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\\n' }}"
    "{% else %}{{ 'Question: ' + message['content'] + '\\nAnswer:' }}{% endif %}"
    "{% endfor %}"
)


def train(data_dir: Path) -> Tokenizer:
    """Learns the merges from the training split; `encode` then puts BOS in front, as Llama's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    split = documents(data_dir, held_out=False)
    tokenizer.train_from_iterator((doc.text for docs in split.values() for doc in docs), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


def load_or_train(data_dir: Path, work: Path) -> Tokenizer:
    """The tokenizer kept in `work`, trained first if it is not there."""
    path = work / "tokenizer.json"
    if not path.exists():
        train(data_dir).save(str(path))
    return Tokenizer.from_file(str(path))


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the three files that Hugging Face readers expect beside the weights."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(BOS)): {
                "content": BOS,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
        },
        "bos_token": BOS,
        "eos_token": BOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": BOS, "eos_token": BOS}, indent=2) + "\n")
