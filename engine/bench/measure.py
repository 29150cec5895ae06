"""Numbers from samples, and the bandwidth that copies reach: the ceiling of a decode step."""

import math
import time
from collections.abc import Sequence

import torch

from engine.device import available_memory

GPU_COPY_BYTES, CPU_COPY_BYTES = 2**30, 2**28
COPIES = 10


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample that ``share`` of all are at most (nearest rank); samples need no order.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("There are no samples.")
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def median(samples: Sequence[float]) -> float:
    """The middle sample, the lower one of two."""
    return percentile(samples, 0.5)


def rounded(value: float | None, digits: int = 5) -> float | None:
    """Significant digits: what the clock says, and no more."""
    return None if value is None else float(f"{value:.{digits}g}")


def copy_gb_per_s(device: torch.device) -> float:
    """GB/s (10^9 bytes) of copies within the device's memory, each byte counted twice: read and written.

    1 GiB a copy on a GPU, timed by its own events; 256 MiB elsewhere, beyond any cache. Less where less
    is free. The fastest of ten after two that are not counted: others that use the memory do not raise it.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            rate = _copy_rate(device, GPU_COPY_BYTES, torch.cuda.mem_get_info(device)[0])
            torch.cuda.empty_cache()
        return rate
    return _copy_rate(device, CPU_COPY_BYTES, available_memory())


def _copy_rate(device: torch.device, most_bytes: int, free_bytes: int) -> float:
    source = torch.ones(min(most_bytes, free_bytes // 4) // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    seconds = [_copy_s(source, target) for _ in range(COPIES + 2)][2:]
    return 2 * source.nbytes / min(seconds) / 1e9


def _copy_s(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.device.type != "cuda":
        began = time.perf_counter()
        target.copy_(source)
        if source.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter() - began
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    target.copy_(source)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
