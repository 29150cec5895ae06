"""Engine settings: frozen, validated at construction, one message per bad value. Torch-free."""

import os
import sys
from typing import Literal, get_args

import msgspec

from engine.errors import ConfigError

Device = str  # "auto", "cpu", "cuda", "cuda:N", "mps"
DType = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "flash", "triton", "varlen", "sdpa"]
Mode = Literal["auto", "graph", "eager"]
ModelImpl = Literal["auto", "transformers", "decoder"]
Quant = Literal["auto", "none", "int4", "int8"]

DEFAULT_MODEL = "smollm2"


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the engine needs to start.

    Attributes:
        model: a known name (``smollm2``), a folder, a ``.gguf`` file, a Hugging Face id, or ``shape:NAME``
            for random weights of a published geometry.
        device: ``auto`` takes CUDA, then MPS, then the CPU.
        dtype: ``auto`` takes bfloat16 where the hardware computes in it, else float32.
        quant: ``auto`` keeps the weights of a GGUF file in its own four or eight bits on a CPU that has a
            fast kernel for them, unless ``dtype`` asks for float32 or float16; ``none`` turns all of them
            into ``dtype``; ``int4`` and ``int8`` round those of any model, on a CPU.
        attention: paged attention back end; ``auto`` probes them in order.
        mode: how decode starts: ``graph`` replays CUDA graphs, and is refused where there are none; ``eager``
            does not until it is switched; ``auto`` takes graphs where it can.
        max_batch: most requests decoded in one step.
        max_model_len: longest sequence in tokens, prompt and output; ``None`` takes the model's
            own limit, bounded by what the KV cache can hold.
        block_size: tokens per KV block; ``None`` takes the attention back end's preference.
        num_blocks: KV blocks including the null block; ``None`` derives them from ``kv_memory``.
        kv_memory: bytes for the KV cache; ``None`` takes a share of what is free.
        prefill_chunk: most prompt tokens computed in one step, over all requests.
        graph_sizes: padded batch sizes to capture; ``None`` takes powers of two up to ``max_batch``, and
            ``max_batch`` itself, and ``()`` captures nothing.
        prefix_cache: share full blocks between requests with a common prefix.
        ahead: launch the next decode step before this one's tokens are read, where graphs can be had; the
            tokens are the same.
        model_impl: ``decoder`` is our fused one for the Llama family, ``transformers`` runs the stock
            modules; ``auto`` takes the first where it can.
        gpu_memory_utilization: share of the card that weights, graphs and KV may take together.
        seed: base seed of requests that bring none.
        threads: CPU threads, at most the cores that this process may use; ``None`` leaves torch's choice.
        trust_remote_code: run Python code that a model repository ships.
        revision: branch, tag or commit of a Hugging Face id.

    Raises:
        ConfigError: naming the field, the value and the accepted range.
    """

    model: str = DEFAULT_MODEL
    device: Device = "auto"
    dtype: DType = "auto"
    quant: Quant = "auto"
    attention: Attention = "auto"
    mode: Mode = "auto"
    max_batch: int = 32
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    kv_memory: int | None = None
    prefill_chunk: int = 512
    graph_sizes: tuple[int, ...] | None = None
    prefix_cache: bool = True
    ahead: bool = True
    model_impl: ModelImpl = "auto"
    gpu_memory_utilization: float = 0.9
    seed: int = 0
    threads: int | None = None
    trust_remote_code: bool = False
    revision: str | None = None

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ConfigError("model is empty.", "Give a name, a folder, a .gguf file or a Hugging Face id.")
        _check_text("model", self.model)
        _check_text("revision", self.revision)
        _check_device(self.device)
        _check_choice("dtype", self.dtype, get_args(DType))
        _check_choice("quant", self.quant, get_args(Quant))
        _check_choice("attention", self.attention, get_args(Attention))
        _check_choice("mode", self.mode, get_args(Mode))
        _check_choice("model_impl", self.model_impl, get_args(ModelImpl))
        _check_at_least("max_batch", self.max_batch, 1)
        _check_at_least("max_model_len", self.max_model_len, 2)
        _check_at_least("block_size", self.block_size, 1)
        _check_at_least("num_blocks", self.num_blocks, 2, "one null block and at least one for tokens")
        _check_at_least("kv_memory", self.kv_memory, 1)
        _check_at_least("prefill_chunk", self.prefill_chunk, 1)
        _check_at_least("threads", self.threads, 1)
        _check_threads(self.threads)
        if not 0.05 <= self.gpu_memory_utilization <= 1.0:
            raise ConfigError(f"gpu_memory_utilization={self.gpu_memory_utilization} is outside 0.05 to 1.0.")
        if self.graph_sizes is not None:
            for size in self.graph_sizes:
                _check_at_least("graph_sizes entry", size, 1)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown.", f"Choose one of {', '.join(choices)}.")


def _check_at_least(name: str, value: int | None, least: int, why: str = "") -> None:
    if value is not None and value < least:
        raise ConfigError(
            f"{name}={value} is too small; it must be at least {least}{f' ({why})' if why else ''}."
        )


def _check_threads(threads: int | None) -> None:
    """More threads than cores wait for each other after every operator: a step takes many times as long."""
    cores = _cores()
    if threads is not None and threads > cores:
        raise ConfigError(
            f"threads={threads} is too large; this process may use {cores} core{'s' if cores > 1 else ''}.",
            "Give at most that many, or leave threads out.",
        )


def _cores() -> int:
    """Cores that this process may use, which ``taskset`` and containers make fewer than there are."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_text(name: str, value: str | None) -> None:
    """Only what has a UTF-8 form can be told to the engine process."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={value!r} is not UTF-8.", "Rename it, or give a link to it.") from None


def _check_device(device: str) -> None:
    kind, colon, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (
        colon and not (kind == "cuda" and index.isascii() and index.isdigit())
    ):
        raise ConfigError(f"device={device!r} is unknown.", "Use auto, cpu, cuda, cuda:N or mps.")
