"""An engine under measurement: opened with room for the run, described, and emptied between runs."""

import contextlib
import gc
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from engine.bench.measure import copy_gb_per_s, rounded
from engine.bench.traffic import Traffic
from engine.config import EngineConfig
from engine.core import Engine
from engine.device import find_device, find_dtype
from engine.errors import ConfigError, EngineError
from engine.kv_cache import kv_shape
from engine.models.loader import read_config, resolve
from engine.models.memory import require
from engine.records import Progress, StepRecord
from engine.request import Request, SamplingParams

OnProgress = Callable[[Progress], None]

FILL_SLACK = 16  # steps that filling may take beyond those its tokens need
ENOUGH_BYTES = 2**28  # of KV cache, which any engine takes by itself


@dataclass(frozen=True, slots=True)
class Need:
    """What a run must have room for: ``rows`` sequences of ``tokens`` each, at once."""

    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Session:
    """A running engine.

    Attributes:
        shape: name of the shape, or of the model where it is none.
        traffic: bytes of a decode step.
        copy_gb_per_s: what plain copies reached just before the engine was loaded.
    """

    engine: Engine
    shape: str
    traffic: Traffic
    copy_gb_per_s: float

    def identity(self) -> dict[str, Any]:
        """The first columns of every row."""
        status = self.engine.status()
        return {
            "shape": self.shape,
            "impl": status.model_impl,
            "attention": status.attention,
            "block_size": status.block_size,
        }

    def facts(self) -> dict[str, Any]:
        """What the rows of this engine have in common. Sizes are bytes, times seconds, None unknown."""
        status = self.engine.status()
        return self.identity() | {
            "architecture": status.architecture,
            "device": status.device,
            "device_name": status.device_name,
            "dtype": status.dtype,
            "threads": status.threads,
            "attention_reason": status.attention_reason,
            "mode_reason": status.mode_reason,
            "max_batch": status.max_batch,
            "max_model_len": status.max_model_len,
            "prefill_chunk": status.prefill_chunk,
            "vocab_size": status.vocab_size,
            "num_blocks": status.num_blocks,
            "weight_bytes": status.weight_bytes,
            "kv_bytes": status.kv_bytes,
            "activation_bytes": status.activation_bytes,
            "graph_bytes": status.graph_bytes,
            "graph_sizes": list(status.graph_sizes),
            "graph_capture_s": rounded(status.graph_capture_s),
            "load_s": rounded(status.load_s),
            "copy_gb_per_s": rounded(self.copy_gb_per_s),
        }

    def lacks_room(self, need: Need) -> str:
        """Why these sequences cannot be held at once; empty when they can."""
        status = self.engine.status()
        if need.rows > status.max_batch:
            return f"{need.rows} rows are more than --max-batch {status.max_batch}"
        blocks = need.rows * math.ceil(need.tokens / status.block_size)
        if blocks > status.num_blocks - 1:
            return (
                f"{need.rows} sequences of {need.tokens} tokens need {blocks} KV blocks; "
                f"there are {status.num_blocks - 1}"
            )
        return ""

    def check_length(self, tokens: int, what: str) -> None:
        """See that sequences of this length are allowed.

        Raises:
            ConfigError: with both numbers.
        """
        limit = self.engine.status().max_model_len
        if tokens > limit:
            raise ConfigError(
                f"{what} needs sequences of {tokens} tokens, and {self.shape} takes {limit} here.",
                "Ask for less, or raise --max-model-len or --kv-memory.",
            )

    def step(self) -> StepRecord:
        """One step that must have something to do; the one behind it may be under way, as when chats run."""
        record = self.engine.step(ahead=True)
        if record is None:
            raise EngineError("The engine has nothing to do in the middle of a measurement.")
        return record

    def fill(
        self, rows: int, context: int, tokens: int, temperature: float = 0.0, top_p: float = 1.0
    ) -> list[Request]:
        """Let ``rows`` random prompts of ``context`` tokens be computed, until a step decodes them all.

        Row ``i`` has the same prompt in every call, so that its blocks may be found in the prefix cache.

        Args:
            tokens: that each row shall be able to decode afterwards.
        """
        most = tokens + fill_steps(rows, context, self.engine.status().prefill_chunk)
        params = SamplingParams(temperature=temperature, top_p=top_p, ignore_eos=True, max_tokens=most)
        vocab = self.engine.status().vocab_size
        requests = [self.engine.submit(random_prompt(row, context, vocab), params) for row in range(rows)]
        while True:
            record = self.step()
            if record.kind == "decode" and record.decode_tokens == rows:
                return requests

    def clear(self) -> None:
        """End what runs and step until nothing is left."""
        for id in list(self.engine.scheduler.requests):
            self.engine.cancel(id)
        while self.engine.step() is not None:
            pass


@contextlib.contextmanager
def open_session(config: EngineConfig, need: Need, progress: OnProgress) -> Iterator[Session]:
    """Measure the copy bandwidth, load an engine that has room for ``need``, and close it at the end.

    Raises:
        ConfigError, ModelError, OutOfMemory: see ``Engine``.
    """
    device = find_device(config.device).device
    source = resolve(config.model, config.revision, progress)
    model_config = read_config(source, config.trust_remote_code)
    progress(Progress("measuring copies", str(device)))
    rate = copy_gb_per_s(device)
    engine = Engine(_with_room(config, model_config, need, device), progress)
    try:
        shape = source.shape or source.name
        yield Session(engine, shape, Traffic.of(model_config, engine.status()), rate)
    finally:
        engine.close()
        del engine
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def over_models(
    configs: list[EngineConfig],
    need: Need,
    progress: OnProgress,
    measure: Callable[[Session], dict[str, list[dict[str, Any]]]],
) -> dict[str, list[dict[str, Any]]]:
    """Measure one engine after another; lists of the same name are put together, ``engines`` are added."""
    found: dict[str, list[dict[str, Any]]] = {"engines": []}
    for config in configs:
        with open_session(config, need, progress) as session:
            for name, items in measure(session).items():
                found.setdefault(name, []).extend(items)
            found["engines"].append(session.facts())
    return found


def fill_steps(rows: int, context: int, prefill_chunk: int) -> int:
    """Upper bound of the steps that ``Session.fill`` takes."""
    return 2 * math.ceil(rows * context / prefill_chunk) + rows + FILL_SLACK


def random_prompt(row: int, length: int, vocab_size: int) -> list[int]:
    """Token ids that depend on the row only; a longer prompt begins with the shorter one."""
    numbers = random.Random(f"prompt {row}")
    return [numbers.randrange(vocab_size) for _ in range(length)]


def _with_room(config: EngineConfig, model_config: Any, need: Need, device: torch.device) -> EngineConfig:
    """Off a GPU the cache is small by default; take what the run needs where nothing was asked for."""
    if device.type == "cuda" or config.num_blocks is not None or config.kv_memory is not None:
        return config
    per_token = kv_shape(model_config, find_dtype(config.dtype, device)).bytes_per_token
    slack = 2 * (config.block_size or 32)  # a block begun, and the null block
    num_bytes = need.rows * (need.tokens + slack) * per_token
    if num_bytes <= ENOUGH_BYTES:
        return config
    require(
        num_bytes,
        device,
        f"The KV cache of {need.rows} sequences of {need.tokens} tokens",
        "Measure smaller batches or shorter contexts.",
    )
    return msgspec.structs.replace(config, kv_memory=num_bytes)
