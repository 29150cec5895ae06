"""Two engines on one card. Apart from the other tests: the first one takes the whole share it may have."""

import pytest

from engine import Engine, EngineConfig, SamplingParams

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_two_engines_share_a_card(default_model_dir):
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    settings = EngineConfig(model=str(default_model_dir), device="cuda", max_batch=2)
    with Engine(settings) as first, Engine(settings) as second:
        assert any("Other programs hold" in note for note in second.status().notes)
        prompts = [[5] * 300, [6] * 20]
        assert [c.token_ids for c in first.generate(prompts, params)] == [
            c.token_ids for c in second.generate(prompts, params)
        ]


def test_a_share_of_the_card_becomes_blocks(default_model_dir):
    with Engine(
        EngineConfig(model=str(default_model_dir), device="cuda", gpu_memory_utilization=0.1)
    ) as engine:
        status = engine.status()
        total = torch.cuda.get_device_properties(0).total_memory
        assert status.kv_bytes + status.weight_bytes < 0.1 * total
        assert status.kv_bytes > 0.05 * total
