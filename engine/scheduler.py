"""Which requests compute which tokens in the next step. Torch-free, token counts only.

One order rules everything: higher priority first, then the older request. Decode rows come first in
every step, and open prefills share what they leave of the token budget (``engine.budget``). A request
is let in when its whole prompt has room; when decode rows grow out of blocks, the last in order is
preempted: it gives up its blocks, keeps its output, and is computed again later.

While a step is out, the one behind it can be planned where nothing but its tokens is unknown (``follow``,
after vLLM's asynchronous scheduling). A request is then a row of two plans at once.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engine.blocks import BlockPool, BrokenInvariant
from engine.budget import share_budget
from engine.errors import ConfigError, RequestError
from engine.plan import PrefillChunk, StepPlan, is_decode_row, stop_reason
from engine.records import BlockSnapshot
from engine.request import FinishReason, Request

__all__ = ["PrefillChunk", "Scheduler", "StepPlan", "is_decode_row", "stop_reason"]


class Scheduler:
    """First come, first served within a priority, over one block pool.

    Args:
        pool: the blocks; the scheduler is its only user.
        max_batch: most requests running at once, and so most rows of a decode batch.
        prefill_chunk: token budget of a step; decode rows come out of it first, but at least half of
            it stays for prompts.
        max_model_len: longest sequence wanted, prompt and output.

    Attributes:
        max_model_len: the bound that holds: also what one request can reach alone in this pool.
            A request that ends there can never be the one that nothing more can be preempted for.
    """

    def __init__(self, pool: BlockPool, *, max_batch: int, prefill_chunk: int, max_model_len: int) -> None:
        if min(max_batch, prefill_chunk) < 1 or max_model_len < 2:
            raise ConfigError(
                f"max_batch={max_batch}, prefill_chunk={prefill_chunk} and max_model_len={max_model_len} "
                "must be at least 1, 1 and 2."
            )
        self.pool = pool
        self.max_batch = max_batch
        self.prefill_chunk = prefill_chunk
        # The last token of a sequence is never computed, so it needs no place in the cache.
        self.max_model_len = min(max_model_len, pool.capacity + 1)
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._requests: dict[int, Request] = {}
        self._order: dict[int, tuple[int, int]] = {}
        self._arrivals = 0
        self._out: list[StepPlan] = []  # launched, oldest first: one, and one that follows it
        self._retired: dict[int, Request] = {}  # ended inside a launched step, which may read their blocks
        self._blocked: tuple[int, int] | None = None  # (request, pool.releases) of the last refused admission

    # --- views -------------------------------------------------------------------------------------

    @property
    def waiting(self) -> Sequence[Request]:
        """Requests without blocks, in order."""
        return tuple(self._waiting)

    @property
    def running(self) -> Sequence[Request]:
        """Requests with blocks, in order."""
        return tuple(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_requests(self) -> int:
        """Waiting and running requests."""
        return len(self._requests)

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def requests(self) -> Mapping[int, Request]:
        """Waiting and running requests by id."""
        return MappingProxyType(self._requests)

    # --- requests come and go ----------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: when it is empty, known, or can never fit; nothing of it is kept.
        """
        prompt, pool = request.num_tokens, self.pool  # an answer that goes on counts as prompt
        if request.id in self._order or request.finished:
            raise RequestError(f"Request {request.id} was submitted before.")
        if not request.prompt_ids:
            raise RequestError("The prompt is empty; it needs at least one token.")
        if prompt > pool.capacity:
            raise RequestError(
                f"The prompt has {prompt} tokens and takes {pool.blocks_for(prompt)} blocks of "
                f"{pool.block_size}; the KV cache has {pool.num_blocks - 1} ({pool.capacity} tokens).",
                "Shorten it, or give the KV cache more memory.",
            )
        if prompt >= self.max_model_len:
            raise RequestError(
                f"The prompt has {prompt} tokens; with max_model_len={self.max_model_len} "
                f"it may have {self.max_model_len - 1} and get one token of answer.",
                "Shorten it, or raise max_model_len.",
            )
        self._order[request.id] = (-request.priority, self._arrivals)
        self._arrivals += 1
        self._requests[request.id] = request
        insort(self._waiting, request, key=self._rank)

    def fork(self, parent_id: int, child: Request) -> None:
        """Let ``child`` go on from where a request is now, over the same blocks.

        The child has the parent's prompt and output. Where the parent decodes and there is room in the
        batch they share all blocks, and whoever first writes into the partly filled one gets a copy of
        it (copy on write, as in vLLM's parallel sampling); else the child queues and meets the full
        blocks in the prefix cache. Between two steps only.

        Raises:
            RequestError: when the parent is not running or waiting here.
        """
        parent = self._requests.get(parent_id)
        if parent is None:
            raise RequestError(f"Request {parent_id} is not running, so it cannot be forked.")
        if self._is_out(parent):
            raise BrokenInvariant(f"Request {parent.id} is part of a launched step.")
        self.add(child)
        if is_decode_row(parent) and parent.block_table and len(self._running) < self.max_batch:
            self._remove(self._waiting, child)
            self.pool.fork(parent, child)
            child.num_computed = parent.num_computed
            child.cached_tokens = min(child.num_computed, len(child.prompt_ids))
            insort(self._running, child, key=self._rank)

    def finish(self, request: Request, reason: FinishReason, error: str = "") -> None:
        """End a request in any state; ending it again changes nothing.

        Its full blocks stay cached. If it is part of a launched step its blocks return after that; of two
        steps, after the later.
        """
        if request.finished or self._requests.get(request.id) is not request:
            return
        request.finish_reason, request.error = reason, error
        self._remove(self._running if request in self._running else self._waiting, request)
        del self._requests[request.id]
        if self._is_out(request):
            self._retired[request.id] = request
        else:
            self._drop(request)

    def cancel(self, request_id: int) -> Request | None:
        """End a request as cancelled; None when it is not known or has ended."""
        request = self._requests.get(request_id)
        if request is not None:
            self.finish(request, FinishReason.CANCELLED)
        return request

    def preempt(self, request: Request) -> None:
        """Send a running request back to the queue without its blocks; it is computed again later.

        Output, text and everything drawn stay.

        Raises:
            BrokenInvariant: when a launched step still reads its blocks.
        """
        if self._is_out(request):
            raise BrokenInvariant(f"Request {request.id} is part of a launched step.")
        self._remove(self._running, request)
        self.pool.release(request)
        request.num_computed = 0
        request.preemptions += 1
        insort(self._waiting, request, key=self._rank)

    # --- the step ----------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Plan the next step and allocate its blocks; None when nothing can be done.

        Every plan must come back through ``computed`` or ``abandoned`` before the next one is made.

        Raises:
            BrokenInvariant: when the plan before is still out.
        """
        if self._out:
            ids = sorted({request.id for plan in self._out for request in plan.requests})
            raise BrokenInvariant(f"A step of requests {ids} is still out.")
        preempted: list[int] = []
        copies: list[tuple[int, int]] = []
        decode, cached = self._plan_decode(preempted, copies)
        cached += self._admit(decode)
        prefill = self._plan_prefill(decode)
        if not prefill and not decode:
            return None
        plan = StepPlan(tuple(prefill), tuple(decode), tuple(preempted), cached, tuple(copies))
        self._out.append(plan)
        return plan

    def follow(self, plan: StepPlan) -> StepPlan | None:
        """Plan the step behind ``plan``, which is out, and allocate its blocks; None changes nothing.

        Its rows compute the tokens that ``plan`` draws, so it is made only where no decision hangs on those:
        ``plan`` is nothing but decode rows, they are all that runs, nobody who waits could be let in, and
        every row has a place of its own for one more token. Rows that end with the token under way, whatever
        it is, are left out. A row may end with it all the same: what it then computes here is dropped.

        Raises:
            BrokenInvariant: when ``plan`` is not the one step that is out.
        """
        if len(self._out) != 1 or self._out[0] is not plan:
            raise BrokenInvariant("Only the one step that is out can be followed.")
        rows = [request for request in plan.decode if request.finish_reason is None]
        if plan.prefill or plan.copies or len(rows) != len(self._running) or self._could_admit():
            return None
        pool, longest = self.pool, self.max_model_len - 1
        rows = [
            request
            for request in rows
            if len(request.output_ids) + 1 < request.params.max_tokens and request.num_computed + 1 < longest
        ]
        full = [
            request
            for request in rows
            if request.num_computed + 1 == len(request.block_table) * pool.block_size
        ]
        if not rows or len(full) > pool.available or any(map(pool.shares_tail, rows)):
            return None
        for request in full:
            pool.allocate(request)
        following = StepPlan((), tuple(rows))
        self._out.append(following)
        return following

    def computed(self, plan: StepPlan) -> None:
        """The device has finished the step: its tokens count, its full blocks are published.

        A decode row whose request ended meanwhile does not count.

        Raises:
            BrokenInvariant: when it is not the oldest step that is out.
        """
        if not self._out or self._out[0] is not plan:
            raise BrokenInvariant("Steps come back in the order in which they were launched.")
        pool = self.pool
        for chunk in plan.prefill:
            chunk.request.num_computed = chunk.end
            pool.publish(chunk.request)
        for request in plan.decode:
            if request.finish_reason is None:
                request.num_computed += 1
                if request.num_computed % pool.block_size == 0:
                    pool.publish(request)
        self._land(plan)

    def abandoned(self, plan: StepPlan) -> None:
        """The step failed: nothing of it counts, and its blocks are not trusted with a name."""
        self._land(plan)

    def check(self) -> None:
        """Prove the invariants of queues and blocks.

        Raises:
            BrokenInvariant: naming what does not add up.
        """
        self.pool.check(self._holders())
        live = self._waiting + self._running
        if {request.id for request in live} != set(self._requests) or len(live) != len(self._requests):
            raise BrokenInvariant("A request is in no queue, or in two.")
        if len(self._running) > self.max_batch:
            raise BrokenInvariant(f"{len(self._running)} requests run with max_batch={self.max_batch}.")
        for queue in (self._waiting, self._running):
            if sorted(queue, key=self._rank) != queue:
                raise BrokenInvariant("A queue is out of order.")
        if any(request.finished for request in live):
            raise BrokenInvariant("A finished request is still scheduled.")
        if any(request.block_table or request.num_computed for request in self._waiting):
            raise BrokenInvariant("A waiting request holds blocks.")
        self._check_out()

    def _check_out(self) -> None:
        """Steps that are out: who is in them, and that what they read and write stays theirs."""
        holders = {request.id for request in self._holders()}
        rows = [{request.id for request in plan.requests} for plan in self._out]
        if not set(self._retired) <= set().union(*rows) or not set().union(*rows) <= holders:
            raise BrokenInvariant("A step is waited for that was never launched, or holds no blocks.")
        if len(rows) > 2 or (len(rows) == 2 and (self._out[1].prefill or not rows[1] <= rows[0])):
            raise BrokenInvariant("A step that follows another has other rows than that.")
        for ahead, plan in enumerate(self._out, 1):
            for request in plan.decode:
                if len(request.block_table) * self.pool.block_size < request.num_computed + ahead:
                    raise BrokenInvariant(f"Request {request.id} is launched without a place for its token.")

    def snapshot(self, step: int) -> BlockSnapshot:
        """All blocks and their holders after step ``step``."""
        return self.pool.snapshot(step, self._holders())

    def holder(self, block: int) -> tuple[Request, int] | None:
        """The first request in order that holds the block, and as which of its logical blocks."""
        for request in self._holders():
            if block in request.block_table:
                return request, request.block_table.index(block)
        return None

    # --- planning ----------------------------------------------------------------------------------

    def _plan_decode(self, preempted: list[int], copies: list[tuple[int, int]]) -> tuple[list[Request], int]:
        """All decode rows that can have a place for their token, in order, and tokens of late hits.

        A late hit is what others published since an open prefill was planned last; it may leave
        nothing to do but a decode row.
        """
        rows: list[Request] = []
        cached = 0
        for request in tuple(self._running):
            if request.id in preempted:
                continue
            if not is_decode_row(request):
                cached += self._take_hits(request, self.pool.match(request))
            if is_decode_row(request) and self._decode_room(request, preempted, copies):
                rows.append(request)
        return rows, cached

    def _decode_room(self, request: Request, preempted: list[int], copies: list[tuple[int, int]]) -> bool:
        """Make sure that the newest token has a place of its own, at the cost of whoever is last in order."""
        pool = self.pool
        while True:
            full = request.num_computed == len(request.block_table) * pool.block_size
            if not full and not pool.tail_is_shared(request):
                return True
            if pool.available:
                break
            victim = self._running[-1]  # never the only one: alone it fits, see max_model_len
            self.preempt(victim)
            preempted.append(victim.id)
            if victim is request:
                return False
        if full:
            pool.allocate(request)
        else:
            copies.append(pool.copy_tail(request))
        return True

    def _admit(self, decode: list[Request]) -> int:
        """Let requests in, in order, while their whole prompt has room; returns tokens of prefix hits.

        Room is what is left when open prefills have got all they still need and each decode row one
        more block: without that margin the newest request would be admitted to be preempted.
        """
        cached = 0
        while self._waiting and len(self._running) < self.max_batch:
            request = self._waiting[0]
            if self._blocked == (request.id, self.pool.releases):
                break
            hit = self.pool.match(request)
            need = self.pool.blocks_for(request.num_tokens) - sum(map(self.pool.is_used, hit))
            room = self.pool.available
            if self._running:
                room -= sum(self.pool.blocks_for(r.num_tokens) - len(r.block_table) for r in self._running)
                room -= len(decode)
            if need > room:
                self._blocked = (request.id, self.pool.releases)
                break
            del self._waiting[0]
            insort(self._running, request, key=self._rank)
            cached += self._take_hits(request, hit)
            if is_decode_row(request):
                self.pool.allocate(request)
                decode.append(request)
        return cached

    def _could_admit(self) -> bool:
        """Whether somebody waits who might be let in now."""
        if not self._waiting or len(self._running) >= self.max_batch:
            return False
        return self._blocked != (self._waiting[0].id, self.pool.releases)

    def _take_hits(self, request: Request, hit: list[int]) -> int:
        """Share matched blocks; token counts follow the match. Returns the tokens saved."""
        if not hit:
            return 0
        tokens = len(hit) * self.pool.block_size
        self.pool.share(request, hit)
        request.num_computed += tokens
        if not request.preemptions:  # afterwards it mostly meets its own blocks again
            request.cached_tokens = min(request.cached_tokens + tokens, len(request.prompt_ids))
        return tokens

    def _plan_prefill(self, decode: list[Request]) -> list[PrefillChunk]:
        """Chunks for the open prefills, with blocks.

        Admission kept room for all of them. Only decode rows can have taken it meanwhile, and they give
        it back when they end or are preempted, so a prefill without blocks waits and preempts nobody.
        """
        rows = {request.id for request in decode}
        prefills = [
            request for request in self._running if request.id not in rows and not is_decode_row(request)
        ]
        budget = max(self.prefill_chunk - len(decode), (self.prefill_chunk + 1) // 2)
        chunks: list[PrefillChunk] = []
        for request, tokens in share_budget(prefills, budget, self.pool):
            start, held = request.num_computed, len(request.block_table)
            end = min(start + tokens, (held + self.pool.available) * self.pool.block_size)
            if end > start:
                self.pool.allocate(request, max(0, self.pool.blocks_for(end) - held))
                chunks.append(PrefillChunk(request, start, end))
        return chunks

    # --- queues ------------------------------------------------------------------------------------

    def _land(self, plan: StepPlan) -> None:
        left = [other for other in self._out if other is not plan]
        if len(left) == len(self._out):
            raise BrokenInvariant("A step came back that is not out.")
        self._out = left
        if self._retired:
            for request in plan.requests:
                if request.id in self._retired and not self._is_out(request):
                    self._drop(self._retired.pop(request.id))

    def _is_out(self, request: Request) -> bool:
        """Whether a launched step has a row of this request."""
        return any(row is request for plan in self._out for row in plan.requests)

    def _drop(self, request: Request) -> None:
        self.pool.forget(request)
        del self._order[request.id]

    def _holders(self) -> list[Request]:
        return [*self._running, *self._retired.values()]

    def _rank(self, request: Request) -> tuple[int, int]:
        return self._order[request.id]

    def _remove(self, queue: list[Request], request: Request) -> None:
        index = bisect_left(queue, self._rank(request), key=self._rank)
        del queue[index]
