"""The app on a recording: what it shows, and what its keys do."""

from pathlib import Path

from engine.records import Pause, RunUntil
from tests.app.recorded import recording_app, replaying
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.recording.dump import dump_panels

PROMPTS = ["the cat and the dog", "the cat and the green code block", "hello world", "what is the capital"]


async def paused_at(app: TuiInferApp, pilot, step: int) -> int:
    """Let the engine run up to a step, and wait until its last words are on the screen."""
    app.state.send(RunUntil("step", step=step))
    history = app.state.history
    await wait_until(
        lambda: app.state.paused and history.latest and history.latest.index >= step, what=f"step {step}"
    )
    await pilot.pause(0.05)
    return history[-1].index


def texts(app: TuiInferApp) -> dict[str, list[str]]:
    return {session.title: [turn.text for turn in session.turns] for session in app.state.sessions.values()}


async def test_a_replay_shows_in_every_panel_what_the_app_showed_live(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "live.tirec"
    live: dict[int, str] = {}
    answers: dict[int, dict[str, list[str]]] = {}
    async with recording_app(tiny_model_dir, path) as (app, pilot):
        app.state.send(Pause(True))
        await wait_until(lambda: app.state.paused)
        for number, prompt in enumerate(PROMPTS):
            if number:
                app.action_new_chat()
            app.state.submit(app.state.focused, prompt)
        for wanted in (3, 12, 13, 30, 55):
            step = await paused_at(app, pilot, wanted)
            live[step] = await dump_panels(app)
            answers[step] = texts(app)
        app.state.send(Pause(False))
        await wait_until(lambda: not app.state.active, what="the answers")
        app.state.focus("chat-2")
        await pilot.pause(0.2)
    assert len(live) == 5
    assert "[step]" in live[30]
    assert "[kv]" in live[30]
    assert live[12] != live[13]
    async with replaying(path) as (app, _pilot, client):
        for step in (3, 12, 13, 30, 55, 12, 30):  # forwards and back
            await client.seek_step(step)
            assert client.step == step
            assert (await dump_panels(app)).splitlines() == live[step].splitlines(), step
            assert texts(app) == answers[step]
