"""The block map as one works with it: cursor, numbers, scrolling, density, hovering, the table beside it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from rich.segment import Segment
from textual.pilot import Pilot

from engine.records import BlockChange
from tests.app.inspector_app import InspectorApp
from tests.app.simulation import Simulation
from tests.app.test_inspector import panel, show
from tests.app.test_mirror import step
from tests.waiting import wait_until
from tui_infer.mirror import BlockMirror, BlockState
from tui_infer.themes import load_themes
from tui_infer.widgets.inspector.kvmap import KVPanel
from tui_infer.widgets.inspector.view import SessionTag
from tui_infer.widgets.inspector.window import choose_window


@asynccontextmanager
async def mapped(
    simulation: Simulation, size: tuple[int, int] = (60, 45), theme: str = "dark", focused: int | None = 1
) -> AsyncIterator[tuple[InspectorApp, Pilot[None], KVPanel]]:
    """The inspector with the map in focus."""
    app = InspectorApp(theme)
    async with app.run_test(size=size) as pilot:
        await show(app, pilot, simulation.view(focused=focused))
        app.inspector.map.focus()
        await pilot.pause()
        yield app, pilot, app.inspector.map


def used(num_blocks: int = 420, steps: int = 800, **options: int) -> Simulation:
    simulation = Simulation(num_blocks=num_blocks, **options)
    simulation.run(steps)
    return simulation


def place_of(kv: KVPanel, block: int) -> tuple[int, int]:
    """Where a block is drawn, in the panel."""
    window = kv.window
    assert window is not None
    cell = block // window.scale - window.first
    x = 2 + window.gutter + cell % window.columns * (2 if window.wide else 1)
    return x, kv._map_y + cell // window.columns


def told(app: InspectorApp) -> str:
    """The line on the block under the mouse or the cursor, without the scale at its right end."""
    line = next((line for line in panel(app, "kv") if line.startswith("block")), "")
    return line.split("  ")[0]


# --- cursor ----------------------------------------------------------------------------------------


async def test_the_cursor_starts_at_the_focused_chats_newest_block_and_tells_what_it_is() -> None:
    simulation = used()
    request = simulation.newest_request(1)
    assert request is not None
    while not simulation.mirror.table(request):
        simulation.run(1)
        request = simulation.newest_request(1) or 0
    index, block = simulation.mirror.table(request)[-1]
    async with mapped(simulation) as (app, _, kv):
        assert kv.cursor.block == block
        fill = simulation.mirror.fill(block)
        words = "full" if fill == 16 else f"{fill}/16"
        assert told(app) == f"block {block} B[{index}] · {words}"


async def test_arrows_move_by_a_cell_and_by_a_row_home_and_end_to_the_ends() -> None:
    simulation = used()
    async with mapped(simulation) as (_, pilot, kv):
        assert kv.window is not None
        columns = kv.window.columns
        kv.go_to(100)
        await pilot.press("right", "right", "down", "left", "up", "up")
        assert kv.cursor.block == 100 + 1 - columns
        await pilot.press("home")
        assert kv.cursor.block == 0
        await pilot.press("left", "up")
        assert kv.cursor.block == 0
        await pilot.press("end")
        assert kv.cursor.block == 419
        await pilot.press("right", "down")
        assert kv.cursor.block == 419


def echo(app: InspectorApp) -> str:
    """The line with the number that is being typed; empty where there is none."""
    return next((line for line in panel(app, "kv")[1:] if line.startswith("go to block")), "")


async def test_a_typed_number_and_enter_go_to_that_block() -> None:
    simulation = used(num_blocks=2000)
    async with mapped(simulation) as (app, pilot, kv):
        await pilot.press("3", "7", "8", "backspace")
        assert echo(app).startswith("go to block 37▏")
        assert echo(app).endswith("Enter go  Esc or space clear")
        await pilot.press("enter")
        assert kv.cursor.block == 37
        assert not echo(app)
        assert told(app).startswith("block 37 ")
        assert app.inspector.opened_block is None
        await pilot.press("9", "9", "9", "9", "9")
        assert echo(app).startswith("go to block 99999▏ is none: 0 to 1,999")
        await pilot.press("enter")  # there is none: no other one is taken for it
        assert kv.cursor.block == 37
        assert [toast.message for toast in app._notifications] == [
            "There is no block 99,999: they are 0 to 1,999."
        ]


@pytest.mark.parametrize("key", ["space", "escape"])
async def test_a_typed_number_is_given_up_by_space_and_escape_which_do_nothing_else_then(key: str) -> None:
    async with mapped(used()) as (app, pilot, kv):
        await pilot.press("3", key, "3", "7", "enter")
        assert kv.cursor.block == 37
        assert app.inspector.opened_block is None
        await pilot.press("4", "right", "4", "0", "enter")  # so do the arrows
        assert kv.cursor.block == 40


async def test_where_there_is_no_line_for_it_the_number_stands_in_the_frame() -> None:
    async with mapped(used(), size=(60, 14)) as (app, pilot, kv):
        await pilot.press("3", "7")
        assert kv.size.height < 6
        assert "go to block 37▏" in panel(app, "kv")[0]


# --- scrolling, row numbers and density ------------------------------------------------------------


@pytest.mark.parametrize("size", [(57, 44), (60, 45), (78, 22), (118, 40), (44, 40)])
@pytest.mark.parametrize("blocks", [141, 420, 2000, 100_000])
async def test_every_row_begins_with_the_number_of_its_first_block(
    size: tuple[int, int], blocks: int
) -> None:
    simulation = used(num_blocks=blocks, steps=300)
    async with mapped(simulation, size=size) as (app, pilot, kv):
        for _ in range(2):
            window = kv.window
            assert window is not None
            assert window.gutter
            lines = panel(app, "kv")[kv._map_y :]
            for row in range(window.count // window.columns):
                number = (window.first + row * window.columns) * window.scale
                assert lines[row].split()[0] == f"{number:,}"
            await pilot.press("d")


def test_a_row_is_a_round_number_of_blocks_where_that_fits_and_less_round_before_numbers_go() -> None:
    mirror = BlockMirror(141, 16)

    def columns(rows: int, width: int) -> tuple[int, bool, bool]:
        window = choose_window(mirror, rows, width, mode="auto", at_least=1, top=0)
        return window.columns, window.wide, bool(window.gutter)

    assert columns(8, 53) == (20, True, True)
    assert columns(6, 53) == (24, True, True)
    assert columns(4, 53) == (40, False, True)
    assert columns(3, 53) == (48, False, True)
    assert columns(8, 20)[2] is False


async def test_the_cell_of_the_cursor_is_drawn_inverted_and_only_while_the_keys_go_there() -> None:
    simulation = used()
    async with mapped(simulation) as (app, pilot, kv):
        kv.go_to(40)
        await pilot.pause()
        x, y = place_of(kv, 40)
        ink = kv.last_frame.ink  # type: ignore[union-attr]

        def style_at() -> object:
            strip = kv._strips[y].crop(x, x + 1)
            return next(iter(strip)).style

        assert style_at() == ink.cursor
        app.set_focus(None)
        await pilot.pause()
        assert style_at() != ink.cursor


async def test_a_pool_of_a_few_screens_scrolls_block_by_block_with_a_position_mark() -> None:
    simulation = used(num_blocks=900, steps=1500)
    async with mapped(simulation, size=(56, 45)) as (app, pilot, kv):
        window = kv.window
        assert window is not None
        assert window.scrolls
        assert window.scale == 1
        await pilot.press("home")
        lines = [line for line in panel(app, "kv") if line.endswith(("▐", "▕"))]
        assert len(lines) == window.rows
        assert lines[0].endswith("▐")
        assert lines[-1].endswith("▕")
        await pilot.press("end")
        lines = [line for line in panel(app, "kv") if line.endswith(("▐", "▕"))]
        assert lines[0].endswith("▕")
        assert lines[-1].endswith("▐")
        assert kv.window is not None
        assert kv.window.blocks[1] == 899
        await pilot.press("pageup")
        assert kv.cursor.block == 899 - window.columns * (window.rows - 1)


async def test_each_cell_of_a_scrolled_map_is_its_block() -> None:
    simulation = used(num_blocks=900, steps=1500)
    mirror = simulation.mirror
    async with mapped(simulation, size=(56, 45)) as (app, pilot, kv):
        for target in ("3", "5", "8"):
            await pilot.press(target, "0", "0", "enter")
            assert kv.window is not None
            first, last = kv.window.blocks
            assert first <= int(target) * 100 <= last
            for block in range(first, last + 1):
                x, y = place_of(kv, block)
                mark = kv._strips[y].crop(x, x + 1).text
                state = mirror.state(block)
                if state == BlockState.FREE:
                    assert mark == "·"
                elif state == BlockState.USED:
                    assert mark.isupper()
                elif state == BlockState.CACHED:
                    assert mark.islower()
        assert app.inspector.size.width == 56


async def test_the_wheel_scrolls_and_the_map_stays_there_while_the_engine_goes_on() -> None:
    simulation = used(num_blocks=900, steps=1500)
    async with mapped(simulation, size=(56, 45)) as (app, pilot, kv):
        app.set_focus(None)
        await pilot.pause()
        kv.scroll_rows(-100)
        assert kv.window is not None
        assert kv.window.top == 0
        await pilot._post_mouse_events([_wheel_down()], kv, (10, kv._map_y))
        await pilot.pause()
        assert kv.window.top == min(3, kv.window.last_top)
        before = kv.window.top
        simulation.run(40)
        await show(app, pilot, simulation.view())
        assert kv.window.top == before


def _wheel_down() -> type:
    from textual.events import MouseScrollDown

    return MouseScrollDown


async def test_density_puts_every_used_block_of_the_pool_into_a_cell() -> None:
    simulation = used(num_blocks=900, steps=1500)
    mirror = simulation.mirror
    async with mapped(simulation, size=(56, 45)) as (app, pilot, kv):
        await pilot.press("d")
        window = kv.window
        assert window is not None
        assert window.scale > 1
        assert window.blocks[1] == 899
        for block in range(1, 900):
            x, y = place_of(kv, block)
            mark = kv._strips[y].crop(x, x + 1).text
            if mirror.state(block) == BlockState.USED:
                assert mark.isupper()
        assert "blocks " in "\n".join(panel(app, "kv"))
        await pilot.press("d")
        assert kv.window is not None
        assert kv.window.scale == 1


async def test_a_hundred_thousand_blocks_are_shown_dense_by_themselves_and_can_be_scrolled() -> None:
    simulation = used(num_blocks=100_000, steps=4000, chats=30, follow_up=0)
    assert simulation.mirror.high_water > 5_000
    async with mapped(simulation, size=(56, 45)) as (app, pilot, kv):
        assert kv.window is not None
        assert kv.window.scale > 1
        assert told(app).startswith("blocks ")
        await pilot.press("d", "end")
        assert kv.window.scale == 1
        assert kv.window.blocks[1] == 99_999
        assert told(app) == "block 99,999 free, never used"


@pytest.mark.parametrize("size", [(40, 16), (60, 45), (80, 21), (160, 48), (24, 9)])
@pytest.mark.parametrize("blocks", [2, 300, 3000, 100_000])
async def test_a_map_of_any_size_stays_inside_its_frame_in_both_modes(
    size: tuple[int, int], blocks: int
) -> None:
    simulation = Simulation(num_blocks=blocks, chats=3) if blocks > 2 else Simulation(num_blocks=2, chats=0)
    if blocks > 2:
        simulation.run(50)
    async with mapped(simulation, size=size) as (app, pilot, kv):
        for key in ("end", "d", "home", "d", "pagedown", "d"):
            await pilot.press(key)
            assert {strip.cell_length for strip in kv._strips} <= {kv.size.width}
            assert all(len(line) == size[0] for line in app.lines())


# --- states ----------------------------------------------------------------------------------------


def small() -> Simulation:
    """Two chats that share block 1; chat A's second block holds five of sixteen tokens; 5 is cached."""
    simulation = Simulation(num_blocks=12, chats=0)
    simulation.mirror = mirror = BlockMirror(12, 16)
    for request, letter in ((1, "A"), (2, "B"), (3, "C")):
        simulation.tags[request] = SessionTag(letter, request - 1, f"chat {letter}", f"s{request - 1}")
        simulation.chat_of[request] = request - 1
    record = step(
        1,
        BlockChange("allocate", 1, 1, 0),
        BlockChange("publish", 1, 1, 0),
        BlockChange("allocate", 2, 1, 1),
        BlockChange("share", 1, 2, 0),
        BlockChange("allocate", 5, 3, 0),
        BlockChange("publish", 5, 3, 0),
        BlockChange("release", 5, 3, 0),
    )
    simulation.history.append(record)
    mirror.apply(record)
    mirror._contexts[1] = 21
    return simulation


async def test_beside_the_letter_stand_the_level_of_a_partly_filled_block_and_the_count_of_holders() -> None:
    async with mapped(small(), focused=None) as (app, _, kv):
        row = panel(app, "kv")[kv._map_y]
        assert row.startswith(" 0 ∅ A²A▃· · c · ")


async def test_the_mouse_over_a_cell_tells_its_block_owners_and_logical_index() -> None:
    async with mapped(small(), focused=None) as (app, pilot, kv):
        await pilot.hover(kv, place_of(kv, 1))
        assert told(app) == "block 1 A[0]+B[0] · full · shared by 2"
        await pilot.hover(kv, place_of(kv, 2))
        assert told(app) == "block 2 A[1] · 5/16"
        await pilot.hover(kv, place_of(kv, 5))
        assert told(app) == "block 5 cached, last of C"
        await pilot.hover(kv, place_of(kv, 0))
        assert told(app) == "block 0 null: padded rows write here"
        await pilot.hover(kv, place_of(kv, 9))
        assert told(app) == "block 9 free, never used"


async def test_blocks_whose_chat_has_finished_wait_for_their_release() -> None:
    simulation = small()
    simulation.history.append(msgspec.structs.replace(step(2), finished=(1,)))
    async with mapped(simulation, focused=None) as (app, _, kv):
        row = panel(app, "kv")[kv._map_y]
        assert "A×" in row
        x, y = place_of(kv, 2)
        style = next(iter(kv._strips[y].crop(x, x + 1))).style
        assert style is not None
        assert style.strike


@pytest.mark.parametrize("theme", [theme.name for theme in load_themes()[0]])
async def test_the_blocks_of_the_chat_that_is_pointed_at_stand_out_in_every_theme(theme: str) -> None:
    async with mapped(small(), theme=theme, focused=None) as (app, pilot, kv):
        app.set_focus(None)

        def styles() -> dict[int, Segment]:
            found = {}
            for block in (1, 2, 5):
                x, y = place_of(kv, block)
                found[block] = next(iter(kv._strips[y].crop(x, x + 1)))
            return found

        calm = styles()
        app.inspector.highlight("s1")
        await pilot.pause()
        pointed = styles()
        x, y = place_of(kv, 1)
        assert kv._strips[y].crop(x, x + 1).text == "B"
        assert all(calm[block] != pointed[block] for block in (1, 2, 5))
        assert pointed[1].style != pointed[2].style
        app.inspector.highlight("")
        await pilot.pause()
        assert styles() == calm


async def test_new_blocks_glow_then_fade_then_are_calm() -> None:
    simulation = used(num_blocks=420, chats=2)
    async with mapped(simulation, size=(60, 60)) as (app, pilot, kv):
        app.set_focus(None)
        request = simulation.submit(3, 60, 200)
        while not simulation.mirror.table(request.id):
            simulation.step()
        block = simulation.mirror.table(request.id)[0][1]
        seen = []
        for _ in range(140):
            await show(app, pilot, simulation.view())
            x, y = place_of(kv, block)
            style = next(iter(kv._strips[y].crop(x, x + 1))).style
            if not seen or seen[-1] != style:
                seen.append(style)
            simulation.run(2)
            if request.finished:
                break
        assert len(seen) >= 3


async def test_blocks_that_were_never_used_do_not_glow_at_the_first_steps() -> None:
    async with mapped(small(), focused=None) as (app, _, kv):
        app.set_focus(None)
        x, y = place_of(kv, 9)
        assert kv.last_frame is not None
        assert next(iter(kv._strips[y].crop(x, x + 1))).style == kv.last_frame.ink.free


async def test_rows_in_which_nothing_changed_are_the_very_strips_of_before() -> None:
    simulation = used(num_blocks=3000, steps=600)
    async with mapped(simulation, size=(80, 45)) as (app, _, kv):
        app.set_focus(None)
        await wait_until(lambda: not kv._map_lines.grid._glowing, what="what glowed to fade")
        before = list(kv._strips)
        simulation.run(1)
        app.inspector.show(simulation.view())
        assert kv.window is not None
        rows = range(kv._map_y, kv._map_y + kv.window.rows)
        same = sum(kv._strips[y] is before[y] for y in rows)
        assert same > len(rows) // 2


# --- the table -------------------------------------------------------------------------------------


async def test_an_entry_of_the_table_takes_the_cursor_of_the_map_to_its_block() -> None:
    simulation = Simulation(chats=0, num_blocks=60)
    request = simulation.submit(1, 30, 50)
    for _ in range(6):
        simulation.step()
    async with mapped(simulation) as (app, pilot, kv):
        table = app.query_one("#table")
        table.focus()
        await pilot.pause()
        await pilot.press("home")
        assert kv.cursor.block == request.block_table[0]
        await pilot.press("right", "right")
        assert kv.cursor.block == request.block_table[2]
        await pilot.press("enter")
        assert app.inspector.opened_block == request.block_table[2]


async def test_a_long_table_scrolls_through_every_entry() -> None:
    simulation = Simulation(chats=2, num_blocks=900, follow_up=1)
    simulation.run(1200)
    request = simulation.newest_request(1) or 0
    while len(simulation.mirror.table(request)) < 60:
        simulation.run(10)
        request = simulation.newest_request(1) or 0
    expected = dict(simulation.mirror.table(request))
    async with mapped(simulation, size=(60, 30)) as (app, pilot, kv):
        app.query_one("#table").focus()
        await pilot.press("home")
        seen: dict[int, int] = {}
        for _ in range(80):
            for entry in " ".join(panel(app, "table")[1:]).replace("▐", "").replace("▕", "").split():
                if "→" in entry:
                    logical, _, physical = entry.partition("→")
                    seen[int(logical)] = int(physical)
            await pilot.press("down")
        assert seen == expected
        await pilot.press("end")
        assert kv.cursor.block == expected[max(expected)]


async def test_a_click_on_an_entry_chooses_it() -> None:
    simulation = Simulation(chats=0, num_blocks=60)
    request = simulation.submit(1, 30, 50)
    for _ in range(6):
        simulation.step()
    async with mapped(simulation) as (app, pilot, kv):
        line = panel(app, "table")[1]
        x = line.index("2→") + 2
        await pilot.click("#table", (x, 1))
        assert kv.cursor.block == request.block_table[2]
