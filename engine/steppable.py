"""What the step loop needs of an engine, and where it sends its events. Torch-free."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.config import EngineConfig
from engine.records import (
    AnyEvent,
    BlockDetail,
    BlockSnapshot,
    EngineStatus,
    Progress,
    StepMode,
    StepRecord,
)
from engine.request import Request, SamplingParams


class Steppable(Protocol):
    """What the service needs of an engine; ``engine.core.Engine`` has it."""

    @property
    def has_work(self) -> bool: ...
    @property
    def mode(self) -> StepMode: ...
    def submit(
        self,
        prompt: Any,
        params: SamplingParams,
        session: str | None = None,
        priority: int = 0,
        history: list[int] | None = None,
        answered: int = 0,
    ) -> Request: ...
    def step(self, ahead: bool = False) -> StepRecord | None: ...
    def land(self) -> StepRecord | None: ...
    def cancel(self, request_id: int) -> Any: ...
    def set_mode(self, mode: StepMode) -> str: ...
    def status(self) -> EngineStatus: ...
    def block_snapshot(self) -> BlockSnapshot: ...
    def inspect(self, block: int) -> BlockDetail: ...
    def pieces(self, token_ids: Sequence[int]) -> list[str]: ...
    def close(self) -> None: ...


EngineFactory = Callable[[EngineConfig, Callable[[Progress], None]], Steppable]


class Outlet(Protocol):
    """Where events go. ``send`` neither blocks nor loses anything."""

    def send(self, event: AnyEvent) -> None: ...

    @property
    def congested(self) -> bool: ...
