"""Log probabilities as OpenAI's chat completions spell them."""

from collections.abc import Iterable

from api.chat.views import ChatLogprob, ChatTokenLogprob
from db.stream import Token
from workers.text.token_text import token_bytes, token_text
from workers.text.tokenizer import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[Token]) -> list[ChatLogprob]:
    """Of tokens that were asked for with them; those without are left out."""
    return [_entry(tokenizer, token) for token in tokens if token.logprobs is not None]


def _entry(tokenizer: Tokenizer, token: Token) -> ChatLogprob:
    said = token.logprobs or {}
    chosen = _told(tokenizer, token.token_id, said["logprob"])
    top = [_told(tokenizer, token_id, logprob) for token_id, logprob in said["top"]]
    return ChatLogprob(**chosen.model_dump(), top_logprobs=top)


def _told(tokenizer: Tokenizer, token_id: int, logprob: float) -> ChatTokenLogprob:
    return ChatTokenLogprob(
        token=token_text(tokenizer, token_id), logprob=logprob, bytes=list(token_bytes(tokenizer, token_id))
    )
