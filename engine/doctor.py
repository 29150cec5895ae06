"""What torch says of this machine, for ``tui-infer doctor``: devices, formats, attention back ends."""

from typing import Any

import torch
import transformers

from engine.attention.candidates import CANDIDATES, judge
from engine.attention.needs import AttentionNeeds
from engine.attention.probe import probe
from engine.device import available_memory, cpu_has_bf16, cpu_name, find_device, find_dtype
from engine.errors import EngineError
from engine.models.packed import kernel_missing
from engine.native.library import native_missing, native_products

HEADS = (9, 3, 64)  # query heads, kv heads and head dimension of the default model


def examine() -> dict[str, Any]:
    """Facts by section, in plain values. Sizes are bytes. Loads no model; what is tried is given back."""
    info = find_device("auto")
    dtype = find_dtype("auto", info.device)
    return {
        "torch": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cuda": torch.version.cuda or "this build of torch has none",
            "threads": torch.get_num_threads(),
        },
        "device": {
            "auto": f"{info.device} ({info.name})",
            "dtype": str(dtype).removeprefix("torch."),
            "uuid": info.uuid,
            "cpu": cpu_name(),
            "cpu_bfloat16": "in hardware" if cpu_has_bf16() else "not in hardware",
            "cpu_weights": _weights(),
            "memory_available": available_memory(),
            "gpus": _gpus(),
        },
        "attention": _attention(info.device, dtype),
    }


def _weights() -> str:
    """What computes with weights of 4 and 8 bits on the CPU, and why not the faster one."""
    missing = native_missing()
    if not missing:
        return f"4 and 8 bits as they are, in C with {native_products()}"
    if kernel_missing():
        return f"in 16 or 32 bits: {missing}; {kernel_missing()}"
    return f"4 and 8 bits as they are, by torch: {missing}"


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    cards = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        cards.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "uuid": f"GPU-{properties.uuid}",
                "memory": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return cards


def _attention(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """Each back end with ``used``, ``runs too`` or ``not used`` and the reason, in the order of ``auto``.

    On a GPU every one is tried, with the heads of the default model: a few calls on a tiny cache.
    """
    needs = AttentionNeeds(*HEADS, dtype)
    found: dict[str, str] = {}
    used = ""
    try:
        for candidate in CANDIDATES:
            verdict = judge(candidate, device, needs, probe)
            label, title = candidate.label, getattr(verdict.backend, "title", "")
            if verdict.backend is None:
                found[label] = f"not used: {verdict.reason}"
            elif used:
                found[label] = f"runs too: {used} comes first"
            else:
                used = label
                found[label] = f"used: {title or label}, blocks of {verdict.block_size} tokens"
    except EngineError as error:
        return found | {candidate.label: f"not used: {error}"}
    return found
