"""What can never run is refused before it waits for anything."""

from workers.engine.config import EngineConfig, blocks_needed
from workers.engine.errors import InvalidTokens, NeverFits, PromptTooLong, TooManyChoices
from workers.engine.sequence import Sequence


def refuse_impossible(sequence: Sequence, config: EngineConfig, *, num_choices: int = 1) -> None:
    """Raise the Refused that says, with the numbers, why an engine of this size can never run so many choices of it."""
    num_prompt_tokens = sequence.num_prompt_tokens
    if not num_prompt_tokens:
        raise InvalidTokens("the prompt is empty; it needs at least one token")
    if not 0 <= min(sequence.token_ids) <= max(sequence.token_ids) < config.vocab_size:
        raise InvalidTokens(f"a token id is outside the vocabulary of {config.vocab_size:,} (0 to one less)")
    num_wanted = min(1, sequence.params.max_tokens)  # none by one that is pooled
    if num_prompt_tokens + num_wanted > config.max_model_len:
        raise PromptTooLong(num_prompt_tokens, config.max_model_len)
    if num_choices > config.max_num_seqs:
        raise TooManyChoices(num_choices, config.max_num_seqs)
    max_tokens = min(sequence.params.max_tokens, config.max_model_len - num_prompt_tokens)
    num_blocks = blocks_needed(num_prompt_tokens, max_tokens, config.block_size, num_choices=num_choices)
    if num_blocks > config.num_blocks:
        raise NeverFits(num_prompt_tokens + num_choices * max_tokens, num_blocks, config.num_blocks, config.block_size)
