"""Requests that wait or run, in their one order, and what they hold. Torch-free.

Higher priority goes first, then the older request: in the queue, in every step, and last when somebody must
be preempted. What a launched step reads is not given away before that step is back, whatever happens to its
request meanwhile.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engine.blocks import BlockPool, BrokenInvariant
from engine.errors import RequestError
from engine.plan import StepPlan, is_decode_row
from engine.records import BlockSnapshot
from engine.request import FinishReason, Request


class RequestQueues:
    """Requests from their coming to their end, over one block pool; ``Scheduler`` plans their steps.

    Args:
        pool: the blocks; nobody else uses them.
        max_batch: most requests running at once.
        max_model_len: longest sequence wanted, prompt and output.

    Attributes:
        max_model_len: the bound that holds: also what one request can reach alone in this pool.
            A request that ends there can never be the one that nothing more can be preempted for.
    """

    def __init__(self, pool: BlockPool, max_batch: int, max_model_len: int) -> None:
        self.pool = pool
        self.max_batch = max_batch
        # The last token of a sequence is never computed, so it needs no place in the cache.
        self.max_model_len = min(max_model_len, pool.capacity + 1)
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._requests: dict[int, Request] = {}
        self._order: dict[int, tuple[int, int]] = {}
        self._arrivals = 0
        self._out: list[StepPlan] = []  # launched, oldest first: one, and one that follows it
        self._retired: dict[int, Request] = {}  # ended inside a launched step, which may read their blocks

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
        if prompt > pool.capacity <= self.max_model_len:  # otherwise more memory would not help
            raise RequestError(
                f"The prompt has {prompt} tokens and takes {pool.blocks_for(prompt)} blocks of "
                f"{pool.block_size}; the KV cache has {pool.num_blocks - 1} ({pool.capacity} tokens).",
                "Shorten it, or give the KV cache more memory.",
            )
        if prompt >= self.max_model_len:
            raise RequestError(
                f"The prompt has {prompt} tokens; with max_model_len={self.max_model_len} "
                f"it may have {self.max_model_len - 1} and get one token of answer.",
                "Shorten it, or raise max_model_len as far as the model goes.",
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

    # --- what they hold ----------------------------------------------------------------------------

    def snapshot(self, step: int) -> BlockSnapshot:
        """All blocks and their holders after step ``step``."""
        return self.pool.snapshot(step, self._holders())

    def holder(self, block: int) -> tuple[Request, int] | None:
        """The first request in order that holds the block, and as which of its logical blocks."""
        for request in self._holders():
            if block in request.block_table:
                return request, request.block_table.index(block)
        return None

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

    # --- launched steps, and the order -------------------------------------------------------------

    def _land(self, plan: StepPlan) -> None:
        """The step is over: of what ended inside it, the blocks that no other step reads return."""
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
