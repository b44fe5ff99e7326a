"""Values to the device and back by memory that is used again only when its copy is done."""

import torch

from tests.workers.engine.host_accelerator import GARBAGE, HostAccelerator
from workers.engine.staging import ALIGNMENT, FIRST_SIZE, Downloads, Uploads


def test_lists_and_reals_arrive_by_one_copy_each_where_kernels_want_it() -> None:
    accelerator = HostAccelerator()
    first, empty, second, reals = Uploads(accelerator).put([1, -2, 3], [], [2**40], reals=[0.25, 1e-300])
    assert (first.tolist(), empty.tolist(), second.tolist()) == ([1, -2, 3], [], [2**40])
    assert reals.dtype == torch.float64 and reals.tolist() == [0.25, 1e-300]
    assert accelerator.num_uploads == 1
    assert all(each.storage_offset() % ALIGNMENT == 0 for each in (first, second, reals))


def test_two_buffers_are_filled_without_a_wait_and_the_third_time_waits_for_the_first() -> None:
    accelerator = HostAccelerator()
    uploads = Uploads(accelerator)
    for step in range(2):
        uploads.put([step])
    assert accelerator.num_done == 0
    uploads.put([2])
    assert accelerator.num_done == 1
    assert accelerator.num_pinned == 2


def test_a_list_that_is_too_long_gets_a_buffer_that_holds_it() -> None:
    uploads = Uploads(HostAccelerator())
    values = list(range(FIRST_SIZE + 1))
    for _ in range(3):
        assert uploads.put(values)[0].tolist() == values


def test_downloads_under_way_have_a_buffer_each_which_is_free_once_it_is_read() -> None:
    accelerator = HostAccelerator()
    downloads = Downloads(accelerator, 4)
    under_way = [downloads.start(torch.tensor([step, step + 1])) for step in range(2)]
    assert accelerator.num_pinned == 2
    assert [each.read() for each in under_way] == [[0, 1], [1, 2]]
    assert downloads.start(torch.tensor([7, 8, 9, 10])).read() == [7, 8, 9, 10]
    assert accelerator.num_pinned == 2


def test_what_is_not_waited_for_is_garbage_here_as_it_may_be_on_a_gpu() -> None:
    accelerator = HostAccelerator()
    host = accelerator.pinned(1)
    accelerator.download(torch.tensor([5]), host)
    mark = accelerator.mark()
    assert host.tolist() == [GARBAGE]
    mark.wait()
    assert host.tolist() == [5]
