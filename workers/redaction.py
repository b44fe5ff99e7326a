"""What endpoints answer is kept for their owners to read, but not the secrets that some of them repeat."""

import re
from collections.abc import Iterable

MARK = "[redacted]"
# Of these headers all goes: `Authorization: Digest username="...", ...`, `"cookie": "a=1; b=2"`.
HEADER = re.compile(
    r"""(?P<name>(?:authorization|cookie|webhook-signature)["']?\s*[:=]\s*)"""
    r"""(?:"[^"\r\n]*|'[^'\r\n]*|[^\s"'<>{}][^\r\n<>{}]*)""",
    re.I,
)
# Of what is a secret by its name, the value: `"api_key": "..."`, `?token=...`.
NAMES = "(?:api|access|private|secret)[_-]?key|token|secret|passwd|password|credentials?"
NAMED = re.compile(rf"""(?P<name>(?<![a-z0-9_-])[a-z0-9_-]*(?:{NAMES})["']?\s*[:=]\s*["']?)[^\s"'&<>,;]+""", re.I)
# And secrets by their own look.
BEARER = re.compile(r"\b(?P<name>(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.I)
PREFIXED = re.compile(r"\b(?P<name>whsec_|hr_|sk-|ghp_|xox[a-z]-)[A-Za-z0-9_+/=-]{4,}")
SIGNATURE = re.compile(r"\b(?P<name>v1,)[A-Za-z0-9+/]{20,}=*")
USER_INFO = re.compile(r"(?P<name>://)[^/\s@:]*:[^/\s@]*(?=@)")


def redacted(text: str, *, secrets: Iterable[str] = ()) -> str:
    """`text` without `secrets`, and without what looks like one. Done before it is cut: half a secret looks like none.

    The values of names that speak of secrets go, however harmless: an excerpt is there to tell why an event failed.
    """
    for secret in secrets:
        text = text.replace(secret.removeprefix("whsec_"), MARK)
    for pattern in (HEADER, NAMED, BEARER, PREFIXED, SIGNATURE, USER_INFO):
        text = pattern.sub(rf"\g<name>{MARK}", text)
    return text
