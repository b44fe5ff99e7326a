"""What the engine refuses and how a step fails: one exception per decision of the caller."""


class Refused(ValueError):
    """The engine can never run this sequence; its message says the numbers and the way out."""


class PromptTooLong(Refused):
    """The prompt leaves no room for a single output token."""

    def __init__(self, num_prompt_tokens: int, max_model_len: int) -> None:
        super().__init__(
            f"prompt has {num_prompt_tokens:,} tokens; this model takes {max_model_len:,} including at least one "
            "output token: shorten the prompt"
        )


class NeverFits(Refused):
    """Prompt and output need more KV blocks than the whole cache has."""

    def __init__(self, num_tokens: int, num_blocks: int, cache_blocks: int, block_size: int) -> None:
        super().__init__(
            f"prompt and output may reach {num_tokens:,} tokens, which take {num_blocks:,} KV blocks of {block_size}; "
            f"the cache has {cache_blocks:,} ({cache_blocks * block_size:,} tokens): "
            "lower max_tokens, shorten the prompt or give the worker a larger cache"
        )


class InvalidTokens(Refused):
    """The prompt is empty or has a token id outside the vocabulary."""


class TooManyChoices(Refused):
    """All choices of a prompt run at once."""

    def __init__(self, num_choices: int, max_num_seqs: int) -> None:
        super().__init__(
            f"{num_choices} outputs of one prompt are asked for; this worker has {max_num_seqs} seats: ask for fewer"
        )


class EngineBroken(Exception):
    """No sequence of a step can be computed, together or alone: it is the device, or the program, that is at fault."""

    def __init__(self, num_sequences: int, cause: Exception) -> None:
        super().__init__(f"none of {num_sequences} sequences can be computed: {type(cause).__name__}: {cause}")
