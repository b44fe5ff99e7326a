"""The reference operations: right against float64, and a row at a time as good as all at once."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from kernels import make_kv_cache, reference
from tests.kernels.threads import threads

DTYPES = [torch.float32, torch.bfloat16]
NUM_ROWS = 130
# First and last row of what is computed by itself: single rows, odd counts, across the tiles of 32 rows.
CUTS = [(0, 1), (77, 78), (129, 130), (0, 2), (5, 12), (30, 35), (1, 33), (64, 127), (3, 130)]


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rows_stand_alone(operation: Callable[[slice], torch.Tensor]) -> None:
    whole = operation(slice(0, NUM_ROWS))
    for start, end in CUTS:
        assert torch.equal(operation(slice(start, end)), whole[start:end]), (start, end)


@pytest.mark.parametrize(("num_in", "num_out"), [(16, 257), (63, 64), (64, 512), (640, 513), (2048, 96)])
def test_linear_gives_each_row_its_own_bits(num_in: int, num_out: int, dtype: torch.dtype) -> None:
    x = noise(NUM_ROWS, num_in, dtype=dtype)
    weight, bias = noise(num_out, num_in, dtype=dtype, seed=1), noise(num_out, dtype=dtype, seed=2)
    assert_rows_stand_alone(lambda rows: reference.linear(x[rows], weight, bias))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize(("num_in", "num_out"), [(64, 2), (64, 6), (2048, 128), (8192, 256), (2048, 640), (64, 576)])
def test_linear_does_not_depend_on_how_threads_share_it(num_in: int, num_out: int, num_threads: int) -> None:
    x, weight = noise(NUM_ROWS, num_in, dtype=torch.float32), noise(num_out, num_in, dtype=torch.float32, seed=1)
    with threads(num_threads):
        assert_rows_stand_alone(lambda rows: reference.linear(x[rows], weight))


def test_linear_is_no_less_exact_than_pytorch(dtype: torch.dtype) -> None:
    x, weight = noise(63, 640, dtype=dtype), noise(257, 640, dtype=dtype, seed=1)
    exact = x.double() @ weight.double().T
    ours = (reference.linear(x, weight).double() - exact).abs().max()
    theirs = (functional.linear(x, weight).double() - exact).abs().max()
    assert ours <= 2 * theirs


def test_linear_of_no_rows_is_empty() -> None:
    assert reference.linear(torch.empty(0, 8), torch.empty(4, 8)).shape == (0, 4)


def test_linear_widens_to_the_dtype_asked_for() -> None:
    x, weight = noise(3, 64, dtype=torch.bfloat16), noise(5, 64, dtype=torch.bfloat16)
    assert reference.linear(x, weight, out_dtype=torch.float32).dtype == torch.float32


def test_norms_give_each_row_its_own_bits(dtype: torch.dtype) -> None:
    x, residual, weight = noise(NUM_ROWS, 100, dtype=dtype), noise(NUM_ROWS, 100, dtype=dtype, seed=1), torch.rand(100)
    assert_rows_stand_alone(lambda rows: reference.rms_norm(x[rows], weight, 1e-6))
    assert_rows_stand_alone(lambda rows: reference.add_rms_norm(x[rows], residual[rows], weight, 1e-6)[0])


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    normalized = reference.rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), eps=0.0)
    assert torch.allclose(normalized, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


def test_add_rms_norm_leaves_its_inputs_and_returns_their_sum() -> None:
    x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    normalized, total = reference.add_rms_norm(x, residual, torch.ones(2), 0.0)
    assert torch.equal(total, torch.tensor([[3.0, 4.0]]))
    assert torch.equal(normalized, reference.rms_norm(total, torch.ones(2), 0.0))
    assert torch.equal(x, torch.tensor([[1.0, 2.0]]))


def test_activations_give_each_row_its_own_bits(dtype: torch.dtype) -> None:
    x = noise(NUM_ROWS, 2 * 100, dtype=dtype)
    assert_rows_stand_alone(lambda rows: reference.silu_and_mul(x[rows]))
    assert_rows_stand_alone(lambda rows: reference.gelu_and_mul(x[rows]))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("activate_and_mul", [reference.silu_and_mul, reference.gelu_and_mul])
def test_activations_do_not_depend_on_where_threads_share_the_rows(
    activate_and_mul: Callable[[torch.Tensor], torch.Tensor], num_threads: int, dtype: torch.dtype
) -> None:
    x = noise(771, 2 * 100, dtype=dtype)
    with threads(num_threads):
        alone = torch.cat([activate_and_mul(row) for row in torch.split(x, 1)])
        assert torch.equal(activate_and_mul(x), alone)


def test_activations_gate_the_second_half_by_the_first() -> None:
    x = torch.tensor([[1.0, -2.0, 10.0, 100.0]])
    gate = x[:, :2]
    assert torch.allclose(reference.silu_and_mul(x), gate * gate.sigmoid() * x[:, 2:])
    assert torch.allclose(reference.gelu_and_mul(x), functional.gelu(gate, approximate="tanh") * x[:, 2:])


def test_rotary_gives_each_row_its_own_bits(dtype: torch.dtype) -> None:
    q, k = noise(NUM_ROWS, 3, 32, dtype=dtype), noise(NUM_ROWS, 1, 32, dtype=dtype)
    positions = torch.randint(0, 100_000, (NUM_ROWS,), generator=torch.Generator().manual_seed(0))
    inv_freq = 1.0 / 10000.0 ** (torch.arange(16) / 16)

    def rotate(rows: slice) -> torch.Tensor:
        return torch.cat(
            reference.apply_rotary(q[rows], k[rows], reference.rotary_cos_sin(positions[rows], inv_freq)), 1
        )

    assert_rows_stand_alone(rotate)


def test_rotary_turns_each_pair_by_its_angle() -> None:
    quarter = torch.tensor([torch.pi / 2])  # radians per position
    q = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])  # one head of two elements at three positions
    turned, _ = reference.apply_rotary(q, q, reference.rotary_cos_sin(torch.tensor([0, 1, 1]), quarter))
    assert torch.allclose(turned[:, 0], torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), atol=1e-6)


def test_embedding_scale_is_rounded_to_the_dtype_of_the_weight() -> None:
    weight = torch.ones(4, 2, dtype=torch.bfloat16)
    assert reference.embedding(torch.tensor([3, 0]), weight, 640**0.5).tolist() == [[25.25, 25.25]] * 2


def test_store_kv_writes_the_slots_named_and_no_other() -> None:
    cache = make_kv_cache(
        num_blocks=3, num_layers=2, block_size=4, num_kv_heads=1, head_dim=2, dtype=torch.float32, device="cpu"
    )
    k, v = torch.full((2, 1, 2), 1.0), torch.full((2, 1, 2), 2.0)
    reference.store_kv(k, v, cache[:, 1], torch.tensor([4 * 2 + 3, 0]))
    assert cache[2, 1, 0, 3].tolist() == cache[0, 1, 0, 0].tolist() == [[1.0, 1.0]]
    assert cache[2, 1, 1, 3].tolist() == cache[0, 1, 1, 0].tolist() == [[2.0, 2.0]]
    assert cache.sum() == 12.0
