"""What an endpoint's answer may not show of the secrets that it repeats."""

import pytest

from workers.redaction import redacted
from workers.webhooks import MAX_EXCERPT_CHARS, excerpt_of

KEY = "S3cr3tS3cr3tS3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {KEY}",
        f"authorization: Basic {KEY}",
        f'Authorization: Digest username="u", response="{KEY}"',
        f'{{"headers": {{"Authorization": "Bearer {KEY}", "Host": "a.test"}}}}',
        f"Cookie: a=1; session={KEY}",
        f'{{"set-cookie": "id={KEY}; Path=/"}}',
        f"webhook-signature: v1,{KEY}{KEY}=",
        f"x-api-key: {KEY}",
        f'{{"api_key": "{KEY}"}}',
        f'{{"client_secret" : "{KEY}"}}',
        f"redirect to https://a.test/?access_token={KEY}&x=1",
        f"the password={KEY} is wrong",
        f"got bearer {KEY}",
        f"no such secret: whsec_{KEY}",
        f"key hr_{KEY} is unknown",
        f"key sk-{KEY} is unknown",
        f"expected v1,{KEY}{KEY}",
        f"cannot reach postgres://app:{KEY}@db/app",
    ],
)
def test_secrets_are_left_out(text: str) -> None:
    assert KEY not in redacted(text) and "[redacted]" in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "internal error",
        '{"error": "no such order", "id": 17}',
        "<html>502 Bad Gateway: the host did not answer</html>",
        "see https://a.test:8443/status?id=5",
        "a token is missing",
    ],
)
def test_other_words_are_left_as_they_are(text: str) -> None:
    assert redacted(text) == text


def test_the_secrets_that_signed_are_left_out_in_whatever_words() -> None:
    secret = "whsec_bWlsbC13aGVlbC1taWxsLXdoZWVs"
    assert redacted("computed with bWlsbC13aGVlbC1taWxsLXdoZWVs!", secrets=[secret]) == "computed with [redacted]!"


def test_secret_at_the_edge_of_an_excerpt_is_left_out_whole() -> None:
    body = "x" * (MAX_EXCERPT_CHARS - 6) + " hr_" + KEY
    assert "S3" not in excerpt_of(body.encode()) and len(excerpt_of(body.encode())) <= MAX_EXCERPT_CHARS
