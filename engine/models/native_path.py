"""A whole forward pass on a CPU in one call of the C decoder: no operator, no Python in between."""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.kv_cache import KVCache
from engine.models.tiled import LANES, Tiled, TiledWeight
from engine.native.library import native

if TYPE_CHECKING:
    from engine.models.decoder import FusedDecoder, Layer

GROUP = 32  # inputs that share a scale
MOST_HEAD_DIM = 256
# Matrices whose inputs keep 16 bits. With 8 in all of them one greedy token in 25 is another than in float32,
# with 16 in these one in 50, as in bfloat16; 16 in the MLP as well would make prompts half as slow again.
FINE = frozenset({"qkv", "out", "head"})
# Of a pass, in the order of the C code. Rotation and writing keys and values are ``cache``.
PHASES = ("norms", "projections", "cache", "attention", "output", "gated", "down", "head")


class _Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("kind", "outputs", "inputs", "fine")),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Matrix) for name in ("query", "key", "value", "out", "gate", "up", "down")),
        *((name, ctypes.c_void_p) for name in ("input_norm", "post_norm", "query_norm", "key_norm")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_int32) for name in ("window", "rotary")),
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        ("norm", ctypes.c_void_p),
        ("head", _Matrix),
        *((name, ctypes.c_int32) for name in ("num_layers", "hidden", "intermediate", "heads", "kv_heads")),
        *((name, ctypes.c_int32) for name in ("dim", "block_size", "unused")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "cosine", "sine", "slots", "tables", "sequence")),
        *((name, ctypes.c_void_p) for name in ("context", "wanted", "logits", "space", "spent")),
        *((name, ctypes.c_int32) for name in ("rows", "width", "num_wanted", "threads")),
    ]


def native_unfit(config: Any) -> str:
    """Why the C decoder cannot run a transformers configuration of ``FAMILIES``; empty where it can."""
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if dim % (2 * LANES) or dim > MOST_HEAD_DIM:
        return f"heads of {dim} are no multiple of {2 * LANES} up to {MOST_HEAD_DIM}"
    for name, inputs in (
        ("hidden size", config.hidden_size),
        ("intermediate size", config.intermediate_size),
        ("width of all heads", heads * dim),
    ):
        if inputs % GROUP:
            return f"a {name} of {inputs} is no multiple of {GROUP}"
    return ""


class NativePath:
    """Runs prefill and decode rows of a decoder whose weights are tiled.

    Computes in float32 beside weights of 4, 8 or 16 bits; products with weights of 4 and 8 bits round their
    inputs in groups of 32: to 16 bits, and in the MLP to 8 (llama.cpp's way). Keys and values are bfloat16.

    Args:
        decoder: with a ``TiledWeight`` for every matrix.

    Raises:
        NativeError: the C code does not run here.
        ValueError: see ``native_unfit``.
    """

    def __init__(self, decoder: "FusedDecoder", config: Any) -> None:
        reason = native_unfit(config)
        if reason:
            raise ValueError(reason)
        self._library = native()
        self._decoder = decoder
        self._kept: list[Tensor] = []  # what the structures point to
        geometry = decoder.geometry
        self._layers = (_Layer * len(decoder.layers))(*(self._layer(layer) for layer in decoder.layers))
        first = decoder.layers[0]
        assert isinstance(decoder.tiled_head, TiledWeight)
        self._model = _Model(
            layers=self._layers,
            norm=self._floats(decoder.norm),
            head=self._matrix(decoder.tiled_head.parts[0], None, "head" in FINE),
            num_layers=len(decoder.layers),
            hidden=decoder.embedding.shape[1],
            intermediate=first.gate_up.parts[0].outputs,
            heads=geometry.heads,
            kv_heads=geometry.kv_heads,
            dim=geometry.head_dim,
            eps=geometry.eps,
            scale=geometry.scale,
        )
        self._cache: KVCache | None = None
        self._space = torch.empty(0, dtype=torch.uint8)
        self._spent = torch.zeros(len(PHASES), dtype=torch.int64)

    def forward(
        self, input_ids: Tensor, positions: Tensor, batch: PagedBatch, cache: KVCache, rows: Tensor | None
    ) -> Tensor:
        """See ``FusedDecoder.forward``."""
        geometry = self._decoder.geometry
        self._point_to(cache)
        x = F.embedding(input_ids, self._decoder.embedding).float()
        rope = self._decoder.ops.rope(positions, geometry.inv_freq, geometry.scaling)
        assert rope.cos is not None
        assert rope.sin is not None
        contexts = batch.contexts if batch.contexts is not None else batch.context_lens.tolist()
        sequence, context = _rows_of(batch.query_lens, contexts)
        wanted = torch.arange(len(x)) if rows is None else rows
        if len(wanted) > len(x):
            raise ValueError(f"{len(wanted)} rows of logits are wanted of {len(x)}")
        logits = torch.empty(len(wanted), self._model.head.outputs)
        held = (rope.cos, rope.sin, batch.slot_mapping, batch.block_tables, sequence, context, wanted, logits)
        value = _Batch(
            x.data_ptr(),
            *(tensor.data_ptr() for tensor in held),
            None,
            self._spent.data_ptr(),
            len(x),
            batch.block_tables.shape[1],
            len(wanted),
            torch.get_num_threads(),
        )
        need = self._library.space_bytes(ctypes.byref(self._model), ctypes.byref(value))
        if need > self._space.nbytes:
            self._space = torch.empty(need, dtype=torch.uint8)
        value.space = self._space.data_ptr()
        self._library.forward(ctypes.byref(self._model), ctypes.byref(value))
        return logits

    def take_ticks(self) -> dict[str, int]:
        """Clock ticks that the first thread spent on each of ``PHASES`` since this was last asked."""
        ticks = dict(zip(PHASES, self._spent.tolist()))
        self._spent.zero_()
        return ticks

    def _point_to(self, cache: KVCache) -> None:
        """Let the layers point to a cache's pages."""
        if self._cache is cache:
            return
        if cache.shape.dtype != torch.bfloat16:
            raise ValueError(f"the C decoder keeps keys and values in bfloat16, not {cache.shape.dtype}")
        for index, layer in enumerate(self._layers):
            layer.keys, layer.values = (pages.data_ptr() for pages in cache.layer(index))
        self._model.block_size = cache.block_size
        self._cache = cache

    def _layer(self, layer: "Layer[Any]") -> _Layer:
        geometry = self._decoder.geometry
        query, key, value = self._matrices(layer.qkv, layer.qkv_bias, "qkv" in FINE)
        (out,), (down,) = (
            self._matrices(layer.out, layer.out_bias, "out" in FINE),
            self._matrices(layer.down, layer.down_bias, "down" in FINE),
        )
        gate, up = self._matrices(layer.gate_up, layer.gate_up_bias, "gate_up" in FINE)
        query_norm = key_norm = None
        if layer.qk_norm is not None:
            query_norm = self._floats(layer.qk_norm[: geometry.heads])
            key_norm = self._floats(layer.qk_norm[geometry.heads :])
        return _Layer(
            query,
            key,
            value,
            out,
            gate,
            up,
            down,
            self._floats(layer.input_norm),
            self._floats(layer.post_norm),
            query_norm,
            key_norm,
            None,
            None,
            layer.window or 0,
            layer.rotary,
        )

    def _matrices(self, weight: TiledWeight, bias: Tensor | None, fine: bool) -> list[_Matrix]:
        outputs = [part.outputs for part in weight.parts]
        biases = [None] * len(outputs) if bias is None else bias.split(outputs)
        return [self._matrix(part, own, fine) for part, own in zip(weight.parts, biases)]

    def _matrix(self, part: Tiled, bias: Tensor | None, fine: bool) -> _Matrix:
        self._kept.append(part.data)
        at = None if bias is None else self._floats(F.pad(bias, (0, -part.outputs % LANES)))
        return _Matrix(part.data.data_ptr(), at, part.kind, part.outputs, part.inputs, fine)

    def _floats(self, tensor: Tensor) -> int:
        """The address of a float32 copy."""
        self._kept.append(tensor.float().contiguous())
        return self._kept[-1].data_ptr()


def _rows_of(query_lens: Sequence[int], contexts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """For each packed row its sequence and the tokens that it sees, itself included: [T] int32."""
    sequence: list[int] = []
    context: list[int] = []
    for index, (length, seen) in enumerate(zip(query_lens, contexts)):
        sequence += [index] * length
        context += range(seen - length + 1, seen + 1)
    return torch.tensor(sequence, dtype=torch.int32), torch.tensor(context, dtype=torch.int32)
