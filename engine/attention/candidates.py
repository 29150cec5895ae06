"""The back ends that may run on a machine, in the order of preference, and how one is judged."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.attention.base import AttentionBackend
from engine.attention.needs import AttentionNeeds
from engine.attention.sdpa import SdpaAttention
from engine.graphs import first_line

DEFAULT_BLOCK_SIZE = 16
NEEDS_CUDA = "needs CUDA"
LONGEST_REASON = 200  # characters; a loader names every path and symbol

Probe = Callable[[AttentionBackend, AttentionNeeds, int, torch.device], str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A back end that may or may not run here.

    Attributes:
        name: how it is asked for.
        label: what to call it; the versions of flash-attn share a name.
        build: imports what it needs; an ImportError says what is missing.
        page: block sizes must be multiples of it.
        gpus: lowest and highest major compute capability that it has kernels for; None for any.
        half_only: has the limits of flash-attn's kernels: 16-bit floats, head dimensions to 256.
        anywhere: runs on every device, and is trusted without a trial.
    """

    name: str
    label: str
    build: Callable[[], AttentionBackend]
    page: int = 1
    gpus: tuple[int, int] | None = None
    half_only: bool = False
    anywhere: bool = False

    def block_size(self, asked: int | None) -> int:
        """The size that was asked for, or the one that suits this back end."""
        return asked or max(self.page, DEFAULT_BLOCK_SIZE)

    def unfit_for(self, device: torch.device) -> str:
        """Why it does not run on this kind of device; asks no driver."""
        return "" if self.anywhere or device.type == "cuda" else NEEDS_CUDA


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of judging a candidate.

    Attributes:
        backend: ready for use; None where there is a ``reason``.
        block_size: tokens a block that it would run with.
        reason: why it does not run; empty where it does.
        block_size_only: nothing but the block size that was asked for stands in the way.
    """

    candidate: Candidate
    backend: AttentionBackend | None
    block_size: int
    reason: str = ""
    block_size_only: bool = False


def judge(candidate: Candidate, device: torch.device, needs: AttentionNeeds, probe: Probe) -> Verdict:
    """Build a back end and try it; the cheap reasons against it come first.

    Raises:
        DeviceError: the trial broke the device.
    """
    block_size = candidate.block_size(needs.block_size)

    def refused(reason: str, *, block_size_only: bool = False) -> Verdict:
        if len(reason) > LONGEST_REASON:
            reason = f"{reason[: LONGEST_REASON - 1]}…"
        return Verdict(candidate, None, block_size, reason, block_size_only)

    reason = candidate.unfit_for(device)
    if reason:
        return refused(reason)
    try:
        backend = candidate.build()
    except ImportError as error:
        return refused(first_line(error).removeprefix("ImportError: ").removeprefix("ModuleNotFoundError: "))
    except Exception as error:  # an optional package may break in any way when it is imported
        return refused(first_line(error))
    reason = _limits(candidate, device, needs)
    if reason:
        return refused(reason)
    if block_size % candidate.page:
        return refused(
            f"pages in multiples of {candidate.page} tokens, block_size={block_size} is not one",
            block_size_only=True,
        )
    if candidate.anywhere:
        return Verdict(candidate, backend, block_size)
    reason = probe(backend, needs, block_size, device)
    if reason:
        return refused(reason)
    # Another one for use: what the trial left in the first goes with it.
    return Verdict(candidate, candidate.build(), block_size)


def _limits(candidate: Candidate, device: torch.device, needs: AttentionNeeds) -> str:
    if candidate.half_only:
        if needs.dtype not in (torch.float16, torch.bfloat16):
            return f"computes in float16 and bfloat16 only, not in {str(needs.dtype).removeprefix('torch.')}"
        if needs.head_dim > 256 or needs.head_dim % 8:
            return f"takes head dimensions to 256 that are multiples of 8, not {needs.head_dim}"
    if candidate.gpus is not None:
        major, minor = torch.cuda.get_device_capability(device)
        lowest, highest = candidate.gpus
        if not lowest <= major <= highest:
            return f"has no kernels for compute capability {major}.{minor} of this GPU"
    return ""


def _flash3() -> AttentionBackend:
    from engine.attention.flash import FlashAttention3

    return FlashAttention3()


def _flash2() -> AttentionBackend:
    from engine.attention.flash import FlashAttention2

    return FlashAttention2()


def _triton() -> AttentionBackend:
    try:
        from engine.attention.triton import TritonAttention

        return TritonAttention()
    except ModuleNotFoundError as error:
        if error.name == "triton":
            raise ImportError("triton is not installed") from None
        raise


def _varlen() -> AttentionBackend:
    from engine.attention.varlen import VarlenAttention

    return VarlenAttention()


ANY_FROM_AMPERE = (8, 1000)
HOPPER = (9, 9)  # on other cards version 3 ends the process instead of raising

# ``auto`` takes the first that runs.
CANDIDATES = (
    Candidate("flash", "flash-attn 3", _flash3, gpus=HOPPER, half_only=True),
    Candidate("flash", "flash-attn 2", _flash2, page=256, gpus=ANY_FROM_AMPERE, half_only=True),
    Candidate("triton", "triton", _triton),
    Candidate("varlen", "varlen", _varlen, page=256, gpus=ANY_FROM_AMPERE, half_only=True),
    Candidate("sdpa", "sdpa", SdpaAttention, anywhere=True),
)
