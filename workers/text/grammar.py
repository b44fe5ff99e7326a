"""Grammars that an output must follow, by llguidance: compiled once, then one copy for each output.

Everything here may take a while or, on a grammar from a stranger, for ever: see `grammar_check.py`.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from llguidance import LLMatcher

from workers.text.json_value import BETWEEN_PARTS
from workers.text.llguidance_c import CMatcher, CTokenizer, TokenizerRefused
from workers.text.token_text import SPACE_MARK, bytes_of, is_byte_token
from workers.text.tokenizer import Tokenizer

GrammarKind = Literal["json_schema", "regex", "choice", "grammar"]
MAX_REASON_CHARACTERS = 500
SPECIAL = b"\xff"  # begins what llguidance takes for a special token: no UTF-8 text has it


@dataclass(frozen=True)
class GrammarSpec:
    """A JSON schema as JSON, a regular expression, choices as a JSON list of texts, or a grammar as Lark writes it."""

    kind: GrammarKind
    text: str


class GrammarError(ValueError):
    """The grammar cannot be compiled, or an output cannot go on in it; the message is llguidance's."""


class GrammarVocabulary:
    """A model's tokens as llguidance needs them. Making one takes seconds where there are many tokens."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """`vocab_size` is the model's: ids that the tokenizer has not are never allowed. Raises GrammarError."""
        token_bytes = _token_bytes(tokenizer)
        num_ids = max(vocab_size, tokenizer.vocab_size)
        try:
            self.inner = CTokenizer([*map(token_bytes, range(num_ids))], eos_token_ids=sorted(eos_token_ids))
        except TokenizerRefused as error:
            raise GrammarError(f"this model's tokenizer cannot be held to a grammar: {_reason(str(error))}") from error


class Grammar:
    """Where one output stands in its grammar: an engine's `Grammar`."""

    def __init__(self, matcher: CMatcher) -> None:
        self._matcher = matcher

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        return self._matcher.is_stopped

    def mask(self) -> bytes:
        """Which tokens may come next: a bit per token id, the lowest one first. Raises GrammarError.

        An end-of-sequence token may come where the output so far is complete.
        """
        mask = self._matcher.mask()
        self._check()
        return mask

    def accept(self, token_id: int) -> None:
        """Move on by a token. Raises GrammarError when that one may not come."""
        self._matcher.consume(token_id)
        self._check()

    def replay(self, token_ids: Iterable[int]) -> None:
        """Move on by what an earlier run delivered. Raises GrammarError."""
        for token_id in token_ids:
            self.accept(token_id)

    def fork(self) -> "Grammar":
        """Another that stands where this one does."""
        return Grammar(self._matcher.copy())

    def _check(self) -> None:
        error = self._matcher.error
        if error is not None:
            raise GrammarError(_reason(error))


def compile_grammar(vocabulary: GrammarVocabulary, spec: GrammarSpec) -> Grammar:
    """The grammar at its beginning. Raises GrammarError with the reason when it cannot be used."""
    grammar = Grammar(CMatcher.compile(vocabulary.inner, _source(spec)))
    grammar.mask()  # some are too complex, or match nothing, and show it only here
    return grammar


def _source(spec: GrammarSpec) -> str:
    """The grammar in llguidance's own notation."""
    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.text)
    if spec.kind == "grammar":
        return _lark(spec.text)
    try:
        if spec.kind == "choice":
            return _lark(_rule_of(json.loads(spec.text)))
        return LLMatcher.grammar_from_json_schema(spec.text, defaults={"whitespace_pattern": BETWEEN_PARTS})
    except ValueError as error:
        raise GrammarError(_reason(str(error))) from error


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _rule_of(choices: list[str]) -> str:
    # Escaped to ASCII, as not every character may stand in a Lark text as it is.
    return "start: " + " | ".join(map(json.dumps, choices))


def _token_bytes(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """What gives a token's bytes by its id: none for an id without one. Raises GrammarError."""
    spelled = _spelling(tokenizer)

    def token_bytes(token_id: int) -> bytes:
        token = tokenizer.token(token_id)
        if token is None:
            return b""
        return SPECIAL + token.encode() if tokenizer.is_special(token_id) else spelled(token)

    return token_bytes


def _spelling(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """What gives the bytes behind an entry of its vocabulary that is text. Raises GrammarError."""
    steps = [part["type"] for part in tokenizer.decoder_parts]
    if "ByteFallback" in steps:
        return _sentencepiece_bytes
    if "ByteLevel" in steps:
        return bytes_of
    raise GrammarError(f"this model's tokenizer cannot be held to a grammar: its decoder is {steps}, not of bytes")


def _sentencepiece_bytes(token: str) -> bytes:
    return bytes([int(token[3:5], 16)]) if is_byte_token(token) else token.replace(SPACE_MARK, " ").encode()


def _reason(message: str) -> str:
    """llguidance's message as one line, without what is for its developers."""
    words = " ".join(message.removesuffix("<non-verbose/>").split())
    if words == "NoExtensionBias":
        return "no text matches it"
    return words if len(words) <= MAX_REASON_CHARACTERS else f"{words[:MAX_REASON_CHARACTERS]}..."
