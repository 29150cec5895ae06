"""Layout: how the device's memory is shared out between weights, activations, graphs and KV blocks."""

from collections.abc import Callable

import torch

from engine.attention.select import AttentionChoice
from engine.config import EngineConfig
from engine.decode_buffers import DecodeBuffers
from engine.errors import OutOfMemory
from engine.graphs import DRIVER_BYTES, CudaRecorder, GraphPool, graph_sizes, graphs_unavailable
from engine.kv_budget import MemoryUse, allocate, kv_budget, num_blocks
from engine.kv_cache import KVCache, KVShape
from engine.models.choice import Model
from engine.models.loader import Loaded
from engine.models.memory import size_text
from engine.records import Progress, StepMode
from engine.runner import ModelRunner
from engine.static_decode import StaticDecode, table_width


class Layout:
    """How the device's memory is shared out, and what decodes in it.

    Graphs hold the addresses of the cache, so they are captured when the cache is there; what they take is
    measured before, with the largest of them over a cache of a few blocks.
    """

    def __init__(
        self,
        config: EngineConfig,
        loaded: Loaded,
        model: Model,
        attention: AttentionChoice,
        device: torch.device,
        shape: KVShape,
    ) -> None:
        self.config = config
        self.loaded = loaded
        self.model = model
        self.attention = attention
        self.device = device
        self.shape = shape
        self.sizes = graph_sizes(config.graph_sizes, config.max_batch)
        self.notes: tuple[str, ...] = ()
        self._unavailable = graphs_unavailable(device, attention.backend, self.sizes)

    def measure(self, progress: Callable[[Progress], None]) -> MemoryUse:
        """Peak of the largest prefill and memory of the graphs; on a CPU nothing is set aside."""
        weights = self.loaded.weight_bytes
        if self.device.type != "cuda":
            return MemoryUse(weights)
        progress(Progress("measuring", "the largest prefill and the largest graph"))
        longest = self.config.max_model_len or self.loaded.max_model_len
        few = KVCache(self.shape, 2, self.attention.block_size, self.device)
        trial = self.runner(few, longest, trial=True)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        try:
            trial.rehearse(self.config.prefill_chunk, longest, self.config.max_batch)
        except torch.OutOfMemoryError as error:
            free = torch.cuda.mem_get_info(self.device)[0]
            raise OutOfMemory(
                f"A prefill of {self.config.prefill_chunk} tokens at the end of a sequence of {longest} does "
                f"not fit beside weights of {size_text(weights)}: {size_text(free)} are free.",
                "Lower --prefill-chunk, --max-model-len or --max-batch, or end other programs on the card.",
            ) from error
        activations = torch.cuda.max_memory_allocated(self.device) - before
        trial.capture(progress=lambda _: None)
        graphs = trial.graphs.num_bytes
        trial.close()
        torch.cuda.empty_cache()
        # The other sizes reuse the largest one's memory, but for their outputs and their launch lists.
        others = max(0, len(self.sizes) - 1)
        return MemoryUse(weights, activations, graphs + min(others, 4) * graphs // 4 + others * DRIVER_BYTES)

    def cache(self, use: MemoryUse) -> KVCache:
        """The KV cache, of what is left or of what was asked for."""
        block_size = self.attention.block_size
        budget = kv_budget(self.config, self.device, use)
        self.notes = (budget.note,) if budget.note and self.config.num_blocks is None else ()
        blocks = num_blocks(self.config, self.shape, block_size, budget, use)
        given = self.config.num_blocks is not None or self.config.kv_memory is not None

        def again() -> int:
            return num_blocks(
                self.config, self.shape, block_size, kv_budget(self.config, self.device, use), use
            )

        return allocate(self.shape, blocks, block_size, self.device, None if given else again)

    def runner(self, cache: KVCache, longest: int, trial: bool = False) -> ModelRunner:
        """A runner over ``cache`` for sequences of at most ``longest`` tokens; a trial has one graph only."""
        vocab_size = _vocab_size(self.loaded)
        mode: StepMode = "eager" if self.config.mode == "eager" else "graph"
        if self._unavailable:
            graphs = GraphPool(unavailable=self._unavailable, mode=mode)
        else:
            graphs = GraphPool(
                self.sizes[-1:] if trial else self.sizes,
                width=table_width(longest, cache.block_size),
                recorder=CudaRecorder(self.device),
                mode=mode,
            )
        static = None
        if self.device.type == "cuda":
            rows = max(self.config.max_batch, *self.sizes, 1)
            width = table_width(longest, cache.block_size)
            buffers = DecodeBuffers(rows, width, cache.block_size, self.device)
            static = StaticDecode(self.model, cache, graphs, buffers, vocab_size)
        return ModelRunner(self.model, cache, graphs, vocab_size, static)


def _vocab_size(loaded: Loaded) -> int:
    """Width of the logits; the tokenizer may know fewer tokens."""
    text = loaded.config.get_text_config(decoder=True)
    return int(text.vocab_size)
