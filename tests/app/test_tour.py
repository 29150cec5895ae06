"""A tour with the real engine: pause, step to an allocation, open that block, go back, return to now."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from engine.config import EngineConfig
from engine.inprocess import InProcessClient
from engine.records import BlockChange, StepRecord
from engine.request import SamplingParams
from tests.app.driving import ask, screen_text
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.mirror import BlockState
from tui_infer.past_turns import turns_at
from tui_infer.sanitize import sanitize

BLOCK = 16


@asynccontextmanager
async def touring(model: Path) -> AsyncIterator[tuple[TuiInferApp, Pilot[int]]]:
    """The app on a real engine with a tiny random model."""
    config = EngineConfig(model=str(model), device="cpu", block_size=BLOCK, num_blocks=64, max_batch=4)
    client = InProcessClient(config)
    app = TuiInferApp(client, settings=Settings(layout="1"))
    app.state.params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    for session in app.state.sessions.values():
        session.params = app.state.params
    async with app.run_test(size=(160, 48), notifications=True) as pilot:
        await wait_until(lambda: app.state.phase == "ready", 60, what="the engine")
        try:
            yield app, pilot
        finally:
            await client.close()


async def stepped(app: TuiInferApp, pilot: Pilot[int]) -> StepRecord:
    """F4 once, and its record."""
    before = app.state.newest_step
    await pilot.press("f4")
    await wait_until(lambda: app.state.newest_step > before, what="the step")
    latest = app.state.history.latest
    assert latest is not None
    return latest


def allocations(record: StepRecord) -> list[BlockChange]:
    return [change for change in record.block_changes if change.kind == "allocate"]


async def until_allocation(app: TuiInferApp, pilot: Pilot[int]) -> BlockChange:
    for _ in range(3 * BLOCK):
        found = allocations(await stepped(app, pilot))
        if found:
            return found[-1]
    raise AssertionError("no block was allocated")


def text_of(app: TuiInferApp, block: int) -> str:
    """Text of the block's tokens as its card draws it."""
    card, frame = app.main.inspector.card, app.main.inspector.map.last_frame
    assert frame is not None
    pieces = card.pieces(frame, block)
    assert pieces is not None
    return sanitize("".join(pieces))


async def test_a_tour_pause_step_to_an_allocation_open_the_block_go_back_and_return(
    tiny_model_dir: Path,
) -> None:
    async with touring(tiny_model_dir) as (app, pilot):
        state = app.state
        await pilot.press("f3")
        await wait_until(lambda: state.paused, what="the pause")
        await ask(app, pilot, "hello world what is the capital of france")
        while state.newest_step < 60:
            await stepped(app, pilot)

        # Step to an allocation, and on until the block is full: it holds tokens of the answer only.
        change = await until_allocation(app, pilot)
        allocated = state.newest_step
        for _ in range(BLOCK):
            await stepped(app, pilot)
        block = change.block
        assert state.mirror.state(block) == BlockState.USED
        assert state.mirror.fill(block) == BLOCK

        # Open it in the map, by its number.
        app.main.inspector.map.focus()
        await pilot.press(*str(block), "enter", "enter")
        await wait_until(lambda: app.main.inspector.opened_block == block, what="the card")
        await pilot.pause()
        prompt = state.current.turns[-1].trace
        assert prompt is not None
        first = change.index * BLOCK - prompt.prompt_tokens  # of the answer's tokens, the block's first
        assert first > 0
        answer = state.current.turns[-1]
        assert text_of(app, block) == answer.text[prompt.ends[first - 1] : prompt.ends[first + BLOCK - 1]]
        assert "held by A" in screen_text(app)

        # Go back 50 steps: the block is free there, and the text that it holds is not there yet.
        await pilot.press("f9", *["shift+left"] * 5)
        await wait_until(lambda: state.moment is not None, what="the past")
        await pilot.pause()
        assert state.moment is not None
        assert state.moment.step == state.newest_step - 50 < allocated
        assert state.moment.mirror.state(block) == BlockState.FREE
        text = screen_text(app)
        assert f"◀ the past: step {state.moment.step}" in text
        assert f"step {state.moment.step} · 50 steps back" in text
        assert f"at step {state.moment.step}" in text  # the card of the block
        assert "free · never used" in text
        then = turns_at(state.current, state.moment.step)[-1]
        assert then.token_ids == answer.token_ids[: prompt.tokens_at(state.moment.step)]
        assert then.text == answer.text[: prompt.ends[len(then.token_ids) - 1]]
        assert len(then.token_ids) < first

        # Return to now.
        await pilot.press("f9")
        await pilot.pause()
        assert state.moment is None
        assert state.paused
        assert "the past" not in screen_text(app)
        assert state.mirror.state(block) == BlockState.USED
        assert "held by A" in screen_text(app)
        newest = state.newest_step
        await stepped(app, pilot)
        assert state.newest_step == newest + 1


async def test_the_map_of_a_real_engine_adds_up_at_every_kept_step(tiny_model_dir: Path) -> None:
    async with touring(tiny_model_dir) as (app, pilot):
        state = app.state
        for prompt in ("hello world", "hello world what is the capital", "the cat and the dog"):
            await ask(app, pilot, prompt)
            await pilot.press("ctrl+n")
        await wait_until(lambda: state.newest_step > 20 and state.active == 0, 60, what="the answers")
        past = state.timeline.freeze()
        assert len(past) == len(state.history)
        for position in range(len(past)):
            moment = past.at(position)
            assert moment.notes == ()
            assert moment.mirror.counts() == moment.record.blocks
            for row in moment.record.rows:
                if row.request not in moment.record.finished:
                    assert moment.mirror.context(row.request) == row.context
                    assert moment.mirror.num_held(row.request) == -(-row.context // BLOCK)
