"""The append kernel, interpreted, against the cache's own append."""

import pytest
import torch

from engine.attention.append import append
from engine.kv_cache import KVCache, KVShape
from tests.engine.interpreted import interpreter  # noqa: F401

CPU = torch.device("cpu")
SLOTS = [37, -1, 5, 16, 63, -1]


def filled_cache(kv_heads, dim, dtype):
    cache = KVCache(KVShape(2, kv_heads, dim, dtype), 4, 16, CPU)
    cache.pages.copy_(torch.randn(cache.pages.shape, generator=torch.Generator().manual_seed(1)))
    return cache


@pytest.mark.parametrize(("kv_heads", "dim"), [(2, 128), (3, 64), (4, 96), (8, 256), (1, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "heads first", "dim first", "in a fused projection"])
def test_new_tokens_land_in_their_slots_and_no_other_byte_changes(kv_heads, dim, dtype, layout):
    from engine.kernels.append import append as launch

    draw = torch.Generator().manual_seed(0)
    key, value = (torch.randn(len(SLOTS), kv_heads, dim, generator=draw).to(dtype) for _ in range(2))
    views = [key, value]
    if layout == "heads first":
        views = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in views]
    elif layout == "dim first":
        views = [t.permute(2, 0, 1).contiguous().permute(1, 2, 0) for t in views]
    elif layout == "in a fused projection":
        fused = torch.cat([key.flatten(1), value.flatten(1)], dim=1)
        views = [part.unflatten(1, (kv_heads, dim)) for part in fused.chunk(2, dim=1)]
    cache = filled_cache(kv_heads, dim, dtype)
    expected = cache.pages.clone()
    real = [row for row, slot in enumerate(SLOTS) if slot >= 0]
    for which, new in enumerate((key, value)):
        expected[1, which].view(-1, kv_heads, dim)[[SLOTS[row] for row in real]] = new[real]
    launch(*cache.layer(1), *views, torch.tensor(SLOTS))
    assert torch.equal(cache.pages, expected)


def test_an_empty_launch_writes_nothing():
    from engine.kernels.append import append as launch

    cache = filled_cache(2, 16, torch.float32)
    before = cache.pages.clone()
    launch(*cache.layer(0), torch.empty(0, 2, 16), torch.empty(0, 2, 16), torch.empty(0, dtype=torch.int64))
    assert torch.equal(cache.pages, before)


def test_on_a_cpu_the_append_of_the_cache_is_used():
    cache, other = filled_cache(2, 16, torch.float32), filled_cache(2, 16, torch.float32)
    key, value, slots = torch.randn(3, 2, 16), torch.randn(3, 2, 16), torch.tensor([4, 20, 50])
    append(cache, 1, key, value, slots)
    other.append(1, key, value, slots)
    assert torch.equal(cache.pages, other.pages)
    assert torch.equal(cache.layer(1)[0].view(-1, 2, 16)[slots], key)
