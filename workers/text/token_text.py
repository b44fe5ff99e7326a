"""One token by itself: the bytes behind a vocabulary entry, and its text where it is shown without its neighbours."""

from workers.text.tokenizer import Tokenizer

SPACE_MARK = "\u2581"  # a space, as SentencePiece vocabularies spell it


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of one token; for one that is no whole characters its bytes, as OpenAI spells them: `bytes:\\xe2`.

    Decoding would turn each of those into the same U+FFFD, and drop a leading space that a neighbour makes count.
    """
    token = tokenizer.token(token_id)
    if token is None or tokenizer.is_special(token_id):
        return token or ""
    if is_byte_level(tokenizer):
        return _shown(bytes_of(token))
    if is_byte_token(token):
        return _shown(bytes([int(token[3:5], 16)]))
    return token.replace(SPACE_MARK, " ") if SPACE_MARK in token else tokenizer.decode([token_id])


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The bytes of the same text; of a token that is no whole characters, those that it is."""
    token = tokenizer.token(token_id)
    if token is None or tokenizer.is_special(token_id):
        return (token or "").encode()
    if is_byte_level(tokenizer):
        return bytes_of(token)
    return bytes([int(token[3:5], 16)]) if is_byte_token(token) else token_text(tokenizer, token_id).encode()


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether every entry of the vocabulary is bytes, spelled in GPT-2's alphabet."""
    return [part["type"] for part in tokenizer.decoder_parts] == ["ByteLevel"]


def is_byte_token(token: str) -> bool:
    """Whether a vocabulary entry stands for one byte, as `<0xE2>` does in SentencePiece vocabularies."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return False
    try:
        return 0 <= int(token[3:5], 16) <= 255
    except ValueError:
        return False


def bytes_of(token: str) -> bytes:
    """The bytes behind an entry of a byte-level vocabulary."""
    try:
        return bytes([ALPHABET[character] for character in token])
    except KeyError:  # an added token, spelled as it reads
        return token.encode()


def _shown(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def _byte_level_alphabet() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary (GPT-2's `bytes_to_unicode`, turned round)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


ALPHABET = _byte_level_alphabet()
