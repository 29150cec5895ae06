"""DecodePath: the kernels of a decode step of a few rows, five launches a layer.

What a layer reads from memory is its weights, once; everything else is folded into the kernels that do so
(``engine.kernels.matvec`` for one row, ``engine.kernels.matrows`` for more) or stands between them in one
launch (``engine.kernels.split_attention``). On cards of compute capability 9.0 and newer the kernels start
while the one before runs.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.attention.kernel_numbers import LEAST_DOT, LOG2_E, NO_WINDOW, power_of_two
from engine.device import shared_memory
from engine.kernels.attention_cut import JOIN, SHARED, AttentionShape, attention_shape
from engine.kernels.tile_cache import card_name
from engine.kernels.tiles import Shape, Tile, tile_for
from engine.kv_cache import KVCache
from engine.models.decode_flow import Flow, Scratch

if TYPE_CHECKING:
    from engine.models.decoder import FusedDecoder, Layer

MOST_ROWS = 32  # as far as tiles were measured; more rows go to cuBLAS


@dataclass
class Settings:
    """What can be turned off, for measurements; ``DEFAULTS`` is what a new path gets.

    Attributes:
        enabled: these kernels run at all; else cuBLAS and the attention back end.
        dependent_launch: kernels start while the one before runs, where the card can do that.
        parts: in how many parts one row's attention goes to the output projection.
        parts_width: heads times head dim up to which it does; wider ones are joined before.
        coming_bytes: weights that the attention kernel asks for ahead.
        narrow: dimensions up to which a row's kernels read biases, gains and the row before their sums.
        attention: how the attention kernel is cut, in place of the usual way.
    """

    enabled: bool = True
    dependent_launch: bool = True
    parts: int = 8
    parts_width: int = 2048
    coming_bytes: int = 4 * 2**20
    narrow: int = 2048
    attention: AttentionShape | None = None


DEFAULTS = Settings()


def unfit_path(decoder: "FusedDecoder") -> str:
    """Why a decoder's steps cannot take this path; empty when they can."""
    geometry, device = decoder.geometry, decoder.embedding.device
    if not DEFAULTS.enabled:
        return "it is turned off"
    if device.type != "cuda":
        return f"it has no kernels for {device.type}"
    if decoder.embedding.dtype != torch.bfloat16:
        return "the weights are not bfloat16"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the card is older than Ampere"
    if geometry.head_dim not in (64, 128, 256):
        return f"a head has {geometry.head_dim} dimensions"
    try:
        import triton  # noqa: F401 - the kernels need it
    except ImportError:
        return "triton is not installed"
    return ""


class DecodePath:
    """Runs decode batches of at most ``MOST_ROWS`` rows; launches only, nothing is read back.

    Args:
        decoder: whose weights are used where they are.

    Attributes:
        card: the device as ``tile_cache`` names it; empty on a CPU.
        tiles: by kind and rows, in place of those that ``tile_for`` knows.
    """

    def __init__(self, decoder: "FusedDecoder") -> None:
        from engine.kernels.dependent import launches_dependently
        from engine.kernels.matrows import embed, matrows
        from engine.kernels.matvec import matvec, matvec_join
        from engine.kernels.split_attention import split_attention

        self._embed, self._matrows, self._matvec = embed, matrows, matvec
        self._matvec_join, self._split_attention = matvec_join, split_attention
        self._decoder = decoder
        self._settings = replace(DEFAULTS)
        geometry, device = decoder.geometry, decoder.embedding.device
        cuda = device.type == "cuda"
        self.dependent = self._settings.dependent_launch and launches_dependently(device)
        self._launch: dict[str, Any] = {"launch_pdl": True} if self.dependent else {}
        self.width = geometry.heads * geometry.head_dim
        self.card = _card_of(device) if cuda else ""
        self._most_shared = (shared_memory(device) if cuda else None) or SHARED
        self.tiles: dict[tuple[str, int], Tile] = {}
        cuts = [self.attention_shape(rows) for rows in range(1, MOST_ROWS + 1)]
        self._scratch = Scratch(geometry, cuts, self._settings.parts)

    def attention_shape(self, rows: int) -> AttentionShape:
        """How the attention of so many rows is cut."""
        geometry = self._decoder.geometry
        return self._settings.attention or attention_shape(
            rows, geometry.kv_heads, geometry.head_dim, self._most_shared
        )

    def parts(self, rows: int) -> int:
        """In how many parts attention goes to the output projection."""
        settings = self._settings
        return settings.parts if rows == 1 and self.width <= settings.parts_width else 1

    def forward(self, input_ids: Tensor, batch: PagedBatch, cache: KVCache) -> Tensor:
        """Logits [rows, vocab] float32 of one new token a row; keys and values go into the cache.

        Args:
            input_ids: [rows] int64.
            batch: a decode batch. A row without a slot (-1) writes nothing; its logits mean nothing.
        """
        decoder = self._decoder
        layers = decoder.layers
        rows = input_ids.shape[0]
        flow = Flow(rows, decoder, self.parts(rows))
        self._start(flow, input_ids, layers[0].input_norm)
        for index, layer in enumerate(layers):
            following = layers[index + 1].input_norm if index + 1 < len(layers) else decoder.norm
            self.product("qkv", flow, layer.qkv, flow.qkv, norm=layer.input_norm, bias=layer.qkv_bias)
            self.attention(index, layer, flow, batch, cache)
            if self.parts(rows) > 1:
                self.join(flow, layer)
            else:
                self.product(
                    "out",
                    flow,
                    layer.out,
                    flow.x,
                    source=flow.attended,
                    bias=layer.out_bias,
                    following=layer.post_norm,
                )
            self.product(
                "gate_up", flow, layer.gate_up, flow.inner, norm=layer.post_norm, bias=layer.gate_up_bias
            )
            self.product(
                "down",
                flow,
                layer.down,
                flow.x,
                source=flow.inner,
                bias=layer.down_bias,
                following=following,
            )
        logits = torch.empty(rows, decoder.head.shape[0], dtype=torch.float32, device=flow.x.device)
        self.product("head", flow, decoder.head, logits, norm=decoder.norm)
        return logits

    def _start(self, flow: Flow, input_ids: Tensor, gain: Tensor) -> None:
        """Embeddings. They let nothing start before they have ended: the kernels behind them read lengths and
        tables before they wait, and those are of the kernel before.
        """
        hidden = flow.x.shape[1]
        self._embed[(flow.rows,)](
            flow.x,
            flow.gained,
            flow.squares,
            input_ids,
            self._decoder.embedding,
            gain,
            K=hidden,
            BLOCK=power_of_two(hidden),
            EMIT=flow.rows > 1,
            PDL=self.dependent,
            num_warps=4,
            **self._launch,
        )
        flow.parts = 1

    def product(
        self,
        kind: str,
        flow: Flow,
        weight: Tensor,
        target: Tensor,
        *,
        source: Tensor | None = None,
        norm: Tensor | None = None,
        bias: Tensor | None = None,
        following: Tensor | None = None,
    ) -> None:
        """``target`` = rows times ``weight``.

        Args:
            source: the rows; without, those of the flow under the RMS norm with gain ``norm``.
            following: the gain of the norm that comes next: the result is added to the flow's rows.
        """
        rows, eps = flow.rows, self._decoder.geometry.eps
        silu = kind == "gate_up"
        ins = weight.shape[1]
        outs = weight.shape[0] // 2 if silu else weight.shape[0]
        tile = self.tile(kind, outs, ins, rows)
        programs = -(-outs // tile.outs)
        x = flow.x if source is None else source
        flags: dict[str, Any] = {
            "NORM": norm is not None,
            "SILU": silu,
            "BIAS": bias is not None,
            "RESIDUAL": following is not None,
            "PDL": self.dependent,
            "num_warps": tile.warps,
        }
        unused = flow.x
        bias = unused if bias is None else bias
        if rows == 1:
            gain = unused if norm is None else norm
            self._matvec[(programs,)](
                target,
                x,
                weight,
                bias,
                flow.x,
                gain,
                eps,
                outs,
                K=ins,
                BN=tile.outs,
                BK=tile.ins,
                SOON=flow.x.shape[1] <= self._settings.narrow,
                **flags,
                **self._launch,
            )
            return
        self._matrows[(programs, tile.cuts)](
            target,
            x if norm is None else flow.gained,
            weight,
            bias,
            flow.x,
            unused if following is None else following,
            flow.gained,
            flow.spare,
            flow.squares,
            self._scratch.partial,
            self._scratch.tiles_done,
            eps,
            outs,
            K=ins,
            ROWS=rows,
            ROWS_PADDED=flow.padded,
            BN=tile.outs,
            BK=tile.ins,
            SPLIT=tile.split,
            CUTS=tile.cuts,
            STAGES=tile.stages,
            EARLY=tile.early,
            PARTS=flow.parts,
            PARTS_PADDED=power_of_two(flow.parts),
            EMIT=following is not None,
            **flags,
            **self._launch,
        )
        if following is not None:
            flow.squares, flow.spare = flow.spare, flow.squares
            flow.parts = programs

    def tile(self, kind: str, outs: int, ins: int, rows: int) -> Tile:
        """How a product of this shape is cut."""
        return self.tiles.get((kind, rows)) or tile_for(Shape(kind, outs, ins, rows), self.card)

    def products(self, rows: int) -> tuple[Shape, ...]:
        """The products of a step of so many rows; those that occur in every layer once."""
        layer, head = self._decoder.layers[0], self._decoder.head
        out = "join" if self.parts(rows) > 1 else "out"
        weights = {
            "qkv": layer.qkv,
            out: layer.out,
            "gate_up": layer.gate_up,
            "down": layer.down,
            "head": head,
        }
        return tuple(
            Shape(kind, weight.shape[0] // (2 if kind == "gate_up" else 1), weight.shape[1], rows)
            for kind, weight in weights.items()
        )

    def reset(self) -> None:
        """Counters are as before the first step, after one that broke off or went wrong."""
        self._scratch.pieces_done.zero_()
        self._scratch.tiles_done.zero_()

    def join(self, flow: Flow, layer: "Layer") -> None:
        """The output projection of one row, whose attention comes in parts."""
        geometry = self._decoder.geometry
        outs, ins = layer.out.shape
        tile = self.tile("join", outs, ins, 1)
        self._matvec_join[(-(-outs // tile.outs),)](
            flow.x,
            flow.parts_of,
            flow.peaks,
            flow.sums,
            layer.out,
            flow.x if layer.out_bias is None else layer.out_bias,
            flow.x,
            outs,
            K=ins,
            HEADS=geometry.heads,
            DIM=geometry.head_dim,
            PARTS=self.parts(1),
            BN=tile.outs,
            BK=tile.ins,
            BIAS=layer.out_bias is not None,
            PDL=self.dependent,
            num_warps=tile.warps,
            **self._launch,
        )

    def attention(self, index: int, layer: "Layer", flow: Flow, batch: PagedBatch, cache: KVCache) -> None:
        """Norms and rotary positions of queries and keys, the append, and attention of a layer."""
        geometry, scratch = self._decoder.geometry, self._scratch
        keys, values = cache.layer(index)
        rows = flow.rows
        shape, pairs = self.attention_shape(rows), rows * geometry.kv_heads
        share = self._coming(layer.out, rows) // (pairs * shape.workers) // 16 * 16
        self._split_attention[(pairs, shape.workers)](
            flow.attended,
            flow.parts_of,
            flow.peaks,
            flow.sums,
            scratch.pieces,
            scratch.peaks,
            scratch.sums,
            scratch.pieces_done,
            flow.qkv,
            keys,
            values,
            batch.block_tables,
            batch.context_lens,
            batch.slot_mapping,
            geometry.inv_freq,
            flow.qkv if layer.qk_norm is None else layer.qk_norm,
            layer.out,
            share,
            geometry.scale * LOG2_E,
            geometry.scaling,
            geometry.eps,
            NO_WINDOW if layer.window is None else layer.window,
            batch.block_tables.stride(0),
            flow.qkv.stride(0),
            HEADS=geometry.heads,
            KV_HEADS=geometry.kv_heads,
            GROUP_ROWS=max(LEAST_DOT, power_of_two(geometry.heads // geometry.kv_heads)),
            DIM=geometry.head_dim,
            BLOCK=cache.block_size,
            TILE=shape.tile,
            CHUNK=shape.chunk,
            GRAIN=shape.grain or shape.early or shape.tile,
            PARTS=self.parts(rows),
            WORKERS=shape.workers,
            JOIN=JOIN,
            TOGETHER=shape.together(self.parts(rows)),
            COUNTERS=shape.counters(self.parts(rows)),
            STAGES=shape.stages,
            EARLY=shape.early if shape.stages else shape.tile,
            ROPE=layer.rotary,
            NORM=layer.qk_norm is not None,
            PDL=self.dependent,
            PREFETCH=self.dependent and share > 0,
            num_warps=shape.warps,
            **self._launch,
        )

    def _coming(self, weight: Tensor, rows: int) -> int:
        """Bytes of the output projection that attention asks for. It is all latency where rows are few and
        contexts short; elsewhere its own reads fill the memory bus.
        """
        most = self._settings.coming_bytes
        return min(most, weight.nbytes) if rows <= 8 and weight.nbytes <= 2 * most else 0


def _card_of(device: torch.device) -> str:
    return card_name(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
