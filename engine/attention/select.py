"""Which paged attention back end runs, and why the others do not."""

from dataclasses import dataclass

import torch

from engine.attention.base import AttentionBackend
from engine.attention.candidates import CANDIDATES, Probe, Verdict, judge
from engine.attention.needs import AttentionNeeds
from engine.attention.probe import probe as probe_by_capture
from engine.errors import ConfigError
from engine.records import PassedOver

__all__ = ["AttentionChoice", "AttentionNeeds", "choose_attention"]

AUTO = "auto"
NOT_ASKED_FOR = "not asked for"


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The back end of an engine, with the reasons that its status shows.

    Attributes:
        block_size: tokens a block: what was asked for, else what suits the back end.
        passed_over: every other back end, in the order in which ``auto`` tries them.
    """

    backend: AttentionBackend
    block_size: int
    reason: str
    passed_over: tuple[PassedOver, ...]


def choose_attention(
    wanted: str, device: torch.device, needs: AttentionNeeds, probe: Probe = probe_by_capture
) -> AttentionChoice:
    """Pick the back end for a device: the first that runs, or the one that was asked for.

    Args:
        wanted: ``auto``, ``flash`` (version 3 or 2, whichever runs), ``triton``, ``varlen`` or ``sdpa``.
        probe: the trial that a back end on a GPU must pass.

    Raises:
        ConfigError: what was asked for cannot run here, with the reason and the ways out.
        DeviceError: a trial broke the device.
    """
    chosen: Verdict | None = None
    refused: list[Verdict] = []
    passed_over: list[PassedOver] = []
    for candidate in CANDIDATES:
        unfit = candidate.unfit_for(device)
        if wanted not in (AUTO, candidate.name):
            passed_over.append(PassedOver(candidate.label, unfit or NOT_ASKED_FOR))
        elif chosen is not None:
            passed_over.append(PassedOver(candidate.label, unfit or f"{chosen.candidate.label} comes first"))
        else:
            verdict = judge(candidate, device, needs, probe)
            if verdict.backend is not None:
                chosen = verdict
            else:
                refused.append(verdict)
                passed_over.append(PassedOver(candidate.label, verdict.reason))
    if chosen is None or chosen.backend is None:
        raise _refusal(wanted, device, refused)
    return AttentionChoice(
        chosen.backend, chosen.block_size, _reason(wanted, device, chosen), tuple(passed_over)
    )


def _reason(wanted: str, device: torch.device, chosen: Verdict) -> str:
    if chosen.candidate.anywhere:
        if wanted != AUTO:
            return "asked for"
        return "no other runs here" if device.type == "cuda" else f"the back end that runs on {device.type}"
    title = getattr(chosen.backend, "title", chosen.candidate.label)
    return f"{title} passed its trial" if wanted == AUTO else f"{title}, asked for, passed its trial"


def _refusal(wanted: str, device: torch.device, refused: list[Verdict]) -> ConfigError:
    """One error for a name, which may stand for several versions."""
    names = list(dict.fromkeys(candidate.name for candidate in CANDIDATES))
    if wanted not in names:
        return ConfigError(f"attention={wanted!r} is unknown.", f"Choose one of {', '.join([AUTO, *names])}.")
    if device.type != "cuda":
        return ConfigError(
            f"attention={wanted!r} cannot run on {device.type}: it needs CUDA.",
            "Use --attention auto or sdpa.",
        )
    for verdict in refused:
        if verdict.block_size_only:
            page = verdict.candidate.page
            size = -(-verdict.block_size // page) * page
            return ConfigError(
                f"{verdict.candidate.label} {verdict.reason}.",
                f"Use --block-size {size}, or --attention triton.",
            )
    reasons = "; ".join(_with_subject(verdict) for verdict in refused)
    others = [AUTO, *(name for name in names if name != wanted)]
    return ConfigError(
        f"attention={wanted!r} cannot run. {reasons}.",
        f"Use --attention {', '.join(others[:-1])} or {others[-1]}.",
    )


def _with_subject(verdict: Verdict) -> str:
    label, reason = verdict.candidate.label, verdict.reason.rstrip(".")
    return reason if reason.startswith(label.split()[0]) else f"{label}: {reason}"
