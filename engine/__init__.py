"""tui-infer's inference engine: one batching loop over a paged KV cache.

Importing this package loads no torch; ``Engine`` is resolved on first use, so that the app and the
client process can share the configuration and wire types without paying for it.
"""

from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.request import Completion, FinishReason, Request, SamplingParams
from engine.version import __version__

if TYPE_CHECKING:
    from engine.core import Engine

__all__ = [
    "Completion",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "EngineError",
    "FinishReason",
    "Request",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from engine.core import Engine

        return Engine
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
