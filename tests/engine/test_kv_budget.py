"""How much of a device becomes KV blocks, with the numbers of cards that are not here."""

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, OutOfMemory
from engine.kv_budget import (
    CUDA_RESERVE,
    Budget,
    MemoryUse,
    allocate,
    cuda_budget,
    kv_budget,
    max_model_len,
    num_blocks,
)
from engine.kv_cache import KVCache, KVShape

GIB = 2**30
SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=16, dtype=torch.float32)  # 512 bytes a token
CPU = torch.device("cpu")


def test_a_free_card_gives_its_share_less_all_that_was_measured():
    use = MemoryUse(weights=3 * GIB, activations=1 * GIB, graphs=GIB // 2)
    budget = cuda_budget(free=76 * GIB, total=80 * GIB, use=use, utilization=0.9)
    total = use.weights + use.activations + use.graphs + budget.num_bytes
    # What the context and the driver take (1 GiB here) comes off the share, too.
    assert total == pytest.approx(0.9 * 80 * GIB - 1 * GIB, abs=1)
    assert budget.note == ""


def test_the_reserve_stays_free_when_everything_may_be_used():
    budget = cuda_budget(free=20 * GIB, total=24 * GIB, use=MemoryUse(3 * GIB), utilization=1.0)
    assert budget.num_bytes == 20 * GIB - CUDA_RESERVE


def test_beside_another_engine_half_of_what_it_leaves_is_taken_and_told():
    use = MemoryUse(weights=1 * GIB, activations=GIB // 4, graphs=GIB // 4)
    budget = cuda_budget(free=8 * GIB, total=80 * GIB, use=use, utilization=0.9)
    assert budget.num_bytes == (8 * GIB - GIB // 2 - CUDA_RESERVE) // 2
    assert "Other programs hold 71.0 GiB of the card's 80.0 GiB" in budget.note


def test_a_small_share_of_a_card_that_is_free_is_honoured():
    budget = cuda_budget(free=79 * GIB, total=80 * GIB, use=MemoryUse(GIB // 4), utilization=0.1)
    assert budget.num_bytes == pytest.approx(7 * GIB, abs=1)
    assert budget.note == ""


def test_too_little_memory_is_told_with_every_number_and_what_to_lower():
    use = MemoryUse(weights=3 * GIB, activations=700 * 2**20, graphs=90 * 2**20)
    with pytest.raises(OutOfMemory) as error:
        num_blocks(EngineConfig(), SHAPE, 16, Budget(-5, "90% of the card"), use)
    text = str(error.value)
    for part in (
        "0 bytes (90% of the card)",
        "two blocks of 16 tokens",
        "3.0 GiB",
        "700.0 MiB",
        "90.0 MiB",
    ):
        assert part in text
    for way_out in ("--kv-memory", "--gpu-memory-utilization", "--max-batch", "--prefill-chunk"):
        assert way_out in text


def test_numbers_that_were_asked_for_are_taken_as_they_are():
    config = EngineConfig(num_blocks=7)
    assert num_blocks(config, SHAPE, 16, Budget(0, ""), MemoryUse(0)) == 7
    assert kv_budget(EngineConfig(kv_memory=12345), CPU, MemoryUse(0)).num_bytes == 12345


def test_an_engine_that_lost_a_race_for_memory_takes_fewer_blocks(monkeypatch):
    asked: list[int] = []

    class Cache:
        def __init__(self, shape, blocks, block_size, device):
            asked.append(blocks)
            if blocks > 50:
                raise OutOfMemory(f"{blocks} blocks do not fit.", "")
            self.num_blocks = blocks

    monkeypatch.setattr("engine.kv_budget.KVCache", Cache)
    assert allocate(SHAPE, 100, 16, CPU, again=lambda: 60).num_blocks == 45
    assert asked == [100, 60, 45]
    with pytest.raises(OutOfMemory, match="100 blocks"):
        allocate(SHAPE, 100, 16, CPU)
    with pytest.raises(OutOfMemory):
        allocate(SHAPE, 100, 16, CPU, again=lambda: 1)


def test_the_longest_sequence_is_bounded_by_model_and_cache():
    assert max_model_len(EngineConfig(), 8192, 1000) == 1000
    assert max_model_len(EngineConfig(max_model_len=500), 8192, 1000) == 500
    with pytest.raises(ConfigError, match="model's own limit of 8192"):
        max_model_len(EngineConfig(max_model_len=9000), 8192, 100_000)
    with pytest.raises(ConfigError, match="holds 1000 tokens"):
        max_model_len(EngineConfig(max_model_len=2000), 8192, 1000)


@pytest.mark.parametrize("blocks", [10**12, 10**17, 10**22, 10**30])
def test_more_blocks_than_there_are_addresses_do_not_fit_either(blocks: int) -> None:
    shape = KVShape(30, 3, 64, torch.float32)
    with pytest.raises(OutOfMemory, match=f"The KV cache of {blocks} blocks needs .* Lower --num-blocks"):
        KVCache(shape, blocks, 16, torch.device("cpu"))
