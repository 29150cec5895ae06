"""Which requests compute which tokens in the next step. Torch-free, token counts only.

One order rules everything: higher priority first, then the older request (``engine.queues``). Decode rows
come first in every step, and open prefills share what they leave of the token budget (``engine.budget``). A
request is let in when its whole prompt has room; when decode rows grow out of blocks, the last in order is
preempted: it gives up its blocks, keeps its output, and is computed again later.

While a step is out, the one behind it can be planned where nothing but its tokens is unknown (``follow``,
after vLLM's asynchronous scheduling). A request is then a row of two plans at once.
"""

from bisect import insort

from engine.blocks import BlockPool, BrokenInvariant
from engine.budget import share_budget
from engine.errors import ConfigError
from engine.plan import PrefillChunk, StepPlan, is_decode_row
from engine.queues import RequestQueues
from engine.request import Request


class Scheduler(RequestQueues):
    """First come, first served within a priority, over one block pool.

    Requests come and go by the methods of ``RequestQueues``.

    Args:
        pool: the blocks; the scheduler is its only user.
        max_batch: most requests running at once, and so most rows of a decode batch.
        prefill_chunk: token budget of a step; decode rows come out of it first, but at least half of
            it stays for prompts.
        max_model_len: longest sequence wanted, prompt and output.
    """

    def __init__(self, pool: BlockPool, *, max_batch: int, prefill_chunk: int, max_model_len: int) -> None:
        if min(max_batch, prefill_chunk) < 1 or max_model_len < 2:
            raise ConfigError(
                f"max_batch={max_batch}, prefill_chunk={prefill_chunk} and max_model_len={max_model_len} "
                "must be at least 1, 1 and 2."
            )
        super().__init__(pool, max_batch, max_model_len)
        self.prefill_chunk = prefill_chunk
        self._blocked: tuple[int, int] | None = None  # (request, pool.releases) of the last refused admission

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
