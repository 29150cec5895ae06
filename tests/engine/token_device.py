"""A device that computes tokens instead of KV: it shows at once when a block holds somebody else's.

Every slot of its cache remembers which token was written there behind which prefix. Reading a request
through its block table must give back exactly the request's tokens, and the token that it "samples" is
a function of what it read, so that wrong sharing, stale hits, lost and doubled tokens change the answer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.blocks import BlockPool
from engine.plan import StepPlan, stop_reason
from engine.records import BlockChange
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler

START = 1


def fold(state: int, token: int) -> int:
    """The state behind one more token."""
    return (state * 1_000_003 + token + 7) & 0xFFFFFFFF


def answer_of(prompt_ids: list[int], count: int, vocab: int = 3) -> list[int]:
    """What any correct schedule answers to a prompt."""
    state = START
    for token in prompt_ids:
        state = fold(state, token)
    answer: list[int] = []
    for _ in range(count):
        answer.append(state % vocab)
        state = fold(state, answer[-1])
    return answer


@dataclass(eq=False)
class Launch:
    """A plan on its way: what a device was told of it when it was launched, and nothing newer.

    ``before`` is the step that draws the tokens which this one computes, where that was not read yet.
    """

    plan: StepPlan
    before: "Launch | None" = None
    tables: dict[int, list[int]] = field(init=False)
    positions: dict[int, int] = field(init=False)
    drawn: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = {request.id: list(request.block_table) for request in self.plan.requests}
        under_way = 0 if self.before is None else 1
        self.positions = {request.id: request.num_computed + under_way for request in self.plan.decode}


class TokenDevice:
    """Runs step plans; ``cache[block][offset]`` is the folded state after the token there."""

    def __init__(self, pool: BlockPool, vocab: int = 3) -> None:
        self.pool = pool
        self.vocab = vocab
        self.cache = [[-1] * pool.block_size for _ in range(pool.num_blocks)]

    def run(self, launch: Launch) -> list[tuple[Request, int]]:
        """Compute all rows, decode first, and return a token for each row that completes."""
        plan = launch.plan
        for source, target in plan.copies:
            self.cache[target] = list(self.cache[source])
        sampled: list[tuple[Request, int]] = []
        for request in plan.decode:
            position, tokens = launch.positions[request.id], request.token_ids()
            if launch.before is None:
                assert request.finished or len(tokens) == position + 1, "a decode row computes one token"
                tokens = tokens[: position + 1]
            else:
                tokens = [*tokens[:position], launch.before.drawn[request.id]]
            state = self._compute(request, launch, tokens, position, position + 1)
            sampled.append((request, state % self.vocab))
        for chunk in plan.prefill:
            assert chunk.start < chunk.end, "an empty chunk"
            assert chunk.start == chunk.request.num_computed, "a chunk starts where the cache ends"
            assert chunk.token_ids() == chunk.request.token_ids()[chunk.start : chunk.end]
            state = self._compute(chunk.request, launch, chunk.request.token_ids(), chunk.start, chunk.end)
            if chunk.completes:
                sampled.append((chunk.request, state % self.vocab))
        launch.drawn.update((request.id, token) for request, token in sampled)
        return sampled

    def _compute(self, request: Request, launch: Launch, tokens: list[int], start: int, end: int) -> int:
        size, table = self.pool.block_size, launch.tables[request.id]
        state = START
        for position in range(start):
            state = fold(state, tokens[position])
            held = self.cache[table[position // size]][position % size]
            assert held == state, f"request {request.id} reads a stranger's KV at position {position}"
        for position in range(start, end):
            state = fold(state, tokens[position])
            self.cache[table[position // size]][position % size] = state
        return state


class Mirror:
    """A pool rebuilt from its changes alone."""

    def __init__(self) -> None:
        self.owners: dict[int, dict[int, int]] = {}
        self.published: set[int] = set()

    def apply(self, changes: Iterable[BlockChange]) -> None:
        for change in changes:
            owners = self.owners.setdefault(change.block, {})
            if change.kind in ("allocate", "copy"):
                assert not owners, f"block {change.block} was handed out while in use"
                assert change.block not in self.published, f"block {change.block} kept its name"
                owners[change.request] = change.index
            elif change.kind == "share":
                assert owners or change.block in self.published
                owners[change.request] = change.index
            elif change.kind == "publish":
                assert owners[change.request] == change.index
                self.published.add(change.block)
            elif change.kind == "release":
                assert owners.pop(change.request) == change.index
            else:
                assert change.kind == "evict"
                assert not owners
                self.published.remove(change.block)

    def counts(self, num_blocks: int) -> tuple[int, int, int]:
        used = {block for block, owners in self.owners.items() if owners}
        cached = self.published - used
        return len(used), len(cached), num_blocks - 1 - len(used) - len(cached)


class Harness:
    """Scheduler, pool and device with the bookkeeping that an engine does."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        *,
        max_batch: int = 8,
        prefill_chunk: int = 64,
        max_model_len: int = 10_000,
        prefix_cache: bool = True,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size, prefix_cache)
        self.scheduler = Scheduler(
            self.pool, max_batch=max_batch, prefill_chunk=prefill_chunk, max_model_len=max_model_len
        )
        self.device = TokenDevice(self.pool)
        self.mirror = Mirror()
        self.steps = 0
        self.flight: Launch | None = None
        self._next_id = 0

    def submit(self, prompt_ids: list[int], max_tokens: int = 8, priority: int = 0, **params) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens, **params)
        request = Request(self._next_id, list(prompt_ids), sampling, priority=priority)
        self._next_id += 1
        self.scheduler.add(request)
        return request

    def fork(self, parent: Request, max_tokens: int = 8) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens)
        child = Request(self._next_id, list(parent.prompt_ids), sampling, priority=parent.priority)
        child.output_ids = list(parent.output_ids)
        self._next_id += 1
        self.scheduler.fork(parent.id, child)
        return child

    def step(self, midway: Callable[[], object] | None = None, *, ahead: bool = False) -> StepPlan | None:
        """One whole step, or the rest of the one under way; ``midway`` happens before its end.

        With ``ahead`` the step behind it is launched before that, where the scheduler makes one.
        """
        launch, self.flight = self.flight, None
        if launch is None:
            plan = self.scheduler.schedule()
            if plan is not None:
                launch = Launch(plan)
        if launch is not None and ahead:
            plan = self.scheduler.follow(launch.plan)
            self.flight = None if plan is None else Launch(plan, launch)
        self.check()
        if launch is None:
            return None
        if midway is not None:
            midway()
            self.check()
        self.land(launch)
        return launch.plan

    def settle(self) -> None:
        """End the step that is under way, and launch none."""
        if self.flight is not None:
            self.step()

    def land(self, launch: Launch) -> None:
        """Compute a launched step, as late as can be, and accept its tokens."""
        sampled = self.device.run(launch)
        self.scheduler.computed(launch.plan)
        for request, token in sampled:
            if request.finished:
                continue
            request.output_ids.append(token)
            reason = stop_reason(request, frozenset(), self.scheduler.max_model_len)
            if reason is not None:
                self.scheduler.finish(request, reason)
        self.steps += 1
        self.check()

    def run(self, limit: int = 10_000) -> list[StepPlan]:
        """Step until nothing is left to do."""
        plans: list[StepPlan] = []
        self.settle()
        while self.scheduler.has_work:
            plan = self.step()
            assert plan is not None, "work is left and nothing can be done"
            plans.append(plan)
            assert len(plans) < limit, "no end in sight"
        assert self.pool.counts().used == 0
        return plans

    def check(self) -> None:
        """All invariants, and that the changes tell the whole story."""
        self.scheduler.check()
        for table in self.flight.tables.values() if self.flight is not None else ():
            assert all(map(self.pool.is_used, table)), "a launched step reads a block that was released"
        self.mirror.apply(self.pool.drain_changes())
        counts = self.pool.counts()
        assert (counts.used, counts.cached, counts.free) == self.mirror.counts(self.pool.num_blocks)
        snapshot = self.scheduler.snapshot(self.steps)
        owners = {(owner.block, owner.request, owner.index) for owner in snapshot.owners}
        assert owners == {
            (block, request, index)
            for block, held in self.mirror.owners.items()
            for request, index in held.items()
        }
        assert set(snapshot.published) == self.mirror.published
