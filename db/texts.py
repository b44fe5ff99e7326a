"""What the stores can hold of a model's text."""

REPLACEMENT = "\ufffd"


def storable(text: str) -> str:
    """The text with U+FFFD for each NUL, which Postgres has no place for. As long as before, so offsets stay true.

    A model may well write a NUL; both stores get the same text, so that a stream reads the same from either.
    """
    return text.replace("\0", REPLACEMENT)
