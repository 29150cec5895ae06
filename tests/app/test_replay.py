"""The app on a recording: what it shows, and what its keys do."""

import asyncio
import dataclasses
import sys
import time
from pathlib import Path

import pytest

from engine.commands import Pause, RunUntil, Submit
from engine.config import EngineConfig
from engine.inprocess import InProcessClient
from tests.app.driving import running, screen_text
from tests.app.recorded import (
    FullDisk,
    recording_app,
    replaying,
    simulated_entries,
    simulated_steps,
    written,
)
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.locations import demo_recording
from tui_infer.recording.dump import dump_panels, dumps_of
from tui_infer.recording.format import ChatLook, Chats, Reading, Sent
from tui_infer.recording.reader import read_recording
from tui_infer.recording.stage import TEXT_LEFT_OUT
from tui_infer.slash import Call, obey, read

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import make_demo

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


async def test_a_recording_that_begins_in_the_middle_has_the_chats_and_the_panels_of_before(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    path, unused = tmp_path / "middle.tirec", tmp_path / "unused.tirec"
    async with recording_app(tiny_model_dir, unused) as (app, pilot):
        app.recordings.stop()
        app.state.send(Pause(True))
        await wait_until(lambda: app.state.paused)
        app.state.submit(app.state.focused, PROMPTS[0])
        app.state.rename(app.state.focused, "my title")
        await paused_at(app, pilot, 20)
        assert app.recordings.start(path) == ""
        assert "is being recorded" in app.recordings.start(path)
        live = {20: await dump_panels(app)}
        app.action_new_chat()
        app.state.submit(app.state.focused, PROMPTS[1])
        await paused_at(app, pilot, 40)
        live[40] = await dump_panels(app)
        said = texts(app)
    assert "my title" in said
    async with replaying(path) as (app, _pilot, client):
        for step in (20, 40, 20):
            await client.seek_step(step)
            assert (await dump_panels(app)).splitlines() == live[step].splitlines()
        await client.seek_step(40)
        assert texts(app) == said


async def test_without_text_the_panels_are_the_same_and_the_chats_say_what_is_missing(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "silent.tirec"
    async with recording_app(tiny_model_dir, path, texts=False) as (app, pilot):
        app.state.send(Pause(True))
        await wait_until(lambda: app.state.paused)
        app.state.submit(app.state.focused, PROMPTS[0])
        await paused_at(app, pilot, 25)
        live = await dump_panels(app)
        assert "cat" in live or app.state.current.turns[1].text
    async with replaying(path) as (app, _pilot, client):
        await client.seek_step(25)
        there = await dump_panels(app)
        numbers = [line for line in there.splitlines() if "chat A" not in line]
        assert set(numbers) <= set(live.splitlines())
        assert len(numbers) >= len(live.splitlines()) - 3
        assert app.state.current.turns[0].text == TEXT_LEFT_OUT
        assert app.state.current.context_tokens > 25


async def test_f3_plays_and_stops_f4_goes_one_step_and_plus_and_minus_change_the_speed(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "r.tirec", simulated_entries())
    async with replaying(path, size=(120, 40)) as (app, pilot, client):
        app.main.dock.set("side")
        await pilot.pause()
        await pilot.press("f4")
        assert client.step == 1
        await pilot.press("f4", "f4")
        assert (client.step, len(app.state.history)) == (3, 3)
        await pilot.press("plus", "plus", "minus")
        assert client.speed == 2.0
        await pilot.press(*["minus"] * 9)
        assert client.speed == 0.125
        await pilot.press("f3")
        assert client.playing
        await wait_until(lambda: (client.step or 0) > 5)
        await pilot.press("f3")
        assert not client.playing
        here = client.step
        await pilot.pause(0.3)
        assert client.step == here
        assert "‖ step" in app.state.replay


async def test_playback_takes_as_long_as_the_recording_divided_by_the_speed(tmp_path: Path) -> None:
    path = written(tmp_path / "r.tirec", simulated_entries())
    async with replaying(path, speed=2.0) as (app, _pilot, client):
        left = (client.recording.duration - client.time) / 2.0
        began = time.monotonic()
        client.play(True)
        await wait_until(lambda: client.ended)
        took = time.monotonic() - began
        assert left <= took < left + 2.0
        assert app.state.replay.startswith("■ end step 60/60 0:01/0:01")
        assert len(app.state.history) == 60


async def test_the_end_is_said_and_f3_plays_again_from_the_start(tmp_path: Path) -> None:
    entries = simulated_entries()
    path = written(tmp_path / "r.tirec", entries[:-1])  # as a crash leaves it
    async with replaying(path, size=(120, 40)) as (app, pilot, client):
        await client.seek_time(1e9)
        await wait_until(lambda: any("It ends here" in n.message for n in app._notifications))
        told = next(n.message for n in app._notifications if "It ends here" in n.message)
        assert "60 steps" in told
        assert "not closed" in told
        client.set_speed(64)
        await pilot.press("f4")
        assert client.step == 60
        await pilot.press("f3")
        await wait_until(lambda: client.ended and not client.playing and client.time > 0)


async def test_a_seek_while_it_plays_stands_still_there_until_told_to_play(tmp_path: Path) -> None:
    path = written(tmp_path / "r.tirec", simulated_entries())
    async with replaying(path) as (app, pilot, client):
        await client.seek_step(5)
        client.set_speed(0.125)
        client.play(True)
        for text, step in (("40", 40), ("12", 12), ("+3", 15), ("start", None)):
            client.play(True)
            said = read(f"/seek {text}")
            assert isinstance(said, Call)
            assert obey(app, said)
            await wait_until(lambda step=step: client.step == step, what=f"{text}, at {client.step}")
            assert not client.playing, text
            await asyncio.sleep(0.3)
            assert client.step == step, text
        await pilot.press("f3")
        assert client.playing
        client.set_speed(8.0)
        await wait_until(lambda: client.step is not None and client.step > 15, what="playing on")


async def test_seek_takes_steps_times_and_distances(tmp_path: Path) -> None:
    path = written(tmp_path / "r.tirec", simulated_entries())
    async with replaying(path) as (app, _pilot, client):

        async def go(text: str, step: int | None) -> None:
            said = read(f"/seek {text}")
            assert isinstance(said, Call)
            assert obey(app, said), text
            await wait_until(lambda: client.step == step, what=f"{text} -> {step}, at {client.step}")

        await go("40", 40)
        await go("step 12", 12)
        await go("+10", 22)
        await go("-20", 2)
        await go("0.5s", 35)
        await go("0:01", 60)
        await go("start", None)
        await go("end", 60)
        assert len(app.state.history) == 60
        for wrong in ("", "soon", "1:2:3", "++4"):
            said = read(f"/seek {wrong}")
            assert isinstance(said, Call)
            assert not obey(app, said)
        for wrong in ("", "fast", "1000", "0"):
            said = read(f"/speed {wrong}")
            assert isinstance(said, Call)
            assert not obey(app, said)


async def test_a_prompt_is_not_taken_and_the_recording_says_why(tmp_path: Path) -> None:
    path = written(tmp_path / "r.tirec", simulated_entries())
    async with replaying(path, size=(120, 40)) as (app, pilot, client):
        app.main.dock.set("side")
        await client.seek_step(60)
        turns = len(app.state.current.turns)
        await pilot.press("h", "i", "enter", "f2", "ctrl+n", "escape")
        assert len(app.state.current.turns) == turns
        assert len(app.state.sessions) == 1
        assert any("This is a recording" in n.message for n in app._notifications)
        assert app.state.mode == "graph"


async def test_the_card_s_readings_come_back_with_their_past(tmp_path: Path) -> None:
    entries = simulated_entries()
    sim, _ = simulated_steps(1)
    gpu = sim.gpu()
    later = dataclasses.replace(gpu, power=500.0, past={})
    entries[2:2] = [Reading(0.0, gpu), Reading(0.05, later)]
    async with replaying(written(tmp_path / "r.tirec", entries)) as (app, _pilot, client):
        await client.seek_step(60)
        assert app.gpu.reading.power == 500.0
        assert app.gpu.reading.past["power"] == (*gpu.past["power"], 500.0)


async def test_a_file_full_of_escape_sequences_cannot_reach_the_terminal(tmp_path: Path) -> None:
    entries = simulated_entries()
    entries[0] = Chats(0.0, [ChatLook("chat-1", "\x1b[2J", 99, "\x1b]0;evil\x07", True)], "chat-1")
    sent = entries[2]
    assert isinstance(sent, Sent)
    entries[2] = Sent(0.1, Submit("chat-1", 1, "\x1b[31mred"))
    async with replaying(written(tmp_path / "r.tirec", entries), size=(120, 40)) as (app, _pilot, client):
        app.main.dock.set("side")
        await client.seek_step(60)
        await dump_panels(app)
        assert "\x1b" not in screen_text(app)
        assert "\x1b" not in app.state.current.turns[0].text


async def test_a_disk_that_fills_up_is_one_toast_and_the_app_goes_on(tmp_path: Path) -> None:
    client = ScriptedClient("an answer of some words " * 30, rate=200)
    async with running(client) as (app, pilot):
        app.recordings.start(tmp_path / "r.tirec")
        assert app.state.recording
        await pilot.pause(0.1)
        assert "● REC" in screen_text(app)
        writer = app.recordings.writer
        assert writer is not None
        writer._file = FullDisk(writer._file, 0)  # type: ignore[assignment]
        app.state.submit(app.state.focused, "hello")
        await wait_until(lambda: not app.recordings.on)
        await wait_until(lambda: not app.state.active)
        full = "No space left on device"
        await wait_until(lambda: any(full in toast.message for toast in app._notifications), what="the toast")
        assert sum(full in toast.message for toast in app._notifications) == 1
        assert not app.state.recording
        assert app.state.current.turns[1].text.startswith("an answer of some words")
        assert app.recordings.finish() == ""  # it was told already

        app.recordings.start(tmp_path / "last.tirec")
        writer = app.recordings.writer
        assert writer is not None
        writer._file = FullDisk(writer._file, 0)  # type: ignore[assignment]
        assert full in app.recordings.finish()  # the app is over: its exit code and stderr tell it


async def test_slash_record_starts_and_stops_and_the_file_plays(tmp_path: Path, own_folders: Path) -> None:
    client = ScriptedClient("an answer of some words " * 5, rate=400)
    async with running(client) as (app, _pilot):
        for text in ("/record", f"/record {tmp_path}/named.tirec", "/record"):
            said = read(text)
            assert isinstance(said, Call)
            obey(app, said)
        (path,) = (own_folders / "data" / "recordings").iterdir()
        assert not app.recordings.on
        app.recordings.finish()
        assert f"tui-infer replay {path}" in app.state.notices[-1].message
    assert read_recording(path).note == ""
    assert not (tmp_path / "named.tirec").exists()  # one at a time


@pytest.mark.skipif(not demo_recording().is_file(), reason="no demo recording in this checkout")
async def test_the_demo_shows_in_every_panel_what_the_card_s_app_showed() -> None:
    await same_as_dumps(demo_recording())


async def same_as_dumps(path: Path) -> None:
    dumps = dumps_of(path.with_suffix(".dump.txt").read_text("utf-8"))
    assert dumps
    async with replaying(path) as (app, _pilot, client):
        for dump in [*dumps, dumps[0], dumps[-1]]:
            await client.seek_time(dump.t)
            assert client.step == dump.step
            assert await dump_panels(app) == dump.text


async def test_the_script_makes_a_demo_whose_dumps_a_replay_repeats(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    config = EngineConfig(
        model=str(tiny_model_dir), device="cpu", dtype="float32", threads=1, num_blocks=115, block_size=8,
        max_batch=16, max_model_len=256,
    )  # fmt: skip
    scene = make_demo.Scene(steps=120, max_tokens=60, system="the cat is the dog of that code block")
    out = tmp_path / "tiny.tirec"
    made = await make_demo.make(InProcessClient(config), out, scene)
    facts = make_demo.facts_of(made.recording)
    assert facts.missing(graphs=False) == []
    assert 115 <= facts.steps <= 140
    assert "preemptions" in facts.table()
    assert made.recording.note == ""
    assert len(made.dumps) == len(scene.dumps)
    await same_as_dumps(out)
