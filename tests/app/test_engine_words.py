"""On a CPU the title and the panels say in which bits a model is kept and what computes with it."""

import pytest

from engine.records import EngineStatus, Ready
from tests.app.driving import running, screen_text
from tests.app.scripted import ScriptedClient, engine_status
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.engine_words import computed_by, place, slow_for
from tui_infer.nvml import GpuReading
from tui_infer.state import AppState
from tui_infer.widgets.inspector.gpu import gpu_rows
from tui_infer.widgets.title_bar import _shown

PANELS = 6  # of the inspector
NONE = "no C compiler (gcc, cc, clang) is on the path"
BROKEN = "/usr/bin/gcc failed: fatal error: omp.h: No such file"
IN_C = "Weights: 8 bits from Q8_0, 4 bits from Q4_1; computed in C with AVX-512 VNNI."


def by_torch(reason: str) -> EngineStatus:
    note = f"Weights: rounded to 4 bits, the output projection to 8; computed by torch, since {reason}."
    return engine_status(dtype="bfloat16", weights="int4", notes=(note,))


def title(app: TuiInferApp) -> str:
    return screen_text(app).splitlines()[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "bfloat16", "weights": "int4", "attention": "native"}, "cpu int4 · C"),
        ({"dtype": "bfloat16", "weights": "int8", "attention": "native"}, "cpu int8 · C"),
        ({"dtype": "bfloat16", "weights": "int4"}, "cpu int4 · torch"),
        ({"dtype": "bfloat16"}, "cpu bf16 · sdpa"),
        ({}, "cpu fp32 · sdpa"),
        ({"device": "cuda:0", "dtype": "bfloat16", "attention": "triton"}, "cuda:0 bf16 · triton"),
    ],
)
def test_place_and_what_computes_are_short_and_true(changes: dict[str, object], words: str) -> None:
    status = engine_status(**changes)
    assert f"{place(status)} · {computed_by(status)}" == words


@pytest.mark.parametrize("width", [160, 80])
async def test_the_title_of_a_cpu_names_bits_and_what_computes_and_no_mode(width: int) -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client, size=(width, 24)) as (app, _):
        client.become_ready(dtype="bfloat16", weights="int4", attention="native", notes=(IN_C,))
        await wait_until(lambda: "· SmolLM2-135M · cpu int4 · C" in title(app))
        assert "eager" not in title(app)
        assert not app.state.notices
        assert "C compiler" not in screen_text(app)


def test_where_room_is_short_what_computes_goes_and_the_cpus_bits_stay() -> None:
    state = AppState(lambda _: None)
    state.apply(Ready(engine_status(weights="int8", attention="native", model_name="Some-Long-Name")))
    assert _shown(state, 40) == ["Some-Long-Name", "cpu int8", "C"]
    assert _shown(state, 26) == ["Some-Lo…", "cpu int8", "C"]
    assert _shown(state, 22) == ["Some-Lo…", "cpu int8"]
    assert _shown(state, 12) == ["cpu int8"]


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_the_gpu_panel_of_a_cpu_has_the_whole_sentence_about_the_weights(size: tuple[int, int]) -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client, size=size) as (app, pilot):
        client.become_ready(weights="int4", attention="native", notes=("another", IN_C))
        await pilot.press("f6", "f6", "ctrl+o")
        for _ in range(PANELS):
            if "VNNI." in screen_text(app):
                break
            await pilot.press("tab")
        await wait_until(lambda: "VNNI." in screen_text(app))
        assert "Weights: 8 bits from Q8_0" in screen_text(app)


async def test_a_missing_compiler_is_told_once_at_the_start() -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client, size=(80, 24)) as (app, _):
        status = by_torch(NONE)
        client.become_ready(weights=status.weights, notes=status.notes)
        await wait_until(lambda: "Slower than it could be" in screen_text(app))
        assert "Install gcc" in screen_text(app)


def test_starting_the_engine_again_does_not_repeat_it_and_a_recording_never_says_it() -> None:
    state = AppState(lambda _: None)
    state.apply(Ready(by_torch(NONE)))
    state.apply(Ready(by_torch(NONE)))
    (notice,) = state.notices
    assert notice.severity == "information"
    replayed = AppState(lambda _: None)
    replayed.replay = "▶ 1 of 2"
    replayed.apply(Ready(by_torch(NONE)))
    assert not replayed.notices


def test_only_what_a_user_can_mend_is_called_slow() -> None:
    assert slow_for(by_torch(NONE)) == (
        "No C compiler (gcc, cc, clang) is on the path: torch computes, slower. "
        "Install gcc, or let CC name a compiler."
    )
    assert slow_for(by_torch(BROKEN)) == f"{BROKEN}: torch computes, slower."
    assert slow_for(by_torch("CC names 'icc', which is not there")).startswith("CC names 'icc'")
    assert not slow_for(by_torch("this processor lacks AVX2"))
    assert not slow_for(by_torch("TUI_INFER_NATIVE switches it off"))
    assert not slow_for(engine_status(notes=(IN_C,)))
    assert not slow_for(engine_status())


def test_the_panel_of_a_cpu_asks_for_rows_for_the_sentence() -> None:
    assert gpu_rows(engine_status(), GpuReading()) == 2
    assert gpu_rows(engine_status(notes=(IN_C,)), GpuReading()) == 4
