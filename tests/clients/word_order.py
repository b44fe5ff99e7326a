"""Items of a task for lm-eval: in which order did a sentence's last words come? Made of a text that is here anyway."""

import json
import random
import re
from dataclasses import asdict, dataclass
from pathlib import Path

TASK = Path(__file__).with_name("word_order.yaml")
TEXT = Path(__file__).parents[1] / "bench" / "texts" / "alice.txt"
NUM_ITEMS = 40
NUM_CHOICES = 4
SENTENCE_WORDS = range(10, 41)
ENDING_WORDS = range(4, 13)  # half of the sentence's, within these
SEED = 1


@dataclass(frozen=True)
class Item:
    """A beginning, and endings of which the one at `label` is the text's."""

    question: str
    choices: tuple[str, ...]
    label: int


def make_items() -> list[Item]:
    """The same ones at every call, each of a sentence of its own."""
    generator = random.Random(SEED)
    sentences = [sentence.split() for sentence in re.split(r"(?<=[.!?])\s+", TEXT.read_text())]
    fitting = [words for words in sentences if len(words) in SENTENCE_WORDS]
    return [_make_item(words, generator) for words in generator.sample(fitting, NUM_ITEMS)]


def write_items(directory: Path) -> None:
    """Write them where the task looks for them when lm-eval runs in the directory."""
    lines = [json.dumps(asdict(item)) for item in make_items()]
    (directory / TASK.with_suffix(".jsonl").name).write_text("\n".join(lines) + "\n")


def _make_item(words: list[str], generator: random.Random) -> Item:
    num_ending = min(max(len(words) // 2, ENDING_WORDS.start), ENDING_WORDS.stop - 1)
    beginning, ending = words[:-num_ending], words[-num_ending:]
    choices = [" ".join(ending)]
    while len(choices) < NUM_CHOICES:
        other = " ".join(generator.sample(ending, num_ending))
        if other not in choices:
            choices.append(other)
    right = choices[0]
    generator.shuffle(choices)
    return Item(" ".join(beginning), tuple(choices), choices.index(right))
