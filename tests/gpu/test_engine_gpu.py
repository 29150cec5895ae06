"""The engine on a CUDA device, with the default model's real weights."""

import pytest

from engine import Engine, EngineConfig, SamplingParams

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROMPTS = ["The printing press changed how knowledge", "Water goes up from the sea,", "1, 2, 3, 4,", "A"]
GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)


def tokens(folder, device, **settings):
    config = EngineConfig(model=str(folder), device=device, dtype="float32", prefill_chunk=5, **settings)
    with Engine(config) as engine:
        requests = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        records = []
        while engine.has_work:
            if record := engine.step():
                records.append(record)
            engine.check()
        assert engine.pool.counts().used == 0
        return [request.output_ids for request in requests], records, engine.status()


@pytest.fixture(scope="module")
def exact_matmul():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def test_greedy_tokens_on_the_card_equal_those_on_the_cpu(default_model_dir, exact_matmul):
    on_cpu, _, _ = tokens(default_model_dir, "cpu")
    on_card, records, status = tokens(default_model_dir, "cuda", kv_memory=2**30)
    assert on_card == on_cpu
    assert status.device == "cuda:0"
    assert status.device_uuid.startswith("GPU-")
    assert all(0 < record.ms.device <= record.ms.total * 1.05 for record in records)


def test_the_card_is_found_by_its_uuid(default_model_dir):
    from tui_infer.nvml import GpuMonitor

    with Engine(EngineConfig(model=str(default_model_dir), device="cuda", kv_memory=2**28)) as engine:
        reading = GpuMonitor(engine.status().device_uuid).read()
        assert reading.available
        assert reading.name == engine.status().device_name
        assert reading.memory_total == pytest.approx(torch.cuda.mem_get_info(0)[1], rel=0.05)
