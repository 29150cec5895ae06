"""Which back end is chosen, with which block size, and what is said of the others."""

import sys
from dataclasses import replace

import pytest
import torch

from engine import doctor
from engine.attention.flash import FlashAttention3
from engine.attention.needs import AttentionNeeds
from engine.attention.probe import probe
from engine.attention.select import choose_attention
from engine.device import DeviceInfo
from engine.errors import ConfigError, DeviceError
from tests.engine import flash_modules
from tests.engine.recorder import TraceRecorder

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
NEEDS = AttentionNeeds(9, 3, 64, torch.bfloat16)
GPU_NAMES = ["flash-attn 3", "flash-attn 2", "triton", "varlen"]
LABELS = [*GPU_NAMES, "sdpa"]


class TritonStandIn(FlashAttention3):
    """As a back end that pages in any size and computes in any dtype."""

    name = "triton"
    title = "triton"

    def __init__(self):
        self._attend = flash_modules.flash3_with_kvcache

    def attend(self, layer, query, key, value, batch, cache, **how):
        if query.dtype == torch.float32:
            narrow = type(cache)(
                replace(cache.shape, dtype=torch.float16), cache.num_blocks, cache.block_size, CPU
            )
            narrow.pages.copy_(cache.pages)
            cache.append(layer, key, value, batch.slot_mapping)
            parts = (part.half() for part in (query, key, value))
            return super().attend(layer, *parts, batch, narrow, **how).float()
        return super().attend(layer, query, key, value, batch, cache, **how)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A Hopper card with everything installed, as far as choosing can tell."""
    monkeypatch.setitem(sys.modules, "flash_attn", flash_modules.flash_attn_2())
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash_modules.flash_attn_3())
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", flash_modules.varlen_attn)
    monkeypatch.setattr("engine.attention.triton.TritonAttention", TritonStandIn)
    capability(monkeypatch, 9, 0)


def capability(monkeypatch, major, minor):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))


def missing(monkeypatch, *modules):
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


def choose(wanted="auto", needs=NEEDS, **how):
    """A choice for a card whose trial runs on the CPU, with a recording in place of a capture."""
    tried = []

    def trial(backend, needs, block_size, device):
        assert device == CUDA
        tried.append(backend)
        return probe(backend, needs, block_size, CPU, TraceRecorder())

    choice = choose_attention(wanted, CUDA, replace(needs, **how), trial)
    assert choice.backend not in tried, "what the trial left behind would stay"
    return choice


def passed(choice):
    return {one.name: one.reason for one in choice.passed_over}


# --- on a GPU --------------------------------------------------------------------------------------


def test_auto_takes_flash_attn_3_first_and_says_of_the_others_that_it_comes_first():
    choice = choose()
    assert (choice.backend.name, choice.block_size) == ("flash", 16)
    assert choice.reason == "flash-attn 3 passed its trial"
    assert passed(choice) == dict.fromkeys(LABELS[1:], "flash-attn 3 comes first")


def test_then_flash_attn_2_with_its_version_in_blocks_of_256(monkeypatch):
    missing(monkeypatch, "flash_attn_interface")
    choice = choose()
    assert (choice.backend.name, choice.block_size) == ("flash", 256)
    assert choice.reason == "flash-attn 2.8.3.post2 passed its trial"
    assert passed(choice) == {
        "flash-attn 3": "flash-attn 3 is not installed",
        **dict.fromkeys(LABELS[2:], "flash-attn 2 comes first"),
    }


def test_then_triton_then_varlen_then_sdpa(monkeypatch):
    missing(monkeypatch, "flash_attn_interface", "flash_attn")
    choice = choose()
    assert (choice.backend.name, choice.block_size) == ("triton", 16)
    assert passed(choice)["flash-attn 2"] == "flash-attn is not installed"

    monkeypatch.undo()
    missing(monkeypatch, "flash_attn_interface", "flash_attn", "triton")
    monkeypatch.delitem(sys.modules, "engine.kernels.paged_decode", raising=False)
    capability(monkeypatch, 8, 0)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", flash_modules.varlen_attn)
    choice = choose()
    assert (choice.backend.name, choice.block_size) == ("varlen", 256)
    assert choice.reason == f"varlen of torch {torch.__version__} passed its trial"
    assert passed(choice)["triton"] == "triton is not installed"

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query: query)
    choice = choose()
    assert (choice.backend.name, choice.block_size) == ("sdpa", 16)
    assert choice.reason == "no other runs here"
    assert list(passed(choice)) == GPU_NAMES
    assert "2.12" in passed(choice)["varlen"]


@pytest.mark.parametrize(
    ("size", "name"), [(16, "triton"), (100, "triton"), (256, "flash"), (512, "flash"), (300, "triton")]
)
def test_under_auto_a_block_size_that_flash_attn_2_cannot_page_passes_it_over(monkeypatch, size, name):
    missing(monkeypatch, "flash_attn_interface")
    choice = choose(block_size=size)
    assert (choice.backend.name, choice.block_size) == (name, size)
    if name == "triton":
        words = f"pages in multiples of 256 tokens, block_size={size} is not one"
        assert passed(choice)["flash-attn 2"] == words


@pytest.mark.parametrize(("size", "next_size"), [(16, 256), (300, 512)])
def test_asked_for_flash_attn_2_with_such_a_size_is_one_error_with_both_ways_out(
    monkeypatch, size, next_size
):
    missing(monkeypatch, "flash_attn_interface")
    with pytest.raises(ConfigError) as caught:
        choose("flash", block_size=size)
    assert str(caught.value) == (
        f"flash-attn 2 pages in multiples of 256 tokens, block_size={size} is not one. "
        f"Use --block-size {next_size}, or --attention triton."
    )


def test_asked_for_flash_takes_the_version_that_pages_in_the_size():
    choice = choose("flash", block_size=16)
    assert (choice.backend.name, choice.block_size) == ("flash", 16)
    assert choice.reason == "flash-attn 3, asked for, passed its trial"


def test_asked_for_flash_takes_version_2_where_version_3_does_not_run(monkeypatch):
    missing(monkeypatch, "flash_attn_interface")
    choice = choose("flash")
    assert choice.block_size == 256
    assert choice.reason == "flash-attn 2.8.3.post2, asked for, passed its trial"
    assert passed(choice) == {
        "flash-attn 3": "flash-attn 3 is not installed",
        **dict.fromkeys(["triton", "varlen", "sdpa"], "not asked for"),
    }


def test_asked_for_flash_without_either_names_both_and_the_ways_out(monkeypatch):
    missing(monkeypatch, "flash_attn_interface", "flash_attn")
    with pytest.raises(ConfigError) as caught:
        choose("flash", block_size=16)
    assert str(caught.value) == (
        "attention='flash' cannot run. flash-attn 3 is not installed; flash-attn is not installed. "
        "Use --attention auto, triton, varlen or sdpa."
    )


@pytest.mark.parametrize("name", ["triton", "varlen", "sdpa"])
def test_what_is_asked_for_is_taken_before_faster_ones(name):
    choice = choose(name)
    assert choice.backend.name == name
    assert choice.block_size == {"triton": 16, "varlen": 256, "sdpa": 16}[name]
    assert "asked for" in choice.reason
    assert passed(choice) == {label: "not asked for" for label in LABELS if label != name}


def test_in_float32_flash_attention_is_passed_over_or_refused():
    choice = choose(dtype=torch.float32)
    assert choice.backend.name == "triton"
    reason = "computes in float16 and bfloat16 only, not in float32"
    assert passed(choice) == {
        "flash-attn 3": reason,
        "flash-attn 2": reason,
        "varlen": "triton comes first",
        "sdpa": "triton comes first",
    }
    with pytest.raises(ConfigError, match=r"flash-attn 3: computes in .* not in float32; flash-attn 2: comp"):
        choose("flash", dtype=torch.float32)


@pytest.mark.parametrize("head_dim", [36, 264])
def test_head_dimensions_outside_flash_attentions_kernels_pass_it_over(head_dim):
    def trial(backend, needs, block_size, device):
        return ""

    choice = choose_attention("auto", CUDA, replace(NEEDS, head_dim=head_dim), trial)
    assert choice.backend.name == "triton"
    assert f"not {head_dim}" in passed(choice)["flash-attn 2"]


@pytest.mark.parametrize(
    ("card", "label"), [((7, 5), "triton"), ((8, 6), "flash-attn 2"), ((10, 0), "flash-attn 2")]
)
def test_cards_for_which_a_version_has_no_kernels_pass_it_over(monkeypatch, card, label):
    capability(monkeypatch, *card)
    choice = choose()
    assert label not in passed(choice)
    words = f"has no kernels for compute capability {card[0]}.{card[1]} of this GPU"
    assert passed(choice)["flash-attn 3"] == words
    assert (passed(choice).get("flash-attn 2") == words) == (label == "triton")


def test_a_trial_that_fails_passes_the_back_end_over_with_its_reason(monkeypatch):
    real = flash_modules.flash3_with_kvcache

    def halved(*args, **how):
        return real(*args, **how) / 2

    sys.modules["flash_attn_interface"].flash_attn_with_kvcache = halved
    choice = choose()
    assert choice.reason.startswith("flash-attn 2")
    assert passed(choice)["flash-attn 3"] == "decode is wrong by 50%"
    missing(monkeypatch, "flash_attn")
    with pytest.raises(ConfigError, match=r"flash-attn 3: decode is wrong by 50%; flash-attn is not inst"):
        choose("flash")


def test_a_window_is_part_of_the_trial():
    real = flash_modules.flash3_with_kvcache

    def blind(*args, window_size, **how):
        return real(*args, **how)

    sys.modules["flash_attn_interface"].flash_attn_with_kvcache = blind
    assert choose().reason.startswith("flash-attn 3")
    assert "decode with a window is wrong" in passed(choose(windowed=True))["flash-attn 3"]


def test_a_package_that_breaks_in_an_unusual_way_is_passed_over_too_in_one_line(monkeypatch, tmp_path):
    file = tmp_path / "flash_attn_interface.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn_interface")
    file.write_text("raise AttributeError('torch has no such thing\\nmore')")
    assert passed(choose())["flash-attn 3"] == "AttributeError: torch has no such thing"
    file.write_text("raise AttributeError('_ZN3c10' * 500)")
    reason = passed(choose())["flash-attn 3"]
    assert reason.startswith("AttributeError: _ZN3c10")
    assert reason.endswith("…")
    assert len(reason) == 200


def test_a_broken_device_is_not_taken_for_a_back_end_that_fails():
    def trial(backend, needs, block_size, device):
        raise DeviceError("The GPU does not answer any more.")

    with pytest.raises(DeviceError):
        choose_attention("auto", CUDA, NEEDS, trial)


# --- elsewhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cpu", "mps"])
@pytest.mark.parametrize("wanted", ["auto", "sdpa"])
def test_without_cuda_sdpa_runs_and_nothing_else_is_imported_or_tried(monkeypatch, kind, wanted):
    def trial(*args):
        raise AssertionError("nothing may be tried here")

    missing(monkeypatch, "flash_attn_interface", "flash_attn", "engine.attention.triton")
    choice = choose_attention(wanted, torch.device(kind), replace(NEEDS, dtype=torch.float32), trial)
    assert (choice.backend.name, choice.block_size) == ("sdpa", 16)
    assert choice.reason == ("asked for" if wanted == "sdpa" else f"the back end that runs on {kind}")
    assert passed(choice) == dict.fromkeys(GPU_NAMES, "needs CUDA")


def test_a_block_size_that_was_asked_for_is_kept():
    assert choose_attention("auto", CPU, replace(NEEDS, block_size=5)).block_size == 5


@pytest.mark.parametrize("wanted", ["flash", "triton", "varlen"])
def test_a_back_end_that_cannot_run_here_is_refused_with_the_way_out(wanted):
    with pytest.raises(ConfigError) as caught:
        choose_attention(wanted, CPU, replace(NEEDS, block_size=16))
    assert str(caught.value) == (
        f"attention='{wanted}' cannot run on cpu: it needs CUDA. Use --attention auto or sdpa."
    )


def test_a_name_that_nobody_has_is_answered_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"attention='xformers' is unknown.*auto, flash, triton, varlen, sdpa"
    ):
        choose_attention("xformers", CPU, NEEDS)


# --- doctor ----------------------------------------------------------------------------------------


def test_the_doctor_tries_every_back_end_of_a_gpu(monkeypatch):
    missing(monkeypatch, "flash_attn_interface")
    monkeypatch.setattr(doctor, "find_device", lambda wanted: DeviceInfo(CUDA, "a card", None))
    monkeypatch.setattr(doctor, "find_dtype", lambda wanted, device: torch.bfloat16)
    monkeypatch.setattr(
        doctor,
        "probe",
        lambda backend, needs, size, device: probe(backend, needs, size, CPU, TraceRecorder()),
    )
    assert doctor.examine()["attention"] == {
        "flash-attn 3": "not used: flash-attn 3 is not installed",
        "flash-attn 2": "used: flash-attn 2.8.3.post2, blocks of 256 tokens",
        "triton": "runs too: flash-attn 2 comes first",
        "varlen": "runs too: flash-attn 2 comes first",
        "sdpa": "runs too: flash-attn 2 comes first",
    }


def test_the_doctor_reports_a_trial_that_broke_the_device(monkeypatch):
    def trial(*args):
        raise DeviceError("The GPU does not answer any more.", "Name another.")

    monkeypatch.setattr(doctor, "find_device", lambda wanted: DeviceInfo(CUDA, "a card", None))
    monkeypatch.setattr(doctor, "find_dtype", lambda wanted, device: torch.bfloat16)
    monkeypatch.setattr(doctor, "probe", trial)
    assert doctor.examine()["attention"] == {
        "flash-attn 3": "not used: The GPU does not answer any more. Name another."
    }
