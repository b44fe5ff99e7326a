"""From a prompt or messages to token ids, and whether they fit the model."""

from typing import Any

from api.errors import invalid
from api.services import Services
from api.submission import Submission
from api.tool_use import style_of
from db.models import Worker
from workers.text.chat_template import ChatTemplateError


async def prompt_token_ids(services: Services, card: Worker, submission: Submission) -> list[int]:
    """The prompt as the model will read it; at least one token."""
    param = submission.prompt_name if submission.messages is None else "messages"
    if submission.messages is not None:
        text = await _render(services, card, submission, submission.messages)
        token_ids = await _encode(services, card, text, param=param)
    elif isinstance(submission.prompt, str):
        token_ids = await _encode(services, card, submission.prompt, param=param)
    else:
        token_ids = submission.prompt or []
        check_token_ids(card, token_ids, param=param)
    if not token_ids:
        raise invalid(f"'{param}' has no tokens; there must be at least one.", param=param)
    return token_ids


def fit(card: Worker, num_prompt_tokens: int, submission: Submission) -> int:
    """The job's max_tokens, or a 400 with the numbers when prompt and output can never fit."""
    wanted, num_seats = submission.max_tokens, submission.sent.num_seats
    if wanted is None:
        room = _longest(card, num_prompt_tokens, num_seats) - num_prompt_tokens
        wanted = max(1, min(submission.default_max_tokens, room))
    check_seats(card, n=submission.sent.n, num_beams=submission.sent.num_beams)
    prompt_param = submission.prompt_name if submission.messages is None else "messages"
    check_fit(card, num_prompt_tokens, wanted, num_seats=num_seats, prompt_param=prompt_param)
    return wanted


def check_fit(card: Worker, num_prompt_tokens: int, wanted: int, *, num_seats: int, prompt_param: str) -> None:
    """Raise the 400 with the numbers when a prompt and `wanted` tokens for each of its seats can never fit."""
    longest = _longest(card, num_prompt_tokens, num_seats)
    room = longest - num_prompt_tokens
    if wanted <= room:
        return
    total = num_prompt_tokens + wanted
    output = f" and max_tokens is {wanted:,}, together {total:,}" if wanted else ""  # an embedding has none
    if total > card.max_model_len:
        limit = f"'{card.model}' takes {card.max_model_len:,} in all"
    else:
        limit = f"the KV cache of '{card.model}' holds {longest:,}"
        if num_seats > 1:
            limit += f" for each of {num_seats} outputs of this prompt"
    way_out = f"Send max_tokens of at most {room:,}" if room > 0 else "Shorten the prompt"
    raise invalid(
        f"The prompt has {num_prompt_tokens:,} tokens{output}; {limit}. {way_out}.",
        param="max_tokens" if room > 0 else prompt_param,
        code="context_length_exceeded",
    )


def check_seats(card: Worker, *, n: int, num_beams: int) -> None:
    """Raise the 400 for more outputs, or beams, than run at once."""
    for param, num_seats in (("n", n), ("num_beams", num_beams)):
        if num_seats > card.max_num_seqs:
            raise invalid(
                f"'{param}' is {num_seats}; all of them run at once, and a worker of '{card.model}' has "
                f"{card.max_num_seqs} seats. Send at most {card.max_num_seqs}.",
                param=param,
            )


def num_blocks(num_prompt_tokens: int, max_tokens: int, block_size: int, *, num_seats: int) -> int:
    """KV blocks that the job needs at most; the engine counts the same way.

    Its outputs share the prompt's full blocks; each has the last, partial one as its own.
    """
    num_shared = num_prompt_tokens // block_size
    num_own = -(-(num_prompt_tokens + max_tokens) // block_size) - num_shared
    return num_shared + num_seats * num_own


def _longest(card: Worker, num_prompt_tokens: int, num_seats: int) -> int:
    """Most tokens that prompt and output may have together when all outputs have as many."""
    num_shared = num_prompt_tokens // card.block_size
    num_own = max(0, card.num_blocks - num_shared) // num_seats
    return min(card.max_model_len, (num_shared + num_own) * card.block_size)


async def _encode(services: Services, card: Worker, text: str, *, param: str) -> list[int]:
    """The token ids of a text, unless its size alone says that they cannot fit: encoding it could take seconds."""
    tokenizer = await services.texts.tokenizer(card)
    longest, num_bytes = tokenizer.longest_token_bytes, len(text.encode())
    if longest is not None and num_bytes > card.max_model_len * longest:
        raise invalid(
            f"The prompt has {num_bytes:,} bytes; '{card.model}' takes {card.max_model_len:,} tokens in all, "
            f"of at most {longest:,} bytes each, so at most {card.max_model_len * longest:,}. Shorten the prompt.",
            param=param,
            code="context_length_exceeded",
        )
    return await services.texts.encode(tokenizer, text)


async def _render(services: Services, card: Worker, submission: Submission, messages: list[dict[str, Any]]) -> str:
    if card.chat_template is None:
        raise invalid(
            f"The model '{card.model}' has no chat template. Send 'prompt' instead, or have the operator set "
            "HEADRACE_CHAT_TEMPLATE to a Jinja2 template or a file with one.",
            param="messages",
            code="no_chat_template",
        )
    if "developer" not in card.chat_template:  # OpenAI's newer name; a template may drop a role it has not
        messages = [each | {"role": "system"} if each["role"] == "developer" else each for each in messages]
    try:
        return await services.texts.render(card, messages, _tools(card, submission), submission.template_variables)
    except ChatTemplateError as error:
        message = f"The chat template of '{card.model}' refuses these messages: {error}"
        raise invalid(message, param="messages", code="chat_template_error") from error


def _tools(card: Worker, submission: Submission) -> list[dict[str, Any]] | None:
    """What the template shows of the tools; a 400 where nobody could read the calls."""
    if submission.tools is None:
        return None
    style_of(card)
    return [function.as_template_variable() for function in submission.tools.functions]


def check_token_ids(card: Worker, token_ids: list[int], *, param: str = "prompt") -> None:
    """Raise the 400 for a token id that the model has not."""
    worst = max(token_ids, default=0)
    if worst >= card.vocab_size:
        raise invalid(
            f"Token id {worst:,} is out of range; the vocabulary of '{card.model}' has {card.vocab_size:,} ids from 0.",
            param=param,
        )
