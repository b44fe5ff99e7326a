"""Graphs by number of rows, and the rows that fill them up."""

import pytest
import torch

from tests.workers.engine.host_accelerator import HostAccelerator
from workers.engine.decode_graphs import DecodeGraphs, DecodeRows, Padding, bucket_sizes


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9]), (32, [1, 2, 4, 8, 16, 24, 32])],
)
def test_sizes_end_with_the_seats(max_num_seqs: int, sizes: list[int]) -> None:
    assert bucket_sizes(max_num_seqs) == sizes


def test_more_rows_than_the_largest_size_are_not_captured() -> None:
    assert bucket_sizes(4096)[-2:] == [504, 512]


def make_rows(num: int) -> DecodeRows:
    return DecodeRows([11] * num, [22] * num, [33] * num, [44] * num, [55] * num)


def make_graphs(accelerator: HostAccelerator, max_num_seqs: int = 5) -> DecodeGraphs:
    """Whose logits [size, 5] are the rows themselves."""
    return DecodeGraphs(accelerator, lambda rows: rows.T.clone(), Padding(9, 8, 5), max_num_seqs)


def test_rows_are_padded_to_the_next_size_with_rows_of_the_dummy_block_that_write_apart() -> None:
    accelerator = HostAccelerator()
    graphs = make_graphs(accelerator, 8)
    assert accelerator.num_captured == 4
    lists = [torch.tensor(each) for each in graphs.pad(make_rows(5))]
    logits = graphs.run(lists)
    assert logits[:5].tolist() == [[11, 22, 33, 44, 55]] * 5
    assert logits[5:].tolist() == [[0, i, 9 * 8 + i, i + 1, 5] for i in range(3)]


def test_a_graph_reads_what_its_rows_are_by_then_and_its_result_is_overwritten() -> None:
    graphs = make_graphs(HostAccelerator())
    first = graphs.run([torch.tensor([i, i]) for i in range(5)])
    second = graphs.run([torch.tensor([i, i]) for i in range(5, 10)])
    assert second.tolist() == [[5, 6, 7, 8, 9]] * 2
    assert first is second and graphs.num_replays == 2


def test_all_graphs_share_the_memory_of_the_largest_ones_logits() -> None:
    graphs = make_graphs(HostAccelerator(), 8)
    logits = [graphs.run([torch.zeros(size, dtype=torch.int64)] * 5) for size in (1, 2, 8)]
    assert len({each.data_ptr() for each in logits}) == 1


def test_steps_without_rows_or_with_too_many_are_not_taken() -> None:
    graphs = make_graphs(HostAccelerator())
    assert [graphs.takes(num) for num in (0, 1, 5, 6)] == [False, True, True, False]
