"""Reading while text comes in: following the end, keeping the place, the mark for new text."""

from textual import events
from textual.pilot import Pilot

from tests.app.driving import ask, pane_of, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.widgets.chat.transcript import NEW_TEXT, Transcript

LONG = "\n\n".join(f"paragraph {number} of a long answer" for number in range(200))


async def streaming(app: TuiInferApp, pilot: Pilot[int]) -> Transcript:
    """A chat that streams and has more rows than fit."""
    await ask(app, pilot, "go")
    transcript = (await pane_of(app)).transcript
    await wait_until(lambda: transcript.max_scroll_y > 20)
    return transcript


async def test_the_view_follows_the_end_and_shows_the_last_token() -> None:
    client = ScriptedClient(LONG + "\n\nTHE END", rate=4000)
    async with running(client) as (app, pilot):
        await streaming(app, pilot)
        await settled(app)
        await wait_until(lambda: "THE END" in screen_text(app))


async def test_the_place_is_kept_while_reading_and_new_text_is_announced() -> None:
    client = ScriptedClient(LONG, rate=400)
    async with running(client) as (app, pilot):
        transcript = await streaming(app, pilot)
        await pilot.press("pageup")
        assert not transcript.following
        top = transcript.scroll_y
        height = transcript.virtual_size.height
        await wait_until(lambda: transcript.virtual_size.height > height + 10)
        assert transcript.scroll_y == top
        await wait_until(lambda: NEW_TEXT in screen_text(app))


async def test_one_row_up_leaves_the_end_and_two_rows_from_it_follow_again() -> None:
    client = ScriptedClient(LONG, rate=100000)
    async with running(client) as (app, pilot):
        transcript = await streaming(app, pilot)
        await settled(app)
        transcript.scroll_by(-1)
        assert not transcript.following
        transcript.scroll_by(-8)
        transcript.scroll_by(6)
        assert not transcript.following
        transcript.scroll_by(1)
        assert transcript.max_scroll_y - transcript.scroll_y == 2
        assert transcript.following


async def test_end_goes_to_the_end_and_follows() -> None:
    client = ScriptedClient(LONG, rate=400)
    async with running(client) as (app, pilot):
        transcript = await streaming(app, pilot)
        await pilot.press("pageup", "pageup")
        assert not transcript.following
        await pilot.press("end")
        assert transcript.following
        await wait_until(lambda: NEW_TEXT not in screen_text(app))
        height = transcript.virtual_size.height
        await wait_until(lambda: transcript.virtual_size.height > height)
        await wait_until(lambda: transcript.scroll_y == transcript.max_scroll_y)


async def test_the_wheel_scrolls_and_home_goes_to_the_start() -> None:
    client = ScriptedClient(LONG, rate=100000)
    async with running(client) as (app, pilot):
        transcript = await streaming(app, pilot)
        await settled(app)
        bottom = transcript.scroll_y
        wheel = events.MouseScrollUp(transcript, 1, 1, 0, -1, 0, False, False, False)
        transcript.post_message(wheel)
        await wait_until(lambda: transcript.scroll_y == bottom - 3)
        await pilot.press("home")
        await wait_until(lambda: transcript.scroll_y == 0)
        assert "paragraph 0 of" in screen_text(app)


async def test_a_new_width_keeps_the_place_and_renders_again() -> None:
    client = ScriptedClient(LONG.replace("paragraph", "a paragraph with quite a few words in it"), rate=1e5)
    async with running(client, size=(90, 30)) as (app, pilot):
        transcript = await streaming(app, pilot)
        await settled(app)
        for _ in range(6):
            await pilot.press("pageup")
        await pilot.pause()
        first = next(line for line in screen_text(app).splitlines()[3:] if "words in it" in line)
        number = int(first.split("words in it")[1].split()[0])
        await pilot.resize_terminal(50, 30)
        await wait_until(lambda: transcript.size.width < 50)
        await pilot.pause()
        shown = screen_text(app)
        assert any(f"words in it {n} " in " ".join(shown.split()) for n in range(number - 6, number + 7))
        assert all(len(line) <= 50 for line in shown.splitlines())


async def test_a_theme_switch_renders_again_and_keeps_the_text() -> None:
    client = ScriptedClient("```python\nx = 1\n```\n\n- item\n", rate=1e5)
    async with running(client, size=(80, 24)) as (app, pilot):
        await ask(app, pilot, "go")
        await settled(app)
        await wait_until(lambda: "• item" in screen_text(app))
        before = screen_text(app)
        dark = str(app.main.visible_panes[0].transcript.render_line(0))
        await pilot.press("ctrl+t")
        await wait_until(lambda: app.theme != "dark")
        await wait_until(lambda: str(app.main.visible_panes[0].transcript.render_line(0)) != dark)
        await wait_until(lambda: screen_text(app) == before)


async def test_a_model_that_sends_escape_sequences_cannot_reach_the_terminal() -> None:
    client = ScriptedClient("a\x1b]52;c;aGk=\x07 \x1b[2J `\x1b[31m` \x9b5m end", rate=1e5)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "go")
        await settled(app)
        await wait_until(lambda: "end" in screen_text(app))
        assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in screen_text(app).replace("\n", ""))


async def test_a_chat_moved_to_another_pane_keeps_its_place() -> None:
    client = ScriptedClient(LONG, rate=1e5)
    async with running(client) as (app, pilot):
        app.state.layout.name = "1"
        transcript = await streaming(app, pilot)
        await settled(app)
        await pilot.press("pageup")
        place = transcript.scroll_y
        await pilot.press("ctrl+n")
        await pane_of(app)
        await wait_until(lambda: "type a prompt" in screen_text(app))
        await pilot.press("shift+tab")
        pane = await pane_of(app)
        await wait_until(lambda: pane.transcript.scroll_y == place)


async def test_a_taller_terminal_and_back_leaves_the_reader_where_they_were() -> None:
    client = ScriptedClient(LONG, rate=1e5)
    async with running(client, size=(100, 30)) as (app, pilot):
        transcript = await streaming(app, pilot)
        await settled(app)
        await pilot.press("pageup")
        top = transcript.scroll_y
        await pilot.resize_terminal(100, 80)
        await wait_until(lambda: transcript.size.height > 60)
        await wait_until(lambda: transcript.scroll_y < top)
        await pilot.resize_terminal(100, 30)
        await wait_until(lambda: transcript.size.height < 30)
        await wait_until(lambda: transcript.scroll_y == top, 2)
        assert not transcript.following
