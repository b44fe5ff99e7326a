"""The task that lm-eval is given; lm-eval itself runs with `make clients`."""

import json
import re
from pathlib import Path

import yaml

from tests.clients.word_order import NUM_CHOICES, NUM_ITEMS, TASK, TEXT, make_items, write_items


def test_every_item_has_one_right_ending_among_others_of_the_same_words() -> None:
    items, text = make_items(), " ".join(TEXT.read_text().split())
    assert len({item.question for item in items}) == len(items) == NUM_ITEMS
    assert {item.label for item in items} == set(range(NUM_CHOICES))
    for item in items:
        assert len(set(item.choices)) == NUM_CHOICES
        assert len({tuple(sorted(choice.split())) for choice in item.choices}) == 1
        continued = [f"{item.question} {choice}" in text for choice in item.choices]
        assert continued == [place == item.label for place in range(NUM_CHOICES)]


def test_the_task_reads_the_file_that_is_written_and_the_fields_of_its_items(tmp_path: Path) -> None:
    write_items(tmp_path)
    task = yaml.safe_load(TASK.read_text())
    (name,) = task["dataset_kwargs"]["data_files"].values()
    lines = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    fields = {re.fullmatch(r"{{(\w+)}}", task[f"doc_to_{what}"])[1] for what in ("text", "choice", "target")}
    assert [set(line) for line in lines] == [fields] * NUM_ITEMS
