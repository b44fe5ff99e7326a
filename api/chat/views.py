"""What comes out of POST /v1/chat/completions, as OpenAI spells it."""

from typing import Literal

from pydantic import BaseModel, Field

from api.chat.calls import ChatToolCall
from api.openai_fields import UsedTier
from api.openai_usage import CompletionUsage
from api.schemas import TokenLogprobs

ChatFinishReason = Literal["stop", "length", "tool_calls"]


class ChatMessage(BaseModel):
    """What the assistant says, or calls."""

    role: Literal["assistant"] = Field("assistant", description="Always `assistant`.")
    content: str | None = Field(description="The text; null where there are only calls.")
    refusal: None = Field(None, description="Always null.")
    tool_calls: list[ChatToolCall] | None = Field(None, description="What is called; left out when nothing is.")


class ChatTokenLogprob(BaseModel):
    """A token, and its log probability."""

    token: str = Field(description="The token's text.")
    logprob: float = Field(description="Its log probability.")
    bytes: list[int] = Field(description="Its bytes: some tokens are no whole characters.")


class ChatLogprob(ChatTokenLogprob):
    """A token that was written."""

    top_logprobs: list[ChatTokenLogprob] = Field(description="The likeliest alternatives, the likeliest first.")


class ChatLogprobs(BaseModel):
    """Log probabilities."""

    content: list[ChatLogprob] = Field(description="One entry per token, those of calls included.")
    refusal: None = Field(None, description="Always null.")


class ChatChoice(BaseModel):
    """One of the messages."""

    index: int = Field(description="Which one, from 0.")
    message: ChatMessage = Field(description="The message.")
    logprobs: ChatLogprobs | None = Field(description="When the request asked for them.")
    finish_reason: ChatFinishReason | None = Field(
        description="`stop`: end of sequence or a stop text; `length`: the most tokens; `tool_calls`: it calls tools."
    )


class ChatCompletion(BaseModel):
    """A chat completion."""

    id: str = Field(description="Its id; GET /v1/jobs/job_... with the same digits shows the job behind it.")
    object: Literal["chat.completion"] = Field("chat.completion", description="Always `chat.completion`.")
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="The model it ran on.")
    choices: list[ChatChoice] = Field(description="As many as `n`.")
    usage: CompletionUsage = Field(description="Tokens counted, those of all choices.")
    service_tier: UsedTier = Field(description="The tier it ran in: `priority`, `default` or `flex`.")
    prompt_logprobs: list[TokenLogprobs | None] | None = Field(
        None, description="One entry per token of the prompt, null for the first, when the request asked for them."
    )
