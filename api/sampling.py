"""From the fields of a submit to how a worker is to choose tokens, checked against the model's vocabulary."""

import asyncio
from collections.abc import Iterable

from api.constraint_fields import BadWord
from api.errors import ApiError, invalid
from api.services import Services
from api.submission import Submission
from db.models import Worker
from db.sampling import Sampling, StructuredOutput
from workers.text.tokenizer import Tokenizer


async def sampling_of(services: Services, card: Worker, submission: Submission, max_tokens: int) -> Sampling:
    """How the job's tokens are chosen, or the ApiError that says which field is wrong for this model."""
    sent = submission.sent
    if sent.min_tokens > max_tokens:
        raise invalid(f"'min_tokens' is {sent.min_tokens:,}, more than max_tokens, {max_tokens:,}.", param="min_tokens")
    bad_words = await _bad_words(services, card, sent.bad_words) if sent.bad_words else []
    sampling = sent.sampling(bad_words)
    check_vocabulary(card, sampling)
    structure, param = sampling.structured_output, sent.structure_param
    if submission.tools is not None:
        tokenizer = await services.texts.tokenizer(card)
        structure, param = submission.tools.structure(card, tokenizer, structure), "tools"
    if structure is not None:
        await _check_structure(services, card, structure, param)
    return sampling.model_copy(update={"structured_output": structure})


def check_vocabulary(card: Worker, sampling: Sampling) -> None:
    """Raise the 400 for a token id in the sampling that the model has not."""
    _check_ids(card, sampling.logit_bias, param="logit_bias")
    _check_ids(card, (token_id for word in sampling.bad_words for token_id in word), param="bad_words")


async def _check_structure(services: Services, card: Worker, output: StructuredOutput, param: str) -> None:
    await services.texts.tokenizer(card)  # a 503 when it cannot be read
    reason = await services.grammars.reason(card, output)
    if reason is not None:
        raise invalid(f"'{param}' cannot be used: {reason}.", param=param, code="invalid_grammar")


def _check_ids(card: Worker, token_ids: Iterable[int], *, param: str) -> None:
    worst = max(token_ids, default=0)
    if worst >= card.vocab_size:
        raise invalid(
            f"'{param}' has the token id {worst:,}; the vocabulary of '{card.model}' has {card.vocab_size:,} ids "
            "from 0.",
            param=param,
        )


async def _bad_words(services: Services, card: Worker, words: list[BadWord]) -> list[tuple[int, ...]]:
    """Each word as token ids, a text in both of its spellings: at the beginning, and after a space."""
    tokenizer = await services.texts.tokenizer(card)
    return await asyncio.to_thread(_runs, tokenizer, words)


def _runs(tokenizer: Tokenizer, words: list[BadWord]) -> list[tuple[int, ...]]:
    runs: dict[tuple[int, ...], None] = {}  # in their order, each once
    for index, word in enumerate(words):
        if not isinstance(word, str):
            runs[tuple(word)] = None
            continue
        spellings = [word] if word.startswith(" ") else [word, f" {word}"]
        encoded = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in spellings]
        if not all(encoded):
            raise _no_tokens(index, word)
        runs.update(dict.fromkeys(encoded))
    return list(runs)


def _no_tokens(index: int, word: str) -> ApiError:
    param = f"bad_words[{index}]"
    return invalid(f"'{param}' is '{word}', which has no tokens.", param=param)
