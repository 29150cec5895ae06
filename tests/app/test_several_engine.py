"""Several chats over the real engine and the default model: one batch, and blocks that are shared."""

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.inprocess import InProcessClient
from engine.records import StepRecord
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.screens.compare import CompareScreen

SYSTEM = (
    "You are a patient teacher. Answer in plain words, in short sentences, and give one example for every "
    "idea. Never use a word that a child of ten would not know."
)
START_S = 120.0


def steps(app: TuiInferApp) -> list[StepRecord]:
    return list(app.state.history)


@pytest.mark.slow
async def test_a_broadcast_runs_in_one_batch_and_compared_columns_share_the_blocks_of_their_prompt(
    default_model_dir: Path,
) -> None:
    client = InProcessClient(EngineConfig(model=str(default_model_dir), num_blocks=400))
    settings = Settings(layout="4", max_tokens=24, system=SYSTEM, temperature=0.0)
    app = TuiInferApp(client, settings=settings)
    async with app.run_test(size=(160, 48)) as pilot:
        try:
            await wait_until(lambda: app.state.phase == "ready", START_S, "the engine")
            await pilot.press("ctrl+n", "ctrl+n", "alt+a", *"Why", "enter")
            chats = list(app.state.sessions.values())
            await wait_until(lambda: not app.state.active, START_S, "three answers")
            assert all(session.turns[0].text == "Why" for session in chats)
            assert all(session.turns[1].text for session in chats)
            assert max(record.active for record in steps(app)) == 3
            assert sum(record.active == 3 and record.kind == "decode" for record in steps(app)) > 5

            before = app.state.newest_step
            await pilot.press(
                "alt+a", *"/compare", "space", *"temperature=0,0.1,0.2", "space", *"How", "enter"
            )
            await wait_until(lambda: isinstance(app.screen, CompareScreen), what="the columns")
            comparison = app.several.comparison
            assert comparison is not None
            await wait_until(lambda: not comparison.busy(app.state), START_S, "three columns")
            await wait_until(lambda: not comparison.stale(app.state), what="the differences")
            first, *others = comparison.columns(app.state)
            own = [record for record in steps(app) if record.index > before]
            assert max(record.active for record in own) == 3
            size = app.state.status.block_size if app.state.status is not None else 0
            prompt = first.turns[1].stats.prompt_tokens  # type: ignore[union-attr]
            for session in others:
                stats = session.turns[1].stats
                assert stats is not None
                assert stats.cached_tokens == (prompt - 1) // size * size > 0
        finally:
            await client.close()
