"""Every paged attention back end against a float64 reference."""

import math

import pytest
import torch

from engine.attention.base import PagedBatch
from engine.attention.sdpa import SdpaAttention
from engine.kv_cache import NULL_BLOCK, KVCache, KVShape

BACKENDS = [SdpaAttention]
CPU = torch.device("cpu")


def reference(query, keys, values, scale, window):
    """Causal attention of the last len(query) positions, float64, head by head."""
    queries, heads, dim = query.shape
    context, kv_heads, _ = keys.shape
    query, keys, values = query.double(), keys.double(), values.double()
    out = torch.empty(queries, heads, dim, dtype=torch.float64)
    for row in range(queries):
        last = context - queries + row
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(heads):
            group = head * kv_heads // heads
            scores = keys[first : last + 1, group] @ query[row, head] * scale
            out[row, head] = torch.softmax(scores, 0) @ values[first : last + 1, group]
    return out


class Setting:
    """Sequences with random keys and values, part of them already in a cache of shuffled pages."""

    def __init__(self, contexts, new, heads, kv_heads, dim, block_size, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.contexts, self.new, self.scale = contexts, new, 1 / math.sqrt(dim)
        blocks = [-(-context // block_size) for context in contexts]
        pages = 1 + sum(blocks) + 3
        self.cache = KVCache(KVShape(2, kv_heads, dim, torch.float32), pages, block_size, CPU)
        self.cache.pages.copy_(torch.randn(self.cache.pages.shape, generator=draw) * 50)
        self.cache.clear(NULL_BLOCK)
        order = (1 + torch.randperm(pages - 1, generator=draw)).tolist()
        self.keys = [torch.randn(context, kv_heads, dim, generator=draw) for context in contexts]
        self.values = [torch.randn(context, kv_heads, dim, generator=draw) for context in contexts]
        self.queries = [torch.randn(n, heads, dim, generator=draw) for n in new]
        tables, slots, cumulative = [], [], [0]
        for row, (context, n) in enumerate(zip(contexts, new)):
            table = [order.pop() for _ in range(blocks[row])]
            own = [table[p // block_size] * block_size + p % block_size for p in range(context)]
            cached = torch.tensor(own[: context - n], dtype=torch.int64)
            self.cache.append(1, self.keys[row][: context - n], self.values[row][: context - n], cached)
            slots += own[context - n :]
            tables.append(table)
            cumulative.append(cumulative[-1] + n)
        width = max(blocks)
        self.slots = slots
        self.batch = PagedBatch(
            slot_mapping=torch.tensor(slots),
            block_tables=torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            cu_seqlens_q=torch.tensor(cumulative, dtype=torch.int32),
            query_lens=tuple(new),
            contexts=tuple(contexts),
            decode=all(n == 1 for n in new),
        )

    def attend(self, backend, window):
        tail = [slice(context - n, context) for context, n in zip(self.contexts, self.new)]
        return backend().attend(
            1,
            torch.cat(self.queries),
            torch.cat([k[s] for k, s in zip(self.keys, tail)]),
            torch.cat([v[s] for v, s in zip(self.values, tail)]),
            self.batch,
            self.cache,
            scale=self.scale,
            window=window,
        )

    def expected(self, window):
        return torch.cat(
            [reference(q, k, v, self.scale, window) for q, k, v in zip(self.queries, self.keys, self.values)]
        )


CASES = {
    "decode": ([1, 16, 17, 40, 129], [1] * 5),
    "prefill": ([1, 7, 16, 33], [1, 7, 16, 33]),
    "prefill after a cached prefix": ([20, 33, 64], [4, 1, 31]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 32), (12, 2, 128)])
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("window", [None, 8])
def test_attention_equals_a_float64_reference_on_shuffled_pages(
    backend, case, heads, kv_heads, dim, block_size, window
):
    setting = Setting(*CASES[case], heads, kv_heads, dim, block_size)
    out = setting.attend(backend, window).double()
    assert torch.isfinite(out).all()
    expected = setting.expected(window)
    assert ((out - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_only_the_slots_of_the_new_tokens_are_written(backend, case):
    setting = Setting(*CASES[case], 4, 2, 32, 16)
    before = setting.cache.pages.clone()
    setting.attend(backend, None)
    changed = (setting.cache.pages != before).any(-1).any(-1)  # layer, k/v, block, offset
    assert not changed[0].any()
    assert not changed[:, :, NULL_BLOCK].any()
    written = changed[1].any(0).flatten().nonzero().flatten().tolist()
    assert written == sorted(setting.slots)
