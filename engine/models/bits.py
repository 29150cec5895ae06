"""In how many bits most of a fused model's weights are kept."""

from collections import Counter
from typing import Any

from engine.models.decoder import FusedDecoder
from engine.models.packed import Packed, PackedWeight
from engine.models.tiled import TiledWeight


def weight_bits(model: Any) -> str:
    """``int4`` or ``int8``; empty where most numbers of the layers have 16 bits or more."""
    if not isinstance(model, FusedDecoder):
        return ""
    numbers: Counter[int] = Counter()
    for layer in model.layers:
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down):
            if isinstance(weight, TiledWeight):
                for tiled in weight.parts:
                    numbers[tiled.kind] += tiled.outputs * tiled.inputs
            elif isinstance(weight, PackedWeight):
                for part in weight.parts:
                    if isinstance(part, Packed):
                        numbers[part.bits] += part.rows * part.columns
                    else:
                        numbers[16] += part.numel()
    bits = max(numbers, key=lambda kind: numbers[kind], default=16)
    return f"int{bits}" if bits < 16 else ""
