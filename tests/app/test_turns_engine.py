"""Turns on the real engine: equal tokens, blocks that are shared, and what the KV map shows of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.inprocess import InProcessClient
from tests.waiting import wait_until
from tui_infer.past_turns import request_at, turns_at
from tui_infer.session import SessionState
from tui_infer.set_params import changed
from tui_infer.state import AppState
from tui_infer.turns import branch, go_on, regenerate, resend, start_edit

COUNT = "Count from one to thirty in words."


@asynccontextmanager
async def engine(model: Path, **options: object) -> AsyncIterator[AppState]:
    """The app's state over a real engine, without a screen."""
    config = EngineConfig(model=str(model), device="cpu", **options)  # type: ignore[arg-type]
    client = InProcessClient(config)
    state = AppState(client.send)
    client.on_event = state.apply
    await client.start()
    try:
        await wait_until(lambda: state.phase == "ready", 120, what="the engine")
        yield state
    finally:
        await client.close()


def with_params(session: SessionState, *words: str) -> None:
    params = changed(session.params, words)
    assert not isinstance(params, str)
    session.params = params


async def answered(state: AppState, *sessions: SessionState) -> None:
    await wait_until(lambda: not any(session.busy for session in sessions), 120, what="the answers")


async def test_the_default_model_answers_again_goes_on_and_branches_over_what_is_computed(
    default_model_dir: Path,
) -> None:
    async with engine(default_model_dir, block_size=16) as state:
        session = state.current
        # drawn by the engine's own seed, which nobody gave
        with_params(session, "temperature=1.0", "max_tokens=24", "ignore_eos=true")
        assert state.submit(session.id, COUNT)
        await answered(state, session)
        first = session.turns[1]
        assert first.seed is not None
        assert regenerate(state, session, 1) == ""
        await answered(state, session)
        again = session.turns[1]
        assert again is not first
        assert (again.token_ids, again.text, again.seed) == (first.token_ids, first.text, first.seed)
        assert regenerate(state, session, 1, "new") == ""
        await answered(state, session)
        assert session.turns[1].token_ids != first.token_ids
        assert session.turns[1].stats is not None
        assert session.turns[1].stats.cached_tokens > 0, "its prompt was found in the cache"

        # greedy, cut at its limit and continued: the tokens of an answer that was never cut
        with_params(session, "temperature=0", "max_tokens=40")
        assert regenerate(state, session, 1, 1) == ""
        await answered(state, session)
        whole = session.turns[1]
        with_params(session, "max_tokens=15")
        assert regenerate(state, session, 1, 1) == ""
        await answered(state, session)
        with_params(session, "max_tokens=25")
        assert go_on(state, session) == ""
        await answered(state, session)
        cut = session.turns[1]
        assert (cut.token_ids, cut.text) == (whole.token_ids, whole.text)
        assert cut.stats is not None
        assert cut.stats.output_tokens == 40
        assert session.history_ids[cut.asked :] == whole.token_ids

        # a branch shares its parent's blocks while both answer
        child = branch(state, session, 1)
        assert isinstance(child, SessionState)
        with_params(child, "max_tokens=60")
        with_params(session, "max_tokens=60")
        state.submit(session.id, "Which of them is your favourite?")
        state.submit(child.id, "Now count back.")
        # how many blocks both hold after each batch of steps, at most
        most = [0]
        state.subscribe("steps", lambda _: most.append(len(shared(state))))
        await answered(state, session, child)
        full = len(session.history_ids[: cut.end]) // 16
        assert full >= 3
        assert max(most) >= full, "a block more where the next prompts begin alike"
        found = [
            change
            for record in state.history
            for change in record.block_changes
            if change.kind == "share" and change.request == child.request
        ]
        assert len(found) >= full
        answer = child.turns[-1].stats
        assert answer is not None
        assert answer.cached_tokens == len(found) * 16


def shared(state: AppState) -> list[int]:
    """The blocks that the KV map shows with two owners."""
    return [
        block for block in range(1, state.mirror.high_water + 1) if len(state.mirror.references(block)) == 2
    ]


@pytest.mark.parametrize("cut", [1, 2, 5, 17])
async def test_an_answer_stopped_by_hand_goes_on_over_split_characters(
    tiny_model_dir: Path, cut: int
) -> None:
    """The tiny model writes bytes: most of its tokens are parts of characters."""
    options = {"block_size": 8, "num_blocks": 60, "dtype": "float32", "threads": 1, "max_model_len": 256}
    async with engine(tiny_model_dir, **options) as state:
        session = state.current
        with_params(session, "temperature=0", "max_tokens=40", "ignore_eos=true")
        state.submit(session.id, "hello world")
        await answered(state, session)
        whole = session.turns[1]
        with_params(session, f"max_tokens={cut}")
        regenerate(state, session, 1, 1)
        await answered(state, session)
        with_params(session, f"max_tokens={40 - cut}")
        assert go_on(state, session) == ""
        await answered(state, session)
        assert (session.turns[1].token_ids, session.turns[1].text) == (whole.token_ids, whole.text)
        trace = session.turns[1].trace
        assert trace is not None
        await wait_until(lambda: len(trace.steps) == 40, what="the steps of all tokens")
        assert len(trace.ends) == 40
        assert list(trace.ends) == sorted(trace.ends)
        assert list(trace.steps) == sorted(trace.steps)


async def test_an_edited_prompt_finds_what_stands_before_it_in_the_cache(tiny_model_dir: Path) -> None:
    options = {"block_size": 8, "num_blocks": 60, "dtype": "float32", "threads": 1, "max_model_len": 256}
    async with engine(tiny_model_dir, **options) as state:
        session = state.current
        with_params(session, "temperature=0", "max_tokens=20", "ignore_eos=true")
        for text in ("hello world", "what cat"):
            state.submit(session.id, text)
            await answered(state, session)
        before = session.turns[1].end
        assert before is not None
        start_edit(state, session, 2)
        resend(state, session, "red dog")
        await answered(state, session)
        stats = session.turns[3].stats
        assert stats is not None
        assert stats.cached_tokens >= before // 8 * 8


async def test_the_past_shows_the_answer_that_stood_there_then(tiny_model_dir: Path) -> None:
    options = {"block_size": 8, "num_blocks": 60, "dtype": "float32", "threads": 1, "max_model_len": 256}
    async with engine(tiny_model_dir, **options) as state:
        session = state.current
        with_params(session, "temperature=1", "max_tokens=20", "ignore_eos=true")
        state.submit(session.id, "hello world")
        await answered(state, session)
        first = session.turns[1]
        assert first.trace is not None
        await wait_until(lambda: len(first.trace.steps) == 20, what="the steps of all tokens")  # type: ignore[union-attr]
        then = first.trace.steps[9]
        regenerate(state, session, 1, "new")
        await answered(state, session)
        second = session.turns[1]
        assert second.trace is not None
        await wait_until(lambda: len(second.trace.steps) == 20, what="the steps of all tokens")  # type: ignore[union-attr]
        past = turns_at(session, then)[1]
        assert past.token_ids == first.token_ids[:10]
        assert first.text.startswith(past.text)
        assert turns_at(session, first.trace.steps[-1])[1] is first
        assert turns_at(session, second.trace.steps[4])[1].token_ids == second.token_ids[:5]
        assert turns_at(session, second.trace.steps[-1])[1] is second
        # an answer that goes on is one answer, made by two requests
        with_params(session, "max_tokens=10")
        before = request_at(session, second.trace.steps[-1])
        go_on(state, session)
        await answered(state, session)
        await wait_until(lambda: len(second.trace.steps) == 30, what="the steps of all tokens")  # type: ignore[union-attr]
        assert turns_at(session, second.trace.steps[24])[1].token_ids == second.token_ids[:25]
        assert turns_at(session, second.trace.steps[4])[1].token_ids == second.token_ids[:5]
        assert (request_at(session, second.trace.steps[19]), session.request) == (
            before,
            second.trace.request,
        )
        assert request_at(session, second.trace.steps[-1]) == session.request
