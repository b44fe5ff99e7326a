"""Templates as models bring them, and what happens when one refuses."""

import pytest

from tests.checkpoints import CHAT_TEMPLATE
from workers.text.chat_template import TRANSCRIPT, ChatTemplate, ChatTemplateError

HELLO = [{"role": "user", "content": "Hello"}]


def render(source: str, messages: list[dict[str, object]] = HELLO, **options: bool) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, **options)


def test_messages_become_a_prompt_that_the_assistant_continues() -> None:
    assert render(CHAT_TEMPLATE) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHAT_TEMPLATE, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


def test_the_transcript_is_plain_text() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"}]
    assert render(TRANSCRIPT, messages) == "System: Be brief.\n\nUser: Hi\n\nAssistant:"


def test_blocks_leave_no_blank_lines() -> None:
    assert render("{% if true %}\n    {% set x = 1 %}\n  a\n{% endif %}\n") == "  a\n"


def test_loop_controls_and_generation_marks_are_understood() -> None:
    source = "{% for n in [1, 2, 3] %}{% if n == 2 %}{% continue %}{% endif %}{{ n }}{% endfor %}"
    assert render(source) == "13"
    assert render("{% generation %}{{ bos_token }}{% endgeneration %}.") == "<s>."


def test_json_is_written_for_a_model_not_for_a_browser() -> None:
    assert render("{{ {'b': '<é&>', 'a': 1} | tojson }}") == '{"b": "<é&>", "a": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


def test_the_date_is_there_for_templates_that_ask() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == len("2026-01-31")


def test_a_refusal_carries_the_templates_own_words() -> None:
    with pytest.raises(ChatTemplateError, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].missing.deeper }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for a in range(100001) %}x{% endfor %}",
    ],
)
def test_a_template_that_fails_or_leaves_the_sandbox_is_an_error_not_a_crash(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


def test_a_template_that_is_no_jinja_is_refused_when_it_is_read() -> None:
    with pytest.raises(ChatTemplateError, match="not valid Jinja2"):
        ChatTemplate("{% for %}", bos_token=None, eos_token=None)


def test_a_template_that_writes_without_end_is_stopped() -> None:
    source = "{% for a in range(1000) %}{% for b in range(1000) %}" + "x" * 100 + "{% endfor %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="over 16,777,216 characters"):
        render(source)


def test_text_in_messages_is_never_run_as_a_template() -> None:
    assert "{{ 7 * 7 }}" in render(CHAT_TEMPLATE, [{"role": "user", "content": "{{ 7 * 7 }}"}])
