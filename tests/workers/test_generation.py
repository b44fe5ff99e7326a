"""One job's text while it is generated: cut off anywhere and resumed, it is the same."""

import pytest

from db.sampling import Sampling
from tests.checkpoints import tokenizer_json
from tests.workers.held_jobs import make_held
from workers.engine.outputs import StepOutput, TokenLogprobs
from workers.engine.sequence import Sequence
from workers.generation import LOWEST_LOGPROB, Generation
from workers.held import HeldJob
from workers.text.tokenizer import Tokenizer

TEXT = "The miller waits; 水车 turns 🌊 as long as there is water."


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer_json(512))
    return Tokenizer.load(path)


def output(token_id: int, finish_reason: str | None = None, logprobs: TokenLogprobs | None = None) -> StepOutput:
    return StepOutput("s", token_id, logprobs, finish_reason, 0)  # type: ignore[arg-type]


def push_all(generation: Generation, token_ids: list[int], *, is_whole: bool) -> str | None:
    """Push the tokens, with the last of a whole output ended by length, and return the finish reason."""
    for i, token_id in enumerate(token_ids):
        is_last = is_whole and i == len(token_ids) - 1
        reason = generation.push(output(token_id, "length" if is_last else None))
        if reason is not None:
            return reason
    return None


def text_of(held: HeldJob) -> str:
    return "".join(token.text for token in held.tokens)


def test_the_pieces_joined_are_the_text(tokenizer: Tokenizer) -> None:
    held = make_held()
    assert push_all(Generation(held, tokenizer), tokenizer.encode(TEXT), is_whole=True) == "length"
    assert text_of(held) == TEXT


@pytest.mark.parametrize("stop", [(), ("as long", "nowhere"), ("🌊",)])
def test_resumed_after_any_token_the_text_is_the_same(tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
    sampling, token_ids = Sampling(stop=stop), tokenizer.encode(TEXT)
    undisturbed = make_held(sampling=sampling)
    reason = push_all(Generation(undisturbed, tokenizer), token_ids, is_whole=True)
    for cut in range(1, len(undisturbed.tokens)):
        first = make_held(sampling=sampling)
        push_all(Generation(first, tokenizer), token_ids[:cut], is_whole=False)
        second = make_held(sampling=sampling)
        second.tokens = list(first.tokens)
        resumed = Generation(second, tokenizer)
        resumed.resume()
        assert not resumed.is_over
        assert push_all(resumed, token_ids[cut:], is_whole=True) == reason
        assert second.tokens == undisturbed.tokens


def test_a_job_whose_delivered_text_holds_a_stop_string_needs_no_step(tokenizer: Tokenizer) -> None:
    held = make_held(sampling=Sampling(stop=("as long",)))
    assert push_all(Generation(held, tokenizer), tokenizer.encode(TEXT), is_whole=True) == "stop"
    resumed = make_held(sampling=held.claimed.sampling)
    resumed.tokens = list(held.tokens)
    Generation(resumed, tokenizer).resume()
    assert resumed.finish_reasons == ["stop"]
    assert text_of(held) == TEXT.partition("as long")[0]


def test_a_stop_token_is_delivered_without_text(tokenizer: Tokenizer) -> None:
    held = make_held()
    [token_id] = tokenizer.encode("x")
    last = StepOutput("s", token_id, None, "stop", 0, is_stop_token=True)
    assert Generation(held, tokenizer).push(last) == "stop"
    assert [(token.token_id, token.text) for token in held.tokens] == [(token_id, "")]


def test_what_postgres_cannot_store_is_replaced_one_for_one(tokenizer: Tokenizer) -> None:
    held = make_held(sampling=Sampling(logprobs=1))
    [nul] = tokenizer.encode("\0")
    logprobs = TokenLogprobs(logprob=-0.5, top=((nul, -0.5), (1, float("-inf"))))
    Generation(held, tokenizer).push(output(nul, "length", logprobs))
    assert text_of(held) == "\ufffd"
    assert held.tokens[0].logprobs == {"logprob": -0.5, "top": [[nul, -0.5], [1, LOWEST_LOGPROB]]}


def test_what_is_held_back_for_the_order_is_kept_when_the_job_is_cut_short(tokenizer: Tokenizer) -> None:
    held = make_held(sampling=Sampling(n=3))
    generation = Generation(held, tokenizer)
    [a, b] = tokenizer.encode("a")[:1] + tokenizer.encode("b")[:1]
    for choice, token_id in ((1, a), (1, b), (2, a)):
        generation.push(StepOutput("s", token_id, None, None, 0, choice=choice))
    assert held.tokens == []
    generation.close()
    assert [(token.choice, token.text) for token in held.tokens] == [(1, "a"), (2, "a"), (1, "b")]


def test_log_probabilities_of_the_prompt_are_kept_once_they_come(tokenizer: Tokenizer) -> None:
    held = make_held()
    generation, told = Generation(held, tokenizer), [TokenLogprobs(-1.5, ((7, -0.5),))]
    generation.push(StepOutput("s", 5, None, None, 0, prompt_logprobs=told))
    generation.push(StepOutput("s", 6, None, "length", 0))
    assert held.ended_as("succeeded").prompt_logprobs == [{"logprob": -1.5, "top": [[7, -0.5]]}]


def test_an_embedding_job_is_pooled_and_ends_with_its_vector_and_no_token(tokenizer: Tokenizer) -> None:
    held = make_held(kind="embedding", max_tokens=0)
    generation = Generation(held, tokenizer, pooling="last")
    generation.resume()
    unit = generation.unit()
    assert isinstance(unit, Sequence) and (unit.params.pooling, unit.params.max_tokens) == ("last", 0)
    assert generation.push(StepOutput("s", -1, None, "stop", 2, embedding=[0.6, 0.8])) == "stop"
    assert generation.is_over
    end = held.ended_as("succeeded")
    assert (end.embedding, end.token_ids, end.text, end.finish_reason) == ([0.6, 0.8], [], "", "stop")
    assert end.num_cached_tokens == 2
    text = Generation(make_held(), tokenizer, pooling="last").unit()
    assert isinstance(text, Sequence) and text.params.pooling is None
