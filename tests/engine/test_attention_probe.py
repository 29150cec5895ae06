"""The trial that a back end must pass, on back ends that fail it in every way."""

import gc
import re
import sys
import weakref
from dataclasses import replace

import pytest
import torch

from engine.attention.flash import FlashAttention2, FlashAttention3
from engine.attention.needs import AttentionNeeds
from engine.attention.probe import probe
from engine.attention.varlen import VarlenAttention
from engine.errors import DeviceError
from engine.kv_cache import KVCache
from tests.engine import flash_modules
from tests.engine.recorder import TraceRecorder

CPU = torch.device("cpu")
NEEDS = AttentionNeeds(4, 2, 32, torch.bfloat16)


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", flash_modules.flash_attn_2())
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash_modules.flash_attn_3())
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", flash_modules.varlen_attn)


class Recorder(TraceRecorder):
    """Replays what was recorded over the same tensors, as a CUDA graph does; remembers that it was closed."""

    closed = False

    def close(self):
        super().close()
        self.closed = True


def tried(backend, needs=NEEDS, block_size=16):
    recorder = Recorder()
    why = probe(backend, needs, block_size, CPU, recorder)
    assert recorder.closed, "captured memory was not given back"
    assert "\n" not in why
    return why


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(4, 2, 32), (9, 3, 64), (8, 8, 128)])
@pytest.mark.parametrize(
    ("backend", "block_size"),
    [(FlashAttention2, 256), (FlashAttention3, 1), (FlashAttention3, 16), (VarlenAttention, 256)],
)
def test_a_back_end_that_works_passes(backend, block_size, heads, dtype, windowed):
    needs = AttentionNeeds(*heads, dtype, block_size, windowed)
    assert tried(backend(), needs, block_size) == ""


# --- what must not pass ----------------------------------------------------------------------------


class Wrong(FlashAttention3):
    """Like the real one but for what ``change`` does to the batch, the scale or the result."""

    def attend(self, layer, query, key, value, batch, cache, *, scale, window):
        return super().attend(layer, query, key, value, batch, cache, scale=scale, window=window)


class OtherScale(Wrong):
    def attend(self, *args, scale, window):
        return super().attend(*args, scale=2 * scale, window=window)


class NoWindow(Wrong):
    def attend(self, *args, scale, window):
        return super().attend(*args, scale=scale, window=None)


class OneTokenShort(Wrong):
    def attend(self, layer, query, key, value, batch, cache, **how):
        batch = replace(batch, context_lens=(batch.context_lens - 1).clamp(min=1))
        return super().attend(layer, query, key, value, batch, cache, **how)


class FrozenLengths(Wrong):
    """The fault of a host integer that a graph keeps: the lengths of the capture for ever."""

    seen = None

    def attend(self, layer, query, key, value, batch, cache, **how):
        if batch.decode:
            self.seen = batch.context_lens.clone() if self.seen is None else self.seen
            batch = replace(batch, context_lens=self.seen)
        return super().attend(layer, query, key, value, batch, cache, **how)


class ReadsBack(Wrong):
    def attend(self, layer, query, key, value, batch, cache, **how):
        if batch.decode:
            batch.context_lens.max().item()
        return super().attend(layer, query, key, value, batch, cache, **how)


class NeighboursPages(Wrong):
    def attend(self, layer, query, key, value, batch, cache, **how):
        if not batch.decode:
            batch = replace(batch, block_tables=batch.block_tables.flip(0))
        return super().attend(layer, query, key, value, batch, cache, **how)


class UnwrittenRows(Wrong):
    def attend(self, layer, query, *args, **how):
        out = super().attend(layer, query, *args, **how)
        return torch.where(torch.arange(len(out))[:, None, None] == 1, torch.nan, out)


class WrittenOnceOnly(Wrong):
    """Fills its output when it is captured and never again, as a kernel that was not captured would."""

    out = None

    def attend(self, layer, query, key, value, batch, cache, **how):
        out = super().attend(layer, query, key, value, batch, cache, **how)
        if not batch.decode:
            return out
        self.out = out.clone() if self.out is None else self.out
        return self.out


class PadsIntoTheNullBlock(Wrong):
    def attend(self, layer, query, key, value, batch, cache, **how):
        batch = replace(batch, slot_mapping=batch.slot_mapping.clamp(min=0))
        return super().attend(layer, query, key, value, batch, cache, **how)


class PadsIntoSomeonesBlock(Wrong):
    def attend(self, layer, query, key, value, batch, cache, **how):
        slots = torch.where(batch.slot_mapping < 0, cache.block_size + 1, batch.slot_mapping)
        return super().attend(layer, query, key, value, replace(batch, slot_mapping=slots), cache, **how)


class NextSlot(Wrong):
    def attend(self, layer, query, key, value, batch, cache, **how):
        if not batch.decode:
            batch = replace(batch, slot_mapping=batch.slot_mapping + 1)
        return super().attend(layer, query, key, value, batch, cache, **how)


class Raises(Wrong):
    def attend(self, *args, **how):
        raise RuntimeError(
            "CUDA error: no kernel image is available for execution on the device\nCompile with"
        )


class FailsInPrefill(Wrong):
    def attend(self, layer, query, key, value, batch, cache, **how):
        if not batch.decode:
            raise NotImplementedError
        return super().attend(layer, query, key, value, batch, cache, **how)


FAULTS = {
    OtherScale: r"^decode is wrong by (\d+%|more than its own size)$",
    OneTokenShort: r"^decode is wrong by (\d+%|more than its own size)$",
    FrozenLengths: r"^decode is wrong by (\d+%|more than its own size)$",
    NeighboursPages: r"^prefill is wrong by (\d+%|more than its own size)$",
    UnwrittenRows: r"^decode leaves values unwritten or not finite$",
    WrittenOnceOnly: r"^decode leaves values unwritten or not finite$",
    PadsIntoTheNullBlock: r"^decode writes padding into the null block$",
    PadsIntoSomeonesBlock: r"^decode does not store keys and values in their slots, or writes to others$",
    NextSlot: r"^prefill does not store keys and values in their slots",
    ReadsBack: r"(?i)RuntimeError: .*(data-dependent|\.item\(\)|tracing|proxy)",
    Raises: r"^RuntimeError: CUDA error: no kernel image is available for execution on the device$",
    FailsInPrefill: r"^NotImplementedError$",
}


@pytest.mark.parametrize("backend", FAULTS, ids=lambda backend: backend.__name__)
@pytest.mark.parametrize("block_size", [16, 256])
def test_a_fault_is_the_reason_in_one_line(backend, block_size):
    assert re.search(FAULTS[backend], tried(backend(), block_size=block_size))


@pytest.mark.parametrize(("windowed", "words"), [(True, "decode with a window is wrong by"), (False, "")])
def test_a_window_that_is_not_honoured_matters_to_models_that_have_one(windowed, words):
    why = tried(NoWindow(), replace(NEEDS, windowed=windowed))
    assert why.startswith(words)
    assert bool(why) == windowed


def test_what_the_package_refuses_is_the_reason():
    words = "RuntimeError: Paged KV cache block size must be divisible by 256"
    assert tried(FlashAttention2(), block_size=16) == words
    needs = replace(NEEDS, dtype=torch.float32)
    assert tried(FlashAttention2(), needs, 256) == (
        "RuntimeError: FlashAttention only support fp16 and bf16 data type"
    )


def test_a_capture_that_fails_is_explained_by_what_made_it_fail():
    class Breaks(TraceRecorder):
        def record(self, run):
            try:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
            finally:
                raise RuntimeError("CUDA error: failed due to a previous error during capture")

    why = probe(FlashAttention3(), NEEDS, 16, CPU, Breaks())
    assert why == "RuntimeError: CUDA error: operation not permitted when stream is capturing"


def test_the_cache_of_a_trial_is_gone_when_it_ends(monkeypatch):
    caches = []

    class Cache(KVCache):
        def __init__(self, *args):
            super().__init__(*args)
            caches.append(weakref.ref(self))

    monkeypatch.setattr("engine.attention.probe.KVCache", Cache)
    assert probe(FlashAttention3(), NEEDS, 16, CPU, Recorder()) == ""
    assert probe(Raises(), NEEDS, 16, CPU, Recorder()) != ""
    gc.collect()
    assert [cache() for cache in caches] == [None, None]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a device that does not answer")
def test_a_trial_that_breaks_the_device_stops_with_the_way_out():
    with pytest.raises(DeviceError, match=r"GPU does not answer.*flash.*--attention"):
        probe(FlashAttention3(), NEEDS, 16, torch.device("cuda"))
