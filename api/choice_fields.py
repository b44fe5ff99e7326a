"""The fields by which one prompt gets several outputs, sampled beside each other or found by beam search."""

from typing import Self

from pydantic import Field, model_validator

from api.fields import RequestObject, wrong_field

MAX_CHOICES = 16
MAX_LENGTH_PENALTY = 10.0


class ChoiceFields(RequestObject):
    """How many outputs, and which."""

    n: int = Field(
        1, ge=1, le=MAX_CHOICES, description="Outputs of the one prompt; each but the first has a seed of its own."
    )
    num_beams: int = Field(
        1,
        ge=1,
        le=MAX_CHOICES,
        description="Above 1: the outputs are the `n` best that a beam search of this width finds. It takes the "
        "likeliest tokens, whatever `temperature` says, and tells nothing before its end.",
    )
    length_penalty: float = Field(
        1.0,
        ge=-MAX_LENGTH_PENALTY,
        le=MAX_LENGTH_PENALTY,
        description="Of a beam search: its outputs are ranked by their log probability over their length to the power "
        "of this; above 0 favours long ones.",
    )
    early_stopping: bool = Field(
        False, description="Of a beam search: end it once `num_beams` outputs have ended, however good they are."
    )

    @model_validator(mode="after")
    def _beams_hold_the_choices(self) -> Self:
        is_search = self.num_beams > 1
        if is_search and self.n > self.num_beams:
            raise wrong_field("n", f"is {self.n}; a search with {self.num_beams} beams has no more outputs than beams")
        if not is_search and self.length_penalty != 1.0:
            raise wrong_field("length_penalty", "needs 'num_beams' above 1")
        if not is_search and self.early_stopping:
            raise wrong_field("early_stopping", "needs 'num_beams' above 1")
        return self

    @property
    def num_seats(self) -> int:
        """Seats in the running batch that all outputs take together."""
        return max(self.n, self.num_beams)
