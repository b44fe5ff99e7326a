"""llguidance by its C interface, which the library in its Python package has too.

Its Python interface lets no other thread run while it takes up a vocabulary: a worker's steps would stop for seconds.
"""

import ctypes
from array import array
from collections.abc import Sequence

from llguidance import _lib

MAX_ERROR_BYTES = 4096
OK = 0


class TokenizerRefused(ValueError):
    """llguidance cannot use these tokens; the message is its own."""


class TokenizerInit(ctypes.Structure):
    """`LlgTokenizerInitV2`. What is zero or null has its default."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.c_void_p),
        ("token_bytes", ctypes.c_char_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", ctypes.c_void_p),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
        ("tok_eos_extra", ctypes.c_void_p),
        ("tok_eos_extra_count", ctypes.c_uint32),
    )


class MatcherInit(ctypes.Structure):
    """`LlgConstraintInit`, with room for fields that a later version adds at its end."""

    _fields_ = (
        ("tokenizer", ctypes.c_void_p),
        ("log_buffer_level", ctypes.c_uint32),
        ("log_stderr_level", ctypes.c_uint32),
        ("ff_tokens_ok", ctypes.c_bool),
        ("backtrack_ok", ctypes.c_bool),
        ("max_items_in_row", ctypes.c_size_t),
        ("initial_lexer_fuel", ctypes.c_uint64),
        ("step_lexer_fuel", ctypes.c_uint64),
        ("step_max_items", ctypes.c_size_t),
        ("max_lexer_states", ctypes.c_size_t),
        ("max_grammar_size", ctypes.c_size_t),
        ("precompute_large_lexemes", ctypes.c_bool),
        ("verbose_errors", ctypes.c_bool),
        ("later", ctypes.c_uint64 * 32),
    )


class CTokenizer:
    """Token ids and the bytes they stand for. Immutable, so threads may share one."""

    def __init__(self, tokens: Sequence[bytes], *, eos_token_ids: Sequence[int]) -> None:
        """`tokens` by id: one that is empty never comes, one that begins with 0xFF is special and no text.

        Takes seconds where there are many, and lets other threads run meanwhile. Raises TokenizerRefused.
        """
        self.eos_token_ids = frozenset(eos_token_ids)
        lengths, extra = array("I", map(len, tokens)), array("I", eos_token_ids[1:])
        init = TokenizerInit(
            struct_size=ctypes.sizeof(TokenizerInit),
            vocab_size=len(tokens),
            tok_eos=eos_token_ids[0] if eos_token_ids else 0xFFFFFFFF,
            token_lens=lengths.buffer_info()[0],
            token_bytes=b"".join(tokens),
            use_approximate_greedy_tokenize_fn=True,  # never used: with it no text is forced to be certain tokens
            tok_eos_extra=extra.buffer_info()[0] if extra else None,
            tok_eos_extra_count=len(extra),
        )
        error = ctypes.create_string_buffer(MAX_ERROR_BYTES)
        self.pointer: int | None = _new_tokenizer(ctypes.byref(init), error, MAX_ERROR_BYTES)
        if self.pointer is None:
            raise TokenizerRefused(error.value.decode(errors="replace"))

    def __del__(self) -> None:
        if getattr(self, "pointer", None) is not None:
            _free_tokenizer(self.pointer)


class CMatcher:
    """Where one output stands in a grammar. Whatever fails leaves it with an error for good. One thread at a time."""

    def __init__(self, tokenizer: CTokenizer, pointer: int) -> None:
        self._tokenizer = tokenizer
        self._pointer = pointer
        self._mask = (ctypes.c_uint8 * _mask_byte_size(pointer))()

    @classmethod
    def compile(cls, tokenizer: CTokenizer, source: str) -> "CMatcher":
        """At the beginning of a grammar, which is JSON in llguidance's notation. Other threads run meanwhile."""
        init = MatcherInit()
        _set_defaults(ctypes.byref(init), tokenizer.pointer)
        init.log_stderr_level = 0
        init.verbose_errors = False
        assert "\0" not in source, "a C string ends there"
        return cls(tokenizer, _new_matcher(ctypes.byref(init), b"llguidance", source.encode()))

    @property
    def is_stopped(self) -> bool:
        return bool(_is_stopped(self._pointer))

    @property
    def error(self) -> str | None:
        message: bytes | None = _get_error(self._pointer)
        return None if message is None else message.decode(errors="replace")

    def mask(self) -> bytes:
        """A bit per token id; other threads run meanwhile. Of one that has stopped, the end-of-sequence tokens."""
        _compute_mask_into(self._pointer, self._mask, len(self._mask))
        return bytes(self._mask)

    def consume(self, token_id: int) -> None:
        if not (self.is_stopped and token_id in self._tokenizer.eos_token_ids):
            _consume_token(self._pointer, token_id)

    def copy(self) -> "CMatcher":
        return CMatcher(self._tokenizer, _clone_matcher(self._pointer))

    def __del__(self) -> None:
        _free_matcher(self._pointer)


def _function(library: ctypes.CDLL, name: str, result: type | None, *arguments: type) -> "ctypes._NamedFuncPointer":
    function = library[f"llg_{name}"]
    function.restype, function.argtypes = result, arguments
    return function


_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_slow = ctypes.CDLL(_lib.__file__)  # other threads run during a call
_new_tokenizer = _function(_slow, "new_tokenizer_v2", _pointer, _pointer, _pointer, _size)
_new_matcher = _function(_slow, "new_matcher", _pointer, _pointer, ctypes.c_char_p, ctypes.c_char_p)
_compute_mask_into = _function(_slow, "matcher_compute_mask_into", ctypes.c_int32, _pointer, _pointer, _size)

_quick = ctypes.PyDLL(_lib.__file__)  # they do not: giving way would take longer than the call
_set_defaults = _function(_quick, "constraint_init_set_defaults", None, _pointer, _pointer)
_mask_byte_size = _function(_quick, "matcher_get_mask_byte_size", _size, _pointer)
_is_stopped = _function(_quick, "matcher_is_stopped", ctypes.c_bool, _pointer)
_get_error = _function(_quick, "matcher_get_error", ctypes.c_char_p, _pointer)
_consume_token = _function(_quick, "matcher_consume_token", ctypes.c_int32, _pointer, ctypes.c_uint32)
_clone_matcher = _function(_quick, "clone_matcher", _pointer, _pointer)
_free_matcher = _function(_quick, "free_matcher", None, _pointer)
_free_tokenizer = _function(_quick, "free_tokenizer", None, _pointer)
