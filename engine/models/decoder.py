"""Our own decoder for the Llama family: few launches a layer, weights fused, nothing kept between layers.

Llama, Mistral, Qwen2, Qwen3 and SmolLM 1 to 3 differ in a handful of facts (biases, norms of queries and
keys, layers without positions, windows), which each ``Layer`` holds. Everything else is the same code.
"""

from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.attention.base import AttentionBackend, PagedBatch
from engine.kv_cache import KVCache
from engine.models.decode_path import MOST_ROWS, DecodePath, unfit_path
from engine.models.fused_ops import FusedOps, fused_ops
from engine.models.native_path import NativePath
from engine.models.packed import PackedWeight, Packing, linear
from engine.models.tiled import TiledWeight

Matrix = TypeVar("Matrix", bound=Tensor | PackedWeight | TiledWeight)

FAMILIES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "SmolLM3ForCausalLM",
)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the layers of a model have in common. ``scaling`` is the factor on cosine and sine."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float
    inv_freq: Tensor
    scaling: float


@dataclass(slots=True)
class Layer(Generic[Matrix]):
    """Weights of one layer, [out, in] as in ``F.linear``; a bias that the model lacks is None.

    Its matrices are tensors on a GPU; on a CPU each may be packed.

    ``qk_norm`` is [query heads + kv heads, head dim] float32; ``window`` tokens are seen, None sees all.
    """

    input_norm: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Matrix
    out_bias: Tensor | None
    post_norm: Tensor
    gate_up: Matrix
    gate_up_bias: Tensor | None
    down: Matrix
    down_bias: Tensor | None
    window: int | None
    rotary: bool


class FusedDecoder:
    """A model of ``FAMILIES`` behind the engine's model interface.

    Args:
        module: the transformers module, whose layers are emptied one by one into fused weights, so that no
            second copy of the model is ever in memory.
        backend: paged attention.
        packing: gives weights in fewer bits, on a CPU.

    Raises:
        ValueError: ``unfit`` has a reason against it.
    """

    impl = "decoder"

    def __init__(self, module: nn.Module, backend: AttentionBackend, packing: Packing | None = None) -> None:
        reason = unfit(module)
        if reason:
            raise ValueError(reason)
        model: Any = module.model
        head: Any = module.lm_head
        attention = model.layers[0].self_attn
        config: Any = module.config
        rotary = model.rotary_emb
        self.backend = backend
        self.geometry = Geometry(
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=attention.head_dim,
            eps=config.rms_norm_eps,
            scale=attention.scaling,
            inv_freq=rotary.inv_freq.float().contiguous(),
            scaling=float(rotary.attention_scaling),
        )
        self.embedding: Tensor = model.embed_tokens.weight.data
        self.norm: Tensor = model.norm.weight.data
        self.head: Tensor = head.weight.data
        packed = None if packing is None else packing.head(self.head)
        self.packed_head = packed if isinstance(packed, PackedWeight) else None
        self.tiled_head = packed if isinstance(packed, TiledWeight) else None
        self.layers: list[Layer[Any]] = [
            _take(f"model.layers.{index}", layer, config, packing) for index, layer in enumerate(model.layers)
        ]
        self.ops: FusedOps = fused_ops(self.embedding.device)
        self.native = None if self.tiled_head is None else NativePath(self, config)
        self.path = None if unfit_path(self) else DecodePath(self)

    def forward(
        self, input_ids: Tensor, positions: Tensor, batch: PagedBatch, cache: KVCache, rows: Tensor | None
    ) -> Tensor:
        """Compute packed tokens and return the logits of the chosen ones.

        Args:
            input_ids: [T] int64, the new tokens of all sequences one after another.
            positions: [T] int64, each token's place in its own sequence.
            rows: [n] int64, indexes into T whose logits are wanted; None wants all.

        Returns:
            [n, vocab] logits, float32.
        """
        if self.native is not None:
            return self.native.forward(input_ids, positions, batch, cache, rows)
        if self.path is not None and batch.decode and rows is None and len(batch.query_lens) <= MOST_ROWS:
            return self.path.forward(input_ids, batch, cache)
        geometry, ops, backend = self.geometry, self.ops, self.backend
        heads, kv_heads, dim = geometry.heads, geometry.kv_heads, geometry.head_dim
        eps, query_size, key_size = geometry.eps, heads * dim, kv_heads * dim
        x = F.embedding(input_ids, self.embedding)
        rope = ops.rope(positions, geometry.inv_freq, geometry.scaling)
        delta: Tensor | None = None
        for index, layer in enumerate(self.layers):
            hidden = ops.add_rms_norm(x, delta, layer.input_norm, eps)
            qkv = linear(hidden, layer.qkv, layer.qkv_bias)
            ops.rotate(qkv, heads + kv_heads, dim, rope if layer.rotary else None, layer.qk_norm, eps)
            query, key, value = qkv.split((query_size, key_size, key_size), dim=1)
            attended = backend.attend(
                index,
                query.view(-1, heads, dim),
                key.view(-1, kv_heads, dim),
                value.view(-1, kv_heads, dim),
                batch,
                cache,
                scale=geometry.scale,
                window=layer.window,
            )
            delta = linear(attended.reshape(-1, query_size), layer.out, layer.out_bias)
            hidden = ops.add_rms_norm(x, delta, layer.post_norm, eps)
            gate_up = linear(hidden, layer.gate_up, layer.gate_up_bias)
            delta = linear(ops.silu_mul(gate_up), layer.down, layer.down_bias)
        if rows is not None:
            x = x.index_select(0, rows)
            delta = None if delta is None else delta.index_select(0, rows)
        return self._logits(ops.add_rms_norm(x, delta, self.norm, eps))

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights; tied ones count once."""
        held: list[Any] = [self.embedding, self.norm, self.head, self.packed_head, self.tiled_head]
        held += [getattr(layer, field.name) for layer in self.layers for field in fields(layer)]
        tensors = {value.data_ptr(): value.nbytes for value in held if isinstance(value, Tensor)}
        packed = sum(value.nbytes for value in held if isinstance(value, PackedWeight | TiledWeight))
        return sum(tensors.values()) + packed

    def _logits(self, hidden: Tensor) -> Tensor:
        """[n, vocab] float32. Rounding to 16 bits keeps the order but for ties, and logits tie often."""
        head, packed = self.head, self.packed_head
        if hidden.dtype == torch.float32 and packed is None:
            return F.linear(hidden, head)
        if hidden.is_cuda:
            return torch.mm(hidden, head.t(), out_dtype=torch.float32)
        logits = linear(hidden, head if packed is None else packed).float()
        tied = logits == logits.amax(dim=-1, keepdim=True)
        more = tied.sum(dim=-1, keepdim=True) > 1
        if bool(more.any()):
            rows, ids = (tied & more).nonzero(as_tuple=True)
            logits[rows, ids] = (hidden[rows].float() * head[ids].float()).sum(dim=-1)
        return logits


def unfit(module: nn.Module) -> str:
    """Why the fused decoder cannot run a module; empty when it can."""
    name = type(module).__name__
    if name not in FAMILIES:
        return f"{name} is not one of {', '.join(family.removesuffix('ForCausalLM') for family in FAMILIES)}"
    config: Any = module.config
    model: Any = module.model
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    head_dim = model.layers[0].self_attn.head_dim
    if 2 * model.rotary_emb.inv_freq.numel() != head_dim:
        return "only a part of each head is rotated"
    if getattr(model.rotary_emb, "rope_type", "default") in ("dynamic", "longrope"):
        return f"its positions scale with the length ({model.rotary_emb.rope_type})"
    return ""


def _take(name: str, layer: Any, config: Any, packing: Packing | None) -> Layer[Any]:
    """Fuse a layer's weights and drop the module's own."""
    attention, mlp = layer.self_attn, layer.mlp
    head_dim = attention.head_dim
    qk_norm = None
    if hasattr(attention, "q_norm"):
        norms = (
            (attention.q_norm.weight.data, config.num_attention_heads),
            (
                attention.k_norm.weight.data,
                config.num_key_value_heads,
            ),
        )
        qk_norm = torch.cat([weight.float().expand(count, head_dim) for weight, count in norms])
    qkv, qkv_bias = _fuse(attention, f"{name}.self_attn", ("q_proj", "k_proj", "v_proj"), packing)
    gate_up, gate_up_bias = _fuse(mlp, f"{name}.mlp", ("gate_proj", "up_proj"), packing)
    out, out_bias = _fuse(attention, f"{name}.self_attn", ("o_proj",), packing)
    down, down_bias = _fuse(mlp, f"{name}.mlp", ("down_proj",), packing)
    window = getattr(attention, "sliding_window", None)
    if config.model_type == "mistral":
        window = getattr(config, "sliding_window", None)
    return Layer(
        input_norm=layer.input_layernorm.weight.data,
        qkv=qkv,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        out=out,
        out_bias=out_bias,
        post_norm=layer.post_attention_layernorm.weight.data,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=down,
        down_bias=down_bias,
        window=window,
        rotary=bool(getattr(attention, "use_rope", True)),
    )


def _fuse(
    parent: Any, path: str, names: tuple[str, ...], packing: Packing | None
) -> tuple[Tensor | PackedWeight | TiledWeight, Tensor | None]:
    """Weights of linears under each other, and their biases; the modules lose theirs."""
    linears = [getattr(parent, name) for name in names]
    weights = [linear.weight.data for linear in linears]
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    weight: Tensor | PackedWeight | TiledWeight
    if packing is not None:
        weight = packing.weight([f"{path}.{name}" for name in names], weights)
    else:
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    bias = None if not biases else biases[0] if len(biases) == 1 else torch.cat(biases)
    del weights
    for name in names:
        setattr(parent, name, None)
    return weight, bias
