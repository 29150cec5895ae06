"""RunUntil: behind which step to stop, and what to say there. Torch-free."""

from engine.commands import RunUntil
from engine.errors import RequestError
from engine.records import StepRecord

REMEMBERED = 4096  # requests whose session is known; blocks outlive their requests in the cache

WANTED = {
    "allocation": "an allocation",
    "eviction": "an eviction",
    "prefix_hit": "a prefix hit",
    "preemption": "a preemption",
    "graph_change": "a change of the graph",
    "eager": "an eager decode step",
    "finished": "the end of an answer",
}
OF_A_SESSION = frozenset({"allocation", "eviction", "prefix_hit", "preemption", "finished"})


class StepWatch:
    """Reads every step record, and tells the first one that fulfils the condition it was given.

    What a condition means, where ``RunUntil`` leaves it open: a copy on write is an allocation. The session
    of an eviction is the one that held the block last. A fork is a prefix hit. An answer that was cancelled
    has not finished. A decode step that runs eager after one by a graph, or the other way round, is a change
    of the graph. Where nothing is to be done the watch waits for work, and gives up when that work ends.
    """

    def __init__(self) -> None:
        self._wanted: RunUntil | None = None
        self._stepped = False
        self._step = 0
        self._graph: int | None = None
        self._decoded = False
        self._sessions: dict[int, str] = {}
        self._live: set[int] = set()
        self._holders: dict[int, int] = {}  # who took, shared or released a block last

    @property
    def waiting(self) -> bool:
        """True while a condition is not met."""
        return self._wanted is not None

    def submitted(self, request: int, session: str) -> None:
        """A request of this session was taken in."""
        self._sessions[request] = session
        self._live.add(request)
        if len(self._sessions) > REMEMBERED:
            oldest = next((known for known in self._sessions if known not in self._live), request)
            del self._sessions[oldest]

    def ended(self, request: int) -> None:
        """The session was told that this request ended."""
        self._live.discard(request)

    def start(self, command: RunUntil) -> None:
        """Wait for this condition, in place of any other.

        Raises:
            RequestError: it can never be met; the condition before stays.
        """
        session, number = command.session, command.step
        if command.kind == "step" and number <= self._step:
            hint = f"Give a step from {self._step + 1:,} on."
            raise RequestError(
                f"Step {number:,} cannot be waited for: the engine is at {self._step:,}.", hint
            )
        if command.kind in OF_A_SESSION and session and session not in self._sessions.values():
            raise RequestError(
                f"Session {session!r} is unknown to the engine: it has not asked anything yet.",
                "Send its prompt first, or wait for any session.",
            )
        self._wanted, self._stepped = command, False

    def cancel(self) -> None:
        """Wait for nothing."""
        self._wanted = None

    def observe(self, record: StepRecord) -> str:
        """Take in a step, right after it was made; what it fulfilled as a line, or ''."""
        evicted = self._follow_blocks(record)
        found = ""
        if self._wanted is not None:
            self._stepped = True
            found = self._judge(self._wanted, record, evicted)
            if found:
                self._wanted = None
        self._step = record.index
        if record.decode_tokens:
            self._graph, self._decoded = record.graph_size, True
        return found

    def out_of_work(self) -> str:
        """Nothing is left to do: why the wait is over, or '' where none began."""
        if self._wanted is None or not self._stepped:
            return ""
        wanted, self._wanted = self._wanted, None
        what = f"step {wanted.step:,}" if wanted.kind == "step" else WANTED[wanted.kind]
        of = f" of {wanted.session}" if wanted.session and wanted.kind in OF_A_SESSION else ""
        return f"the work ended at step {self._step:,}, before {what}{of}"

    # --- judging -----------------------------------------------------------------------------------

    def _follow_blocks(self, record: StepRecord) -> list[tuple[int, int]]:
        """Keep up who held which block; the evicted ones with their last holders (-1 unknown)."""
        evicted = []
        for change in record.block_changes:
            if change.kind == "evict":
                evicted.append((change.block, self._holders.get(change.block, -1)))
            elif change.kind != "publish":
                self._holders[change.block] = change.request
        return evicted

    def _judge(self, wanted: RunUntil, record: StepRecord, evicted: list[tuple[int, int]]) -> str:
        at = f"at step {record.index:,}"
        match wanted.kind:
            case "allocation":
                for change in record.block_changes:
                    if change.kind in ("allocate", "copy") and self._concerns(change.request):
                        return f"block {change.block} was allocated to {self._name(change.request)} {at}"
            case "eviction":
                for block, request in evicted:
                    if self._concerns(request):
                        return f"block {block} of {self._name(request)} was evicted {at}"
            case "prefix_hit":
                return self._prefix_hit(wanted, record, at)
            case "preemption":
                for request in filter(self._concerns, record.preempted):
                    return f"{self._name(request)} was preempted {at}"
            case "finished":
                for request in filter(self._concerns, record.finished):
                    if request in self._live:
                        return f"{self._name(request)} finished {at}"
            case "graph_change":
                if record.decode_tokens and self._decoded and record.graph_size != self._graph:
                    now, before = _run_by(record.graph_size), _run_by(self._graph)
                    return f"step {record.index:,} {now}, the decode step before it {before}"
            case "eager":
                if record.decode_tokens and record.mode == "eager":
                    return f"step {record.index:,} decoded eager: {record.reason}"
            case "step":
                if record.index >= wanted.step:
                    return f"step {record.index:,} was run"
        return ""

    def _prefix_hit(self, wanted: RunUntil, record: StepRecord, at: str) -> str:
        shares = [c for c in record.block_changes if c.kind == "share" and self._concerns(c.request)]
        if shares:
            first = shares[0]
            blocks = sum(change.request == first.request for change in shares)
            more = f" and {blocks - 1} more" if blocks > 1 else ""
            return f"{self._name(first.request)} shares block {first.block}{more}, a prefix hit {at}"
        if record.cached_tokens and not wanted.session:
            return f"{record.cached_tokens} prompt tokens were found in the cache {at}"
        return ""

    def _concerns(self, request: int) -> bool:
        """Whether the wanted session, or any, has this request."""
        assert self._wanted is not None
        return not self._wanted.session or self._sessions.get(request) == self._wanted.session

    def _name(self, request: int) -> str:
        return self._sessions.get(request) or (f"request {request}" if request >= 0 else "nobody known")


def _run_by(graph_size: int | None) -> str:
    return "ran eager" if graph_size is None else f"replayed the graph of {graph_size}"
