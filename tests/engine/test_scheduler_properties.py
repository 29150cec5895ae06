"""Scheduler and pool against arbitrary histories: every invariant after every operation."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from engine.errors import RequestError
from engine.request import FinishReason, Request
from tests.engine.recorder import recorded_pool
from tests.engine.token_device import Harness, Launch, answer_of

END = 2  # one of the three tokens that are drawn
RUNS = int(os.environ.get("TUI_INFER_PROPERTY_RUNS", "2000"))

prompts = st.one_of(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    # Long common prefixes of every length, so that hits, duplicates and evictions meet.
    st.integers(1, 120).map(lambda length: [0] * length),
    st.tuples(st.integers(1, 60), st.integers(1, 60)).map(lambda cut: [1] * cut[0] + [2] * cut[1]),
)


class Histories(RuleBasedStateMachine):
    """Submit, cancel, finish, preempt, fail and step in any order."""

    requests = Bundle("requests")

    @initialize(
        num_blocks=st.integers(3, 64),
        block_size=st.integers(1, 16),
        max_batch=st.integers(1, 8),
        prefill_chunk=st.sampled_from([1, 2, 7, 64]),
        max_model_len=st.sampled_from([16, 100, 10_000]),
        prefix_cache=st.sampled_from([True, True, True, False]),
    )
    def build(self, **sizes) -> None:
        self.engine = Harness(**sizes)
        self.scheduler = self.engine.scheduler
        self.graphs = recorded_pool((1, 2, 4))
        self.all: list[Request] = []

    @rule(
        target=requests,
        prompt=prompts,
        max_tokens=st.integers(1, 60),
        priority=st.integers(0, 1),
        ends=st.booleans(),
    )
    def submit(self, prompt: list[int], max_tokens: int, priority: int, ends: bool) -> Request | None:
        pool = self.engine.pool
        fits = len(prompt) <= pool.capacity and len(prompt) < self.scheduler.max_model_len
        try:
            stop = (END,) if ends else ()
            request = self.engine.submit(prompt, max_tokens, priority, stop_token_ids=stop)
        except RequestError:
            assert not fits
            return None
        assert fits
        self.all.append(request)
        return request

    @rule(target=requests, parent=requests, more=st.lists(st.integers(0, 2), min_size=1, max_size=12))
    def next_turn(self, parent: Request | None, more: list[int]) -> Request | None:
        if parent is None or not parent.output_ids:
            return None
        return self.submit(parent.token_ids() + more, 8, parent.priority, False)

    @rule(target=requests, parent=requests, more=st.integers(1, 20))
    def fork(self, parent: Request | None, more: int) -> Request | None:
        self.engine.settle()  # a request of a launched step cannot be forked
        if parent is None or parent.finished:
            return None
        child = self.engine.fork(parent, len(parent.output_ids) + more)
        self.all.append(child)
        return child

    @rule(request=consumes(requests))
    def cancel(self, request: Request | None) -> None:
        if request is None:
            return
        was_live = not request.finished
        assert (self.scheduler.cancel(request.id) is request) == was_live
        assert request.finished
        flight = self.engine.flight
        assert request.block_table == [] or (flight is not None and request in flight.plan.requests)
        assert self.scheduler.cancel(request.id) is None

    @rule(request=requests)
    def preempt(self, request: Request | None) -> None:
        self.engine.settle()
        if request is not None and request in self.scheduler.running:
            self.scheduler.preempt(request)

    @rule(mode=st.sampled_from(["graph", "eager"]))
    def set_mode(self, mode: str) -> None:
        self.graphs.mode = mode

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        self.engine.settle()
        for _ in range(steps):
            self._step()

    @rule(steps=st.lists(st.booleans(), min_size=1, max_size=12))
    def step_ahead_at_times(self, steps: list[bool]) -> None:
        for ahead in steps:
            self._step(ahead)

    @rule(request=requests, steps=st.integers(1, 3))
    def cancel_between_two_launches(self, request: Request | None, steps: int) -> None:
        def cancel() -> None:
            if request is not None:
                self.scheduler.cancel(request.id)

        self.engine.step(cancel, ahead=True)
        for _ in range(steps):
            self._step(True)

    @rule(request=requests, again=st.booleans())
    def cancel_in_a_launched_step(self, request: Request | None, again: bool) -> None:
        self.engine.settle()
        plan = self.scheduler.schedule()
        if plan is None:
            return
        launch = Launch(plan)
        if request is not None:
            held = list(request.block_table)
            for _ in range(1 + again):
                self.scheduler.cancel(request.id)
            if request in plan.requests:
                assert request.block_table == held, "the launched step still reads these blocks"
        self.engine.check()
        self.engine.land(launch)
        assert request is None or request.block_table == []

    @rule(ahead=st.booleans())
    def the_device_fails(self, ahead: bool) -> None:
        self.engine.settle()
        plan = self.scheduler.schedule()
        if plan is None:
            return
        following = self.scheduler.follow(plan) if ahead else None
        self.scheduler.abandoned(plan)
        if following is not None:
            self.scheduler.abandoned(following)
        for request in list(self.scheduler.requests.values()):
            self.scheduler.finish(request, FinishReason.ERROR, "the device failed")
        assert self.engine.pool.counts().used == 0

    def _step(self, ahead: bool = False) -> None:
        under_way = self.engine.flight is not None
        before = {request.id: (request.num_computed, request.preemptions) for request in self.all}
        decoding = [r for r in self.scheduler.running if r.num_tokens - r.num_computed == 1 and r.output_ids]
        plan = self.engine.step(ahead=ahead)
        if plan is None:
            assert not self.scheduler.has_work, "something waits, could fit, and nothing happens"
            return
        if plan.decode:
            self._dispatch(len(plan.decode))
        rows = [request.id for request in plan.requests]
        assert len(set(rows)) == len(rows)
        for request in [] if under_way else decoding:
            assert request.id in rows or request.id in plan.preempted, "a decode row was left out"
        for request in plan.requests:
            computed, preemptions = before[request.id]
            if under_way:
                assert request.num_computed == computed + 1 or request.finished
            assert request.num_computed > computed or request.preemptions > preemptions or request.finished

    def _dispatch(self, batch: int) -> None:
        """The mode that holds now decides how these rows run; rows are never left out for it."""
        decision = self.graphs.dispatch(batch)
        assert (decision.size is None) == bool(decision.reason)
        if self.graphs.mode == "eager" or batch > 4:
            assert decision.size is None
        else:
            assert decision.size == min(size for size in (1, 2, 4) if size >= batch)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check()
        for request in self.all:
            assert request.output_ids == answer_of(request.prompt_ids, len(request.output_ids))
            ends = END in request.params.stop_token_ids
            assert not ends or END not in request.output_ids[:-1]
            if request.finish_reason is FinishReason.STOP:
                assert ends
                assert request.output_ids[-1] == END
            if request.finish_reason is FinishReason.LENGTH:
                room = self.scheduler.max_model_len - len(request.prompt_ids)
                assert len(request.output_ids) == min(request.params.max_tokens, room)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        limit = 200 * (1 + len(self.all)) * 60
        self.engine.run(limit)
        assert all(request.finished for request in self.all)
        self.nothing_is_lost()


Histories.TestCase.settings = settings(
    max_examples=RUNS,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestHistories = Histories.TestCase
