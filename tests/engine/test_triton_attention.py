"""The paged decode kernel, interpreted, against a float64 reference on NaN-filled memory."""

import pytest
import torch

import engine.attention.triton as back_end
from engine.attention.triton import DecodeTiling, TritonAttention, fitted
from engine.attention.triton_prefill import prefill_tiling
from engine.errors import DeviceError
from engine.kv_cache import NULL_BLOCK
from tests.attention_reference import LAYER, Heads, paged_case
from tests.engine.interpreted import interpreter  # noqa: F401

NAN = float("nan")
LENGTHS = (1, 2, 17, 257, 258, 520)
SMALL = DecodeTiling(tile=16, chunk=32, programs_per_sm=0)


@pytest.fixture
def finely_cut(monkeypatch):
    """With ``SMALL``, parts have 32 tokens and there are four at most: few tokens reach every path."""
    monkeypatch.setattr(back_end, "MOST_SPLITS", 4)


def set_workers(monkeypatch, workers):
    monkeypatch.setattr(back_end, "FEWEST_WORKERS", workers)


def changed_slots(case, before):
    """Flat slots of the layer under test whose bytes changed; no other layer may have changed any."""
    now = case.cache.pages.view(torch.uint8)
    changed = (now != before.view(torch.uint8)).any(-1).any(-1)
    assert not changed[1 - LAYER].any()
    return changed[LAYER].any(0).flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    "heads",
    [Heads(12, 2, 128), Heads(28, 4, 128), Heads(9, 3, 64), Heads(4, 4, 96), Heads(2, 2, 256)],
    ids=str,
)
@pytest.mark.parametrize("block_size", [16, 256])
def test_decode_equals_the_reference_for_every_head_shape(heads, block_size):
    case = paged_case(heads, LENGTHS, block_size=block_size, stale=NAN)
    assert case.error(case.attend(TritonAttention())) < 1e-6


@pytest.mark.parametrize("heads", [Heads(1, 1, 8), Heads(4, 2, 32), Heads(40, 1, 16)], ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 48])
def test_decode_equals_the_reference_for_odd_shapes_and_block_sizes(heads, block_size):
    case = paged_case(heads, LENGTHS, block_size=block_size, stale=NAN)
    assert case.error(case.attend(TritonAttention())) < 1e-6


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 5e-3), (torch.float16, 1e-3)], ids=str)
@pytest.mark.parametrize("block_size", [16, 256])
def test_half_precision_stays_close_to_the_reference(dtype, bound, block_size):
    case = paged_case(Heads(12, 2, 128), LENGTHS, block_size=block_size, dtype=dtype, stale=NAN)
    assert case.error(case.attend(TritonAttention())) < bound


@pytest.mark.parametrize("window", [1, 2, 15, 100, 300, 100_000])
@pytest.mark.parametrize("block_size", [4, 256])
def test_a_window_sees_that_many_latest_tokens(window, block_size):
    case = paged_case(Heads(4, 2, 64), LENGTHS, block_size=block_size, stale=NAN)
    assert case.error(case.attend(TritonAttention(), window), window) < 1e-6


@pytest.mark.usefixtures("finely_cut")
@pytest.mark.parametrize("window", [None, 77])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_any_number_of_workers_covers_contexts_of_many_parts(window, workers, monkeypatch):
    set_workers(monkeypatch, workers)
    lengths = (1, 32, 33, 34, 65, 128, 129, 130, 200, 259)
    case = paged_case(Heads(6, 2, 32), lengths, block_size=16, stale=NAN)
    assert case.error(case.attend(TritonAttention(SMALL), window), window) < 1e-6


@pytest.mark.usefixtures("finely_cut")
def test_a_sequence_gives_the_same_bits_alone_in_a_batch_and_with_any_table_or_workers(monkeypatch):
    lengths = (1, 40, 64, 130, 260)
    together = paged_case(Heads(6, 2, 32), lengths, block_size=16, dtype=torch.bfloat16)
    out = together.attend(TritonAttention(SMALL))
    for workers, width in ((1, None), (4, 40)):
        set_workers(monkeypatch, workers)
        again = paged_case(
            Heads(6, 2, 32), lengths, block_size=16, dtype=torch.bfloat16, width=width, padded=3
        )
        for name in ("query", "key", "value"):
            getattr(again, name)[: len(lengths)] = getattr(together, name)
        assert torch.equal(again.attend(TritonAttention(SMALL))[: len(lengths)], out)
    for row in range(len(lengths)):
        assert torch.equal(together.only(row).attend(TritonAttention(SMALL))[0], out[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_only_the_slots_of_real_rows_change_and_padded_rows_are_finite(dtype):
    case = paged_case(Heads(6, 2, 64), (1, 17, 300), dtype=dtype, padded=3, static=True, width=32)
    for new in (case.query, case.key, case.value):
        new[3:] = NAN
    before = case.cache.pages.clone()
    out = case.attend(TritonAttention())
    assert changed_slots(case, before) == sorted(case.slots)
    assert not case.cache.pages[:, :, NULL_BLOCK].any()
    assert torch.isfinite(out).all()
    written = case.cache.pages[LAYER].view(2, -1, 2, 64)[:, case.slots]
    assert torch.equal(written, torch.stack([case.key[:3], case.value[:3]]))


@pytest.mark.usefixtures("finely_cut")
def test_launches_with_the_same_buffers_follow_the_lengths_on_the_device():
    case = paged_case(Heads(6, 2, 32), (200, 130, 90), block_size=16, width=20, static=True, stale=NAN)
    attention = TritonAttention(SMALL)
    filled = case.cache.pages.clone()
    for shorter in (0, 1, 60, 89, 30, 0):
        case.cache.pages.copy_(filled)
        case.move_to([length - shorter for length in (200, 130, 90)])
        assert case.error(case.attend(attention)) < 1e-6


def test_views_of_a_fused_projection_and_transposes_are_read_by_their_strides():
    case = paged_case(Heads(6, 2, 64), (5, 40, 300))
    expected = case.attend(TritonAttention())
    fused = torch.cat([case.query.flatten(1), case.key.flatten(1), case.value.flatten(1)], dim=1)
    case.query, case.key, case.value = (
        part.unflatten(1, (-1, 64)) for part in fused.split([384, 128, 128], dim=1)
    )
    assert not case.query.is_contiguous()
    assert torch.equal(case.attend(TritonAttention()), expected)
    for name in ("query", "key", "value"):
        setattr(case, name, getattr(case, name).permute(2, 1, 0).contiguous().permute(2, 1, 0))
    assert torch.equal(case.attend(TritonAttention()), expected)


@pytest.mark.parametrize("window", [None, 20])
def test_prefill_over_cached_prefixes_equals_the_reference(window):
    case = paged_case(Heads(6, 2, 64), (7, 40, 300), (7, 8, 33))
    before = case.cache.pages.clone()
    assert case.error(case.attend(TritonAttention(), window), window) < 1e-6
    assert changed_slots(case, before) == sorted(case.slots)


@pytest.mark.parametrize(
    ("heads", "block_size"),
    [(Heads(6, 2, 128), 16), (Heads(3, 3, 80), 48), (Heads(2, 2, 256), 256), (Heads(5, 1, 8), 1)],
    ids=str,
)
def test_prefill_equals_the_reference_for_every_head_shape_and_block_size(heads, block_size):
    case = paged_case(heads, (1, 17, 64, 130, 200), (1, 17, 33, 65, 1), block_size=block_size, stale=NAN)
    assert case.error(case.attend(TritonAttention())) < 1e-6


@pytest.mark.parametrize("window", [1, 31, 64, 100_000])
def test_a_window_hides_from_each_new_token_what_is_older(window):
    case = paged_case(Heads(2, 1, 64), (7, 129, 300, 64), (7, 129, 70, 1), block_size=16, stale=NAN)
    assert case.error(case.attend(TritonAttention(), window), window) < 1e-6


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 5e-3), (torch.float16, 1e-3)], ids=str)
@pytest.mark.parametrize("contexts", [(129, 300, 513), (1, 2, 700)])
def test_prefill_in_half_precision_stays_close_to_the_reference(contexts, dtype, bound):
    new = (129, 40, 257) if contexts[0] > 1 else (1, 2, 140)
    case = paged_case(Heads(6, 2, 64), contexts, new, block_size=256, dtype=dtype, stale=NAN)
    assert case.error(case.attend(TritonAttention())) < bound


def test_prefill_reads_a_query_by_its_strides():
    case = paged_case(Heads(6, 2, 64), (40, 100), (40, 33))
    expected = case.attend(TritonAttention())
    fused = torch.cat([case.query.flatten(1), case.key.flatten(1)], dim=1)
    case.query = fused[:, :384].unflatten(1, (-1, 64))
    assert torch.equal(case.attend(TritonAttention()), expected)
    case.query = case.query.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert torch.equal(case.attend(TritonAttention()), expected)


@pytest.mark.parametrize("most_shared", [64 * 1024, 99 * 1024, 163 * 1024, 227 * 1024])
@pytest.mark.parametrize("dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_tiles_of_prefill_fit_the_card(dim, dtype, most_shared):
    tiling = prefill_tiling(dim, dtype, most_shared)
    assert tiling.shared_bytes(dim, dtype) <= most_shared
    assert min(tiling.rows, tiling.tile) >= 16


def test_a_context_beyond_its_table_is_refused_with_both_lengths():
    case = paged_case(Heads(4, 2, 32), (33, 48), width=3)
    case.batch.block_tables.resize_(2, 2)
    with pytest.raises(DeviceError, match=r"48 tokens.*holds 32"):
        case.attend(TritonAttention())


@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tiles_divide_the_chunk_and_are_small_enough_for_registers_and_shared_memory(dim, dtype):
    tiling = fitted(dim, dtype)
    assert tiling.tile >= 16
    assert tiling.chunk % tiling.tile == 0
    long_rows = dim * dtype.itemsize > 256 or dtype == torch.float32
    assert tiling.tile * dim * dtype.itemsize <= (16 if long_rows else 32) * 1024
