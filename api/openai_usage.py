"""Tokens counted, as OpenAI's completions tell them."""

from collections.abc import Iterable

from pydantic import BaseModel, Field

from db.models import Job


class PromptTokensDetails(BaseModel):
    """Details of `prompt_tokens`."""

    cached_tokens: int = Field(description="Those that were not computed again.")


class CompletionUsage(BaseModel):
    """Tokens counted."""

    prompt_tokens: int = Field(description="Tokens of the prompt.")
    completion_tokens: int = Field(description="Tokens written.")
    total_tokens: int = Field(description="Their sum.")
    prompt_tokens_details: PromptTokensDetails = Field(description="About the prompt's tokens.")


def usage_of(job: Job) -> CompletionUsage:
    """Of a job that has ended."""
    return usage_with(job, job.num_output_tokens or 0, job.num_cached_tokens or 0)


def usage_with(job: Job, num_output: int, num_cached: int) -> CompletionUsage:
    """Of a job of whose end the stream tells."""
    return CompletionUsage(
        prompt_tokens=job.num_prompt_tokens,
        completion_tokens=num_output,
        total_tokens=job.num_prompt_tokens + num_output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
    )


def total(usages: Iterable[CompletionUsage]) -> CompletionUsage:
    """Of all of them together."""
    each = list(usages)
    return CompletionUsage(
        prompt_tokens=sum(usage.prompt_tokens for usage in each),
        completion_tokens=sum(usage.completion_tokens for usage in each),
        total_tokens=sum(usage.total_tokens for usage in each),
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(usage.prompt_tokens_details.cached_tokens for usage in each)
        ),
    )
