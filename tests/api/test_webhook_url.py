"""A webhook URL that can never be posted to is refused at the submit, and not found out by its deliveries."""

from collections.abc import Iterator

import pytest
from pydantic import TypeAdapter, ValidationError

from api.fields import WebhookUrl
from db.settings import get_settings

BODY = {"model": "tiny", "prompt": "the mill wheel"}
FIELD: "TypeAdapter[str]" = TypeAdapter(WebhookUrl)


@pytest.fixture
def private_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADRACE_WEBHOOK_ALLOW_PRIVATE", "1")
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


async def test_submit_with_an_unusable_webhook_url_names_the_field_and_the_reason(client, worker) -> None:
    for url, words in {
        "http:example.com": "names a host",
        "http://ex.com\\@evil.com/": "backslashes",
        " http://example.com": "spaces",
        "http://example.com/\x7f": "control characters",
        "http://☃.net/": "not a URL",
        "http://.": "not a URL",
        "http://a..b/": "a..b can be no host",
        "http://127.1:9000/": "HEADRACE_WEBHOOK_ALLOW_PRIVATE",
        "http://localhost:9000/": "HEADRACE_WEBHOOK_ALLOW_PRIVATE",
    }.items():
        reply = await client.post("/v1/jobs", json=BODY | {"webhook_url": url})
        assert reply.status_code == 400, url
        error = reply.json()["error"]
        assert error["param"] == "webhook_url" and words in error["message"], error


def test_webhook_url_is_kept_as_it_was_sent() -> None:
    for url in ("https://example.com", "HTTP://Example.com:80/a?b#c", "http://xn--ls8h.la/"):
        assert FIELD.validate_python(url) == url


def test_private_address_is_taken_where_that_is_allowed(private_allowed: None) -> None:
    assert FIELD.validate_python("http://127.0.0.1:9000/") == "http://127.0.0.1:9000/"
    with pytest.raises(ValidationError):
        FIELD.validate_python("http://a..b/")
