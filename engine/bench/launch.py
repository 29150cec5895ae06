"""``bench launch``: what one graph replay saves, on a network so small that launching is all there is."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.bench.measure import median, rounded
from engine.bench.session import OnProgress
from engine.device import find_device
from engine.errors import ConfigError
from engine.records import Progress

ROUNDS = 5
WARM_UPS = 10


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A network of ``width`` to ``hidden`` to ``width`` over ``batch`` rows, run ``replays`` times."""

    replays: int = 200
    batch: int = 64
    width: int = 128
    hidden: int = 256

    def __post_init__(self) -> None:
        if self.replays < 1:
            raise ConfigError(f"--replays must be at least 1; it is {self.replays}.")


def bench_launch(device: str, plan: LaunchPlan, progress: OnProgress) -> dict[str, Any]:
    """Eager calls against replays of one captured graph.

    The network is linear, ReLU, linear in float32; its output is copied into a preallocated tensor, in the
    graph too. Times are wall time over all calls, with the device waited for at the end, a call; medians
    of five rounds in which eager calls and replays take turns. After the replays new input is written in
    place of the old and replayed once more: ``max_difference`` is that output's distance from eager.

    Returns:
        ``rows`` with one row.

    Raises:
        ConfigError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "bench launch compares CUDA graph replays with eager calls, and torch sees no CUDA device.",
            "Run it on a machine with one.",
        )
    info = find_device("cuda" if device == "auto" else device)
    if info.device.type != "cuda":
        raise ConfigError(
            f"bench launch needs a CUDA device; device={device!r} is none.", "Use --device cuda."
        )
    progress(Progress("launch", info.name))
    with torch.cuda.device(info.device), torch.inference_mode():
        return {"rows": [_measure(info.device, plan)]}


def _measure(device: torch.device, plan: LaunchPlan) -> dict[str, Any]:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(plan.width, plan.hidden), nn.ReLU(), nn.Linear(plan.hidden, plan.width)
    ).to(device)
    given = torch.randn(plan.batch, plan.width, device=device)
    output = torch.empty(plan.batch, plan.width, device=device)

    def call() -> None:
        output.copy_(network(given))

    graph = _captured(call)
    before = output.data_ptr()
    eager_ms, replay_ms = [], []
    for _ in range(ROUNDS):
        eager_ms.append(_ms_a_call(call, plan.replays))
        replay_ms.append(_ms_a_call(graph.replay, plan.replays))
    given.copy_(torch.randn_like(given))
    graph.replay()
    difference = _difference(output, network(given))
    eager, replay = median(eager_ms), median(replay_ms)
    return {
        "layers": [plan.width, plan.hidden, plan.width],
        "batch": plan.batch,
        "replays": plan.replays,
        "eager_ms": rounded(eager),
        "replay_ms": rounded(replay),
        "ratio": rounded(eager / replay, 4),
        "output_address_before": hex(before),
        "output_address_after": hex(output.data_ptr()),
        "same_address": before == output.data_ptr(),
        "max_difference": difference,
    }


def _captured(call: Any) -> torch.cuda.CUDAGraph:
    """The graph of one call, after warm-up calls on another stream, as capture asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def _ms_a_call(call: Any, times: int) -> float:
    for _ in range(WARM_UPS):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / times


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
