"""flash-attn 2, flash-attn 3 and torch's varlen_attn, by stand-ins that check every argument."""

import inspect
import sys
from dataclasses import replace

import pytest
import torch

from engine.attention.flash import FlashAttention2, FlashAttention3
from engine.attention.sdpa import SdpaAttention
from engine.attention.varlen import VarlenAttention
from engine.kv_cache import NULL_BLOCK, KVCache, KVShape
from tests.engine import flash_modules
from tests.engine.test_attention import CPU, Setting

CASES = {
    "decode": ([1, 16, 17, 40, 260], [1] * 5),
    "prefill": ([1, 7, 16, 33], [1, 7, 16, 33]),
    "prefill after a cached prefix": ([20, 33, 300], [4, 1, 31]),
    "prefill of last tokens": ([20, 33, 300], [1, 1, 1]),
}
BACKENDS = [(FlashAttention2, 256), (FlashAttention3, 16), (FlashAttention3, 256), (VarlenAttention, 256)]


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", flash_modules.flash_attn_2())
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash_modules.flash_attn_3())
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", flash_modules.varlen_attn)


class HalfSetting(Setting):
    """The same in bfloat16; ``decode`` is said only of what the engine launches as decode."""

    def __init__(self, case, block_size, heads=(9, 3, 64)):
        super().__init__(*CASES[case], *heads, block_size)
        old = self.cache
        shape = KVShape(2, heads[1], heads[2], torch.bfloat16)
        self.cache = KVCache(shape, old.num_blocks, block_size, CPU)
        self.cache.pages.copy_(old.pages)
        for name in ("keys", "values", "queries"):
            setattr(self, name, [tensor.bfloat16() for tensor in getattr(self, name)])
        self.batch = replace(self.batch, decode=case == "decode")


def distance(out, expected):
    return ((out.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize(("backend", "block_size"), BACKENDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 128)])
@pytest.mark.parametrize("window", [None, 1, 8])
def test_results_equal_sdpas_and_a_float64_reference(backend, block_size, case, heads, window):
    setting = HalfSetting(case, block_size, heads)
    out = setting.attend(backend, window)
    assert out.shape == (sum(CASES[case][1]), heads[0], heads[2])
    assert out.dtype == torch.bfloat16
    assert distance(out, setting.expected(window)) < 4e-3
    other = HalfSetting(case, block_size, heads)
    assert distance(out, other.attend(SdpaAttention, window)) < 1e-2
    assert torch.equal(setting.cache.pages, other.cache.pages)


@pytest.mark.parametrize(("backend", "block_size"), BACKENDS)
def test_a_static_launch_with_padding_gives_the_real_rows_their_values_and_leaves_the_null_block_alone(
    backend, block_size
):
    setting, plain = HalfSetting("decode", block_size), HalfSetting("decode", block_size)
    expected = plain.attend(backend, None)
    batch, rows = setting.batch, len(setting.new)
    width = batch.block_tables.shape[1]
    setting.batch = replace(
        batch,
        slot_mapping=torch.cat([batch.slot_mapping, torch.tensor([-1, -1])]),
        block_tables=torch.cat([batch.block_tables, torch.zeros(2, width, dtype=torch.int32)]),
        context_lens=torch.cat([batch.context_lens, torch.ones(2, dtype=torch.int32)]),
        cu_seqlens_q=torch.arange(rows + 3, dtype=torch.int32),
        query_lens=(1,) * (rows + 2),
        contexts=None,
    )
    for name in ("keys", "values", "queries"):
        padding = torch.ones_like(getattr(setting, name)[0][:1])
        setattr(setting, name, [*getattr(setting, name), padding, padding])
    setting.contexts, setting.new = [*setting.contexts, 1, 1], [*setting.new, 1, 1]
    out = setting.attend(backend, None)
    assert torch.equal(out[:rows], expected)
    assert torch.isfinite(out).all()
    assert torch.equal(setting.cache.pages, plain.cache.pages)
    assert not setting.cache.pages[:, :, NULL_BLOCK].any()


def test_lengths_of_a_prefill_are_added_up_once_for_all_layers_and_anew_for_the_next_prefill():
    backend = FlashAttention2()
    settings = [HalfSetting(case, 256) for case in ("prefill", "prefill after a cached prefix")]
    for setting in [*settings, *settings]:
        out = setting.attend(lambda: backend, None)
        assert distance(out, setting.expected(None)) < 4e-3
        first = backend._cumulative
        setting.attend(lambda: backend, None)
        assert backend._cumulative is first


# --- versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.8.0", "2.8.3", "2.8.3.post1", "2.8.3.post2", "2.8.3+cu12torch2.8"])
def test_versions_whose_paged_call_reads_nothing_back_are_taken(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "flash_attn", flash_modules.flash_attn_2(version))
    assert FlashAttention2().title == f"flash-attn {version}"


@pytest.mark.parametrize("version", ["2.7.4.post1", "2.8.3.post3", "2.9.0", "4.0.0b10", "of a fork"])
def test_other_versions_are_refused_with_the_range(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "flash_attn", flash_modules.flash_attn_2(version))
    with pytest.raises(ImportError, match=f"^flash-attn {version} is not one .* from 2.8 to 2.8.3.post2$"):
        FlashAttention2()


def test_a_module_of_that_name_that_is_something_else_is_refused(monkeypatch):
    module = flash_modules.flash_attn_2()
    del module.__version__, module.flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    with pytest.raises(ImportError, match="flash-attn of unknown version"):
        FlashAttention2()
    module.__version__ = "2.8.3"
    with pytest.raises(ImportError, match="flash-attn has no flash_attn_with_kvcache"):
        FlashAttention2()


@pytest.mark.parametrize(
    ("backend", "module", "title"),
    [
        (FlashAttention2, "flash_attn", "flash-attn"),
        (FlashAttention3, "flash_attn_interface", "flash-attn 3"),
    ],
)
def test_a_package_that_does_not_import_says_why_in_one_line(monkeypatch, tmp_path, backend, module, title):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module)
    file = tmp_path / f"{module}.py"
    cases = {
        f"import {module}_2_cuda": f"{title} does not load: it needs the module {module}_2_cuda",
        "raise ImportError('x.so: undefined symbol: _Z3')": f"{title} does not load: x.so: undefined symbol",
        "raise OSError('libcudart.so.12: cannot open')": f"{title} does not load: libcudart.so.12",
    }
    for number, (code, words) in enumerate(cases.items()):
        file.write_text(f"{code}  # {'x' * number}")  # another size: the compiled one is not taken for it
        with pytest.raises(ImportError) as caught:
            backend()
        assert str(caught.value).startswith(words)


@pytest.mark.skipif("flash_attn" in sys.modules, reason="flash-attn is installed")
@pytest.mark.parametrize(
    ("backend", "module", "words"),
    [
        (FlashAttention2, "flash_attn", "flash-attn is not installed"),
        (FlashAttention3, "flash_attn_interface", "flash-attn 3 is not installed"),
    ],
)
def test_a_missing_package_is_said_to_be_missing(monkeypatch, backend, module, words):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=f"^{words}$"):
        backend()


def test_a_torch_that_cannot_page_says_since_when_one_can(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, key, value, cu_seq_q: None)
    with pytest.raises(ImportError, match=r"torch 2\.\d+.* has no varlen_attn with a block table.*2\.12"):
        VarlenAttention()
    monkeypatch.delattr("torch.nn.attention.varlen.varlen_attn")
    with pytest.raises(ImportError, match="no varlen_attn"):
        VarlenAttention()


# --- the stand-ins are like what they stand for -----------------------------------------------------


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_the_stand_in_for_varlen_attn_takes_what_torchs_takes(monkeypatch):
    monkeypatch.undo()
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    if "block_table" not in inspect.signature(varlen.varlen_attn).parameters:
        pytest.skip("this torch cannot page")
    assert parameters(varlen.varlen_attn) == parameters(flash_modules.varlen_attn)


def test_the_stand_ins_for_flash_attn_2_take_what_the_package_takes(monkeypatch):
    monkeypatch.undo()
    package = pytest.importorskip("flash_attn", exc_type=ImportError)
    assert parameters(package.flash_attn_with_kvcache) == parameters(flash_modules.flash2_with_kvcache)
    assert parameters(package.flash_attn_varlen_func) == parameters(flash_modules.flash2_varlen_func)


def test_the_stand_in_for_flash_attn_3_takes_what_the_package_takes(monkeypatch):
    monkeypatch.undo()
    package = pytest.importorskip("flash_attn_interface", exc_type=ImportError)
    assert parameters(package.flash_attn_with_kvcache) == parameters(flash_modules.flash3_with_kvcache)
