"""A byte-level BPE tokenizer that has learned from the standard library's source, filled up to a model's vocabulary.

Nearly every token is valid UTF-8 by itself: servers that hold back half a character would merge pieces of their stream.
"""

import itertools
import json
import string
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"  # ids 0, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUM_LEARNED = 8192
CORPUS_BYTES = 6_000_000


def make_tokenizer(vocab_size: int) -> str:
    """A tokenizer.json. What it did not learn are short words that encoding never makes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_LEARNED,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    state = json.loads(tokenizer.to_str())
    vocab: dict[str, int] = state["model"]["vocab"]
    words = ("".join(letters) for n in (3, 4) for letters in itertools.product(string.ascii_lowercase, repeat=n))
    while len(vocab) < vocab_size:
        vocab.setdefault(next(words), len(vocab))
    return json.dumps(state)


def _corpus() -> Iterator[str]:
    """ASCII of the standard library's modules, in a fixed order."""
    num_bytes = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        yield text.encode("ascii", errors="ignore").decode()
        num_bytes += len(text)
        if num_bytes > CORPUS_BYTES:
            return
