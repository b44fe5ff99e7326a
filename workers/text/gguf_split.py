"""How byte-level vocabularies split text before merging, by the name that GGUF gives it (`tokenizer.ggml.pre`).

The expressions are the ones in the models' own `tokenizer.json`; llama.cpp's `llama-vocab.cpp` maps the names to them.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN_2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
)
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
THREE_DIGITS = r"[0-9][0-9][0-9]"


@dataclass(frozen=True)
class Split:
    """Expressions applied one after the other, each to the pieces the one before it left."""

    expressions: tuple[str, ...]
    adds_bos: bool = False  # where the file does not say
    ignores_merges: bool = False  # a piece that is in the vocabulary is one token, whatever the merges say
    is_nfc: bool = False  # the text is normalised to NFC first

    def steps(self) -> list[pre_tokenizers.PreTokenizer]:
        """The pre-tokenizers that do it. What an expression does not match is a piece too."""
        return [pre_tokenizers.Split(Regex(expression), "isolated") for expression in self.expressions]


_GPT_2 = Split((GPT_2,))
_LLAMA_3 = Split((LLAMA_3,), adds_bos=True, ignores_merges=True)
_SMOLLM = Split((r"\p{N}", GPT_2))

SPLITS = {
    "default": Split((PUNCTUATION, GPT_2, r"\p{N}+", THREE_DIGITS)),
    "gpt-2": _GPT_2,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "llama-bpe": _LLAMA_3,
    "qwen2": Split((QWEN_2,), is_nfc=True),
    "smollm": _SMOLLM,
    "tekken": Split((TEKKEN,), adds_bos=True, ignores_merges=True),
}
