"""Any size at any time: nothing typed, selected or scrolled to is lost, and too small is said."""

import random

import pytest
from textual.pilot import Pilot
from textual.widgets.text_area import Selection

from tests.app.driving import ask, focused_pane, pane_of, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.session import SessionState
from tui_infer.widgets.chat.prompt import Prompt
from tui_infer.widgets.chat.transcript import Transcript
from tui_infer.widgets.too_small import MIN_HEIGHT, MIN_WIDTH

DRAFT = "first line of a draft\nthe second, which is a good deal longer than the first\nthe third"
ANSWER = "\n\n".join(f"Paragraph {number} of an answer that is some words long." for number in range(40))


async def resized(app: TuiInferApp, pilot: Pilot[int], width: int, height: int) -> None:
    await pilot.resize_terminal(width, height)
    await wait_until(lambda: app.main.size == (width, height))
    await pilot.pause()


def prompt_of(app: TuiInferApp, session: SessionState) -> Prompt:
    return next(pane.prompt for pane in app.main.visible_panes if pane.session is session)


async def drawn(transcript: Transcript) -> None:
    """Wait until its lines are made for the size that it has; a slow one waits a moment with that."""
    await wait_until(lambda: transcript._timer is None and transcript._drawn_size == transcript.size)


@pytest.mark.parametrize("size", [(40, 12), (43, 40), (160, 12), (12, 3), (1, 1)])
async def test_too_small_says_what_it_needs_and_what_it_has_and_recovers(size: tuple[int, int]) -> None:
    async with running(ScriptedClient("x"), size=(80, 24)) as (app, pilot):
        await pilot.press(*"draft")
        await resized(app, pilot, *size)
        text = " ".join(screen_text(app).split())
        if size[0] >= 40:
            assert f"Too small: {size[0]}×{size[1]}. It needs {MIN_WIDTH}×{MIN_HEIGHT}." in text
        assert "Ask something" not in text
        await resized(app, pilot, MIN_WIDTH, MIN_HEIGHT)
        assert "Too small" not in screen_text(app)
        assert "draft" in screen_text(app)
        await wait_until(lambda: focused_pane(app) is not None)
        await pilot.press("s")
        assert app.state.current.draft == "drafts"


async def test_a_panel_and_the_timeline_have_the_focus_again_after_too_small() -> None:
    settings = Settings(inspector="side")
    async with running(ScriptedClient("some words " * 9), size=(160, 48), settings=settings) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        await pilot.press("ctrl+o", "3")
        panel = app.focused
        await resized(app, pilot, 30, 9)
        await resized(app, pilot, 160, 48)
        await wait_until(lambda: app.focused is panel)
        await pilot.press("escape", "f9")
        await wait_until(lambda: app.focused is app.main.timeline)
        await resized(app, pilot, 30, 9)
        await resized(app, pilot, 160, 48)
        await wait_until(lambda: app.focused is app.main.timeline)


@pytest.mark.parametrize("seed", range(4))
async def test_random_sizes_lose_no_draft_selection_or_place(seed: int) -> None:
    rng = random.Random(seed)
    client = ScriptedClient(ANSWER, rate=4000)
    async with running(client, size=(160, 48), settings=Settings(layout="4")) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        first = app.state.current
        await pilot.press("ctrl+n", *"other draft", "ctrl+n")
        third = app.state.current
        pane = await pane_of(app)
        pane.prompt.insert(DRAFT)
        await wait_until(lambda: third.draft == DRAFT)
        pane.prompt.selection = Selection((0, 6), (1, 10))
        place = next(each for each in app.main.visible_panes if each.session is first)
        await drawn(place.transcript)
        for _ in range(3):
            place.transcript.page(-1)
        text = place.transcript.render_line(0).text.strip()
        for _ in range(12):
            await resized(app, pilot, rng.randint(40, 200), rng.randint(12, 60))
            assert third.draft == DRAFT
            if not app.main.has_class("-too-small"):
                assert prompt_of(app, third).text == DRAFT
        await resized(app, pilot, 160, 48)
        assert [session.draft for session in app.state.sessions.values()] == ["", "other draft", DRAFT]
        prompt = prompt_of(app, third)
        assert prompt.has_focus
        assert prompt.selection == Selection((0, 6), (1, 10))
        back = next(each for each in app.main.visible_panes if each.session is first)
        await drawn(back.transcript)
        assert back.transcript.render_line(0).text.strip() == text
        assert not back.transcript.following


async def test_sizes_that_change_while_an_answer_streams_lose_no_text() -> None:
    rng = random.Random(7)
    async with running(ScriptedClient(ANSWER, rate=400), size=(100, 30)) as (app, pilot):
        await ask(app, pilot, "hello")
        await wait_until(lambda: app.state.active == 1)
        while app.state.active:
            await resized(app, pilot, rng.randint(40, 200), rng.randint(12, 60))
        await settled(app)
        await resized(app, pilot, 100, 30)
        answer = app.state.current.last_answer
        assert answer is not None
        assert answer.text == ANSWER
        await wait_until(lambda: "Paragraph 39" in screen_text(app))
