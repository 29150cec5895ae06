"""On a card: what the trial says of each back end, and what it leaves behind."""

import gc
from dataclasses import replace

import pytest
import torch

from engine.attention.candidates import CANDIDATES, judge
from engine.attention.needs import AttentionNeeds
from engine.attention.probe import probe
from engine.attention.select import choose_attention
from engine.errors import ConfigError
from engine.graphs import CudaRecorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

DEVICE = torch.device("cuda", 0)
SHAPES = {"1.5B": (12, 2, 128), "7B": (28, 4, 128), "smollm2": (9, 3, 64)}
BY_LABEL = {candidate.label: candidate for candidate in CANDIDATES}


def needs_of(shape="1.5B", dtype=torch.bfloat16, **how):
    return AttentionNeeds(*SHAPES[shape], dtype, **how)


def built(label):
    try:
        return BY_LABEL[label].build()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("label", ["flash-attn 3", "flash-attn 2", "triton", "varlen"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_installed_back_end_passes_its_trial_with_windows(label, shape, dtype):
    built(label)
    verdict = judge(BY_LABEL[label], DEVICE, needs_of(shape, dtype, windowed=True), probe)
    assert verdict.reason == ""


@pytest.mark.parametrize("block_size", [1, 16, 100, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_triton_pages_in_any_size_and_computes_in_any_dtype(block_size, dtype):
    choice = choose_attention("triton", DEVICE, needs_of(dtype=dtype, block_size=block_size))
    assert (choice.backend.name, choice.block_size) == ("triton", block_size)


def test_auto_takes_flash_attn_where_it_is_installed():
    built("flash-attn 2")
    choice = choose_attention("auto", DEVICE, needs_of())
    assert choice.backend.name == "flash"
    assert "passed its trial" in choice.reason


def test_block_size_16_asked_of_flash_attn_2_is_refused_with_both_ways_out():
    built("flash-attn 2")
    if judge(BY_LABEL["flash-attn 3"], DEVICE, needs_of(), probe).backend is not None:
        pytest.skip("flash-attn 3 pages in 16")
    with pytest.raises(ConfigError, match=r"block_size=16 is not one.*--block-size 256.*--attention triton"):
        choose_attention("flash", DEVICE, needs_of(block_size=16))
    assert choose_attention("auto", DEVICE, needs_of(block_size=16)).backend.name == "triton"


def test_a_trial_leaves_no_memory_taken():
    choose_attention("triton", DEVICE, needs_of())  # what libraries keep for themselves
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    choose_attention("triton", DEVICE, needs_of("7B"))
    gc.collect()
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) <= before


class Faulty:
    """The Triton back end with one fault."""

    name = "faulty"
    capturable = True

    def __init__(self, fault):
        self.fault = fault
        self.backend = built("triton")

    def attend(self, layer, query, key, value, batch, cache, **how):
        return self.fault(self.backend, layer, query, key, value, batch, cache, **how)


def reads_back(backend, layer, query, key, value, batch, cache, **how):
    int(batch.context_lens.max())
    return backend.attend(layer, query, key, value, batch, cache, **how)


def waits(backend, layer, query, key, value, batch, cache, **how):
    torch.cuda.synchronize()  # which torch does not report as reading back
    return backend.attend(layer, query, key, value, batch, cache, **how)


def pads_into_the_null_block(backend, layer, query, key, value, batch, cache, **how):
    batch = replace(batch, slot_mapping=batch.slot_mapping.clamp(min=0))
    return backend.attend(layer, query, key, value, batch, cache, **how)


def frozen_lengths(backend, layer, query, key, value, batch, cache, **how):
    if batch.decode:
        backend.seen = getattr(backend, "seen", None)
        backend.seen = batch.context_lens.clone() if backend.seen is None else backend.seen
        batch = replace(batch, context_lens=backend.seen)
    return backend.attend(layer, query, key, value, batch, cache, **how)


FAULTS = {
    reads_back: "reads a value back to the host",
    waits: "captur",
    pads_into_the_null_block: "decode writes padding into the null block",
    frozen_lengths: "decode is wrong by",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_and_the_card_captures_and_draws_as_before(fault):
    why = probe(Faulty(fault), needs_of(), 16, DEVICE)
    assert FAULTS[fault] in why
    assert torch.isfinite(torch.randn(8, device=DEVICE)).all()  # the generator is in no capture
    recorder = CudaRecorder(DEVICE)
    ones = torch.ones(4, device=DEVICE)
    replay, out = recorder.record(lambda: ones * 2)
    ones.fill_(3)
    replay()
    assert out.tolist() == [6, 6, 6, 6]
    recorder.close()
    assert probe(built("triton"), needs_of(), 16, DEVICE) == ""
