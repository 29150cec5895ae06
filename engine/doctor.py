"""What torch says of this machine, for ``tui-infer doctor``: devices, formats, attention back ends."""

from typing import Any

import torch
import transformers

from engine.attention.select import choose_attention
from engine.device import available_memory, cpu_has_bf16, cpu_name, find_device, find_dtype
from engine.errors import EngineError


def examine() -> dict[str, Any]:
    """Facts by section, in plain values. Sizes are bytes. Loads no model and allocates nothing."""
    info = find_device("auto")
    dtype = str(find_dtype("auto", info.device)).removeprefix("torch.")
    return {
        "torch": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cuda": torch.version.cuda or "this build of torch has none",
            "threads": torch.get_num_threads(),
        },
        "device": {
            "auto": f"{info.device} ({info.name})",
            "dtype": dtype,
            "uuid": info.uuid,
            "cpu": cpu_name(),
            "cpu_bfloat16": "in hardware" if cpu_has_bf16() else "not in hardware",
            "memory_available": available_memory(),
            "gpus": _gpus(),
        },
        "attention": _attention(info.device),
    }


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


def _attention(device: torch.device) -> dict[str, str]:
    """Each back end with ``used: reason`` or ``not used: reason``."""
    try:
        choice = choose_attention("auto", device)
    except EngineError as error:
        return {"none": f"not used: {error}"}
    used = {choice.backend.name: f"used: {choice.reason}"}
    return used | {passed.name: f"not used: {passed.reason}" for passed in choice.passed_over}
