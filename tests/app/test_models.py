"""The models of this machine, whether they fit, and another one in place of the one that runs."""

import json
import shutil
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, ProgressBar

from engine.client import EngineClient
from engine.commands import Submit
from engine.config import EngineConfig
from engine.models.source import KNOWN_MODELS
from engine.records import Failed, Progress
from tests.app.driving import ask, pane_of, running, screen_text, settled
from tests.app.scripted import ON_A_CARD, ScriptedClient, engine_status
from tests.waiting import wait_until
from tui_infer import model_memory
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.model_catalog import LocalModel, local_models, titled
from tui_infer.model_files import ModelFacts, facts_of_folder, facts_of_gguf
from tui_infer.model_memory import Room, fit, room_for
from tui_infer.nvml import GpuReading
from tui_infer.screens.ask import Ask
from tui_infer.screens.loading import Loading
from tui_infer.screens.models import ModelPicker
from tui_infer.slash import Call, obey, read
from tui_infer.widgets.bar import PartsBar

GIB = 1 << 30

# --- what files say --------------------------------------------------------------------------------


def test_a_folder_s_headers_give_its_size_and_what_it_takes(tiny_model_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    facts = facts_of_folder(tiny_model_dir)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (facts.dtype, facts.context, facts.architecture) == ("f32", 512, "LlamaForCausalLM")
    assert facts.kv_numbers == 2 * 2 * 2 * 16  # keys and values, layers, KV heads, head dimension
    assert facts.disk_bytes == (tiny_model_dir / "model.safetensors").stat().st_size
    assert facts.problem == ""


def spoiled(folder: Path, tmp_path: Path, **config: object) -> Path:
    """A copy whose configuration is changed."""
    copy = Path(shutil.copytree(folder, tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"))
    values = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(values | config))
    return copy


def test_what_cannot_be_run_or_read_is_said_before_it_is_loaded(tiny_model_dir: Path, tmp_path: Path) -> None:
    assert (
        "soft-capped" in facts_of_folder(spoiled(tiny_model_dir, tmp_path, attn_logit_softcapping=50)).problem
    )
    assert "quantised (gptq)" in (
        facts_of_folder(
            spoiled(tiny_model_dir, tmp_path, quantization_config={"quant_method": "gptq"})
        ).problem
    )
    copy = spoiled(tiny_model_dir, tmp_path)
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40))
    assert "no safetensors header" in facts_of_folder(copy).problem
    (copy / "model.safetensors").write_bytes(b"\x05")
    assert "ends too early" in facts_of_folder(copy).problem
    (copy / "model.safetensors").unlink()
    assert "no weights" in facts_of_folder(copy).problem
    (copy / "config.json").write_text("[1")
    assert "cannot be read" in facts_of_folder(copy).problem
    (copy / "config.json").write_text("[]")
    assert "no object" in facts_of_folder(copy).problem


@pytest.mark.parametrize("cut", [0, 3, 20, 24, 100])
def test_a_damaged_gguf_file_is_said_to_be_one(tiny_model_dir: Path, tmp_path: Path, cut: int) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 5, 5) + b"\xff" * 200)
    file.write_bytes(file.read_bytes()[:cut] if cut < 100 else file.read_bytes())
    assert "cannot be read" in facts_of_gguf(file).problem


def test_the_known_model_s_gguf_header_agrees_with_its_converted_folder(default_model_dir: Path) -> None:
    from engine.models.source import file_of_package

    known = KNOWN_MODELS["smollm2"]
    file = file_of_package(known.package, known.file)
    assert file is not None
    packed, whole = facts_of_gguf(file), facts_of_folder(default_model_dir)
    assert packed.parameters == whole.parameters == 134_515_008
    assert (packed.kv_numbers, packed.context) == (whole.kv_numbers, whole.context)
    assert (packed.dtype, packed.disk_bytes) == ("Q4_1", known.size)


# --- what is here ----------------------------------------------------------------------------------


def test_models_are_found_in_the_caches_and_folders_each_once(
    tiny_model_dir: Path, default_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub = tmp_path / "hub"
    snapshot = hub / "models--someone--tiny" / "snapshots" / "abc"
    shutil.copytree(tiny_model_dir, snapshot)
    (hub / "models--someone--tiny" / "refs").mkdir()
    (hub / "models--someone--tiny" / "refs" / "main").write_text("abc")
    (snapshot / "tiny.gguf").write_bytes(b"GGUF")
    (hub / "datasets--someone--tiny").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    mine = tmp_path / "mine" / "deep"
    shutil.copytree(tiny_model_dir, mine / "my model")
    (mine / "a.gguf").write_bytes(b"none")
    models = {model.model: model for model in local_models([tmp_path / "mine"], str(tiny_model_dir))}
    kinds = {name: model.kind for name, model in models.items()}
    assert kinds["smollm2"] == "known"
    assert models["smollm2"].path == default_model_dir, "converted already, and listed by its name"
    assert kinds["someone/tiny"] == "hub"
    assert kinds["someone/tiny/tiny.gguf"] == "hub"
    assert kinds[str(mine / "my model")] == "folder"
    assert kinds[str(mine / "a.gguf")] == "gguf"
    assert "cannot be read" in models[str(mine / "a.gguf")].facts.problem
    assert kinds[str(tiny_model_dir)] == "folder", "the one that runs, wherever it is"
    assert kinds["shape:qwen2.5-1.5b"] == "shape"
    assert sum(kind == "known" for kind in kinds.values()) == 1


def test_titles_that_occur_twice_say_which_is_which() -> None:
    models = [LocalModel(name, "tiny", "folder", ModelFacts(), Path(name)) for name in ("/a/tiny", "/b/tiny")]
    assert [model.title for model in titled(models)] == ["tiny (a)", "tiny (b)"]


# --- what fits -------------------------------------------------------------------------------------


def test_need_is_weights_and_the_least_cache_in_the_engine_s_number_format() -> None:
    facts = ModelFacts(parameters=GIB, kv_numbers=1 << 14, context=32768)
    needs = fit(facts, Room(3 * GIB, "cpu"))
    assert (needs.weights, needs.kv, needs.tokens) == (2 * GIB, 2048 << 15, 2048)
    assert needs.fits
    assert needs.words() == "Needs 2.0 GiB for weights and 64.0 MiB for 2,048 tokens; cpu has 3.0 GiB free."
    assert fit(facts, Room(2 * GIB, "cpu")).fits is False, "the cache counts too"
    assert fit(facts, Room(3 * GIB, "cpu", 4)).fits is False, "and so does float32"
    assert fit(facts, Room(None, "cpu")).fits is None
    assert fit(ModelFacts(), Room(GIB, "cpu")).fits is None
    assert fit(ModelFacts(parameters=1, kv_numbers=1, context=100), Room(GIB, "cpu")).tokens == 100


def test_what_the_engine_before_holds_is_free_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    status = engine_status(
        **{**ON_A_CARD, "weight_bytes": 10 * GIB, "kv_bytes": 100 * GIB, "graph_bytes": GIB}
    )
    card = GpuReading(memory_used=115 * GIB, memory_total=140 * GIB)
    assert room_for(EngineConfig(), status, card) == Room(126 * GIB, "cuda:0"), "90 % of the card at most"
    config = EngineConfig(gpu_memory_utilization=1.0, dtype="float32")
    assert room_for(config, status, card) == Room(136 * GIB, "cuda:0", 4)
    assert room_for(config, status, GpuReading()).free is None
    monkeypatch.setattr(model_memory, "host_available_bytes", lambda: 5 * GIB)
    monkeypatch.setattr(model_memory, "_anonymous_bytes", lambda pid: GIB)
    assert room_for(EngineConfig(), engine_status(), GpuReading()) == Room(6 * GIB, "cpu", 4)
    assert room_for(EngineConfig(), None, GpuReading()).free == 5 * GIB


# --- the picker ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with nothing in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@asynccontextmanager
async def choosing(
    client: ScriptedClient, size: tuple[int, int] = (100, 30)
) -> AsyncIterator[tuple[TuiInferApp, Pilot[int]]]:
    """The app with the picker open and its list there."""
    async with running(client, size=size) as (app, pilot):
        await pilot.press("alt+m")
        await wait_until(lambda: isinstance(app.screen, ModelPicker))
        await wait_until(lambda: app.screen.query_one(OptionList).option_count > 5, what="the models")
        yield app, pilot


async def typed(app: TuiInferApp, text: str) -> None:
    app.screen.query_one(Input).value = text
    await wait_until(lambda: app.screen.query_one(OptionList).option_count < 5)


@pytest.mark.parametrize("size", [(100, 30), (80, 24)])
async def test_the_picker_shows_models_with_their_numbers_and_what_they_need(size: tuple[int, int]) -> None:
    async with choosing(ScriptedClient("Yes."), size) as (app, pilot):
        await wait_until(lambda: "SmolLM2-135M-Instruct" in screen_text(app))
        (row,) = [line for line in screen_text(app).splitlines() if "● SmolLM2-135M-Instruct" in line]
        assert "135M" in row
        assert "fits" in row
        await wait_until(lambda: "for weights and 90.0 MiB for 2,048 tokens; cpu has" in screen_text(app))
        assert "The weights are random" in screen_text(app)
        assert "Enter loads it" in screen_text(app)
        await pilot.press("escape")
        await wait_until(lambda: not isinstance(app.screen, ModelPicker))
        assert app.client.config.model == "smollm2"


async def test_typing_filters_and_enter_loads_the_chosen_model_while_the_chat_stays() -> None:
    client = ScriptedClient("Paris.", rate=400)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "The capital?")
        await settled(app)
        await pilot.press("alt+m")
        await wait_until(lambda: isinstance(app.screen, ModelPicker))
        await wait_until(lambda: app.screen.query_one(OptionList).option_count > 5)
        await typed(app, "qwen3-0")
        await pilot.press("enter")
        await wait_until(lambda: client.restarts == 1)
        assert client.config.model == "shape:qwen3-0.6b"
        assert app.state.current.turns[1].text == "Paris."
        await pane_of(app)


async def test_a_name_that_is_not_listed_can_be_typed_and_loaded() -> None:
    client = ScriptedClient("Yes.")
    async with choosing(client) as (app, pilot):
        await typed(app, "someone/else")
        await wait_until(lambda: "load someone/else" in screen_text(app))
        await pilot.press("enter")
        await wait_until(lambda: client.restarts == 1)
        assert client.config.model == "someone/else"


async def test_up_and_down_choose_while_the_filter_keeps_the_keys() -> None:
    async with choosing(ScriptedClient("Yes.")) as (app, pilot):
        options = app.screen.query_one(OptionList)
        first = options.highlighted
        await pilot.press("down", "down", "up")
        assert options.highlighted is not None
        assert first is not None
        assert options.highlighted > first
        assert not options.get_option_at_index(options.highlighted).disabled
        assert app.focused is app.screen.query_one(Input)


async def test_a_model_that_does_not_fit_is_asked_about_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_memory, "host_available_bytes", lambda: GIB)
    client = ScriptedClient("Yes.")
    async with running(client) as (app, pilot):
        said = read("/model shape:qwen2.5-7b")
        assert isinstance(said, Call)
        assert obey(app, said)
        await wait_until(lambda: isinstance(app.screen, Ask))
        assert isinstance(app.screen, Ask)
        assert "shape:qwen2.5-7b does not fit. Needs 28.4 GiB for weights and" in app.screen._question
        await pilot.press("n")
        await wait_until(lambda: not isinstance(app.screen, Ask))
        assert client.restarts == 0
        assert obey(app, said)
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await wait_until(lambda: client.restarts == 1)


async def test_a_folder_that_cannot_run_is_refused_without_a_restart(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = spoiled(tiny_model_dir, tmp_path, attn_logit_softcapping=50)
    client = ScriptedClient("Yes.")
    async with running(client) as (app, _):
        assert app.models.command([str(folder)]) == ""
        await wait_until(lambda: any("soft-capped" in toast.message for toast in app._notifications))
        assert client.restarts == 0


class Slow(ScriptedClient):
    """Goes on loading its second model until it is told that it is there."""

    def become_ready(self, **changes: object) -> None:
        if self.config.model == "smollm2":
            super().become_ready(**changes)

    def finish(self) -> None:
        super().become_ready()


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_a_load_shows_its_progress_on_a_screen_that_goes_by_itself(size: tuple[int, int]) -> None:
    client = Slow("Yes.")
    async with running(client, size=size) as (app, pilot):
        app.models.load("shape:qwen3-0.6b", "Needs 1.5 GiB.")
        await wait_until(lambda: isinstance(app.screen, Loading) and "43%" in screen_text(app))
        client._emit(Progress("reading", "layer 3 of 28", 0.25))
        await wait_until(lambda: "25%" in screen_text(app))
        shown = screen_text(app)
        assert all(text in shown for text in ("Loading shape:qwen3-0.6b", "Needs 1.5 GiB.", "layer 3 of 28"))
        client._emit(Progress("capturing graphs", "batch 8"))
        await wait_until(lambda: "capturing graphs" in screen_text(app))
        await pilot.pause()
        assert not app.screen.query_one(ProgressBar).display, "nothing is said of a share"
        client.finish()
        await wait_until(lambda: not isinstance(app.screen, Loading))
        assert app.state.phase == "ready"
        await pilot.press("alt+c")  # a screen with bars of its own
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        bars = [bar for bar in app.main.query(PartsBar) if bar.display and bar.parent is app.main]
        assert len(bars) >= 3
        assert {bar.size.width for bar in bars} == {size[0]}, "all have the whole width"


async def test_a_hidden_load_goes_on_and_is_told_when_it_has_ended() -> None:
    client = Slow("Yes.")
    async with running(client) as (app, pilot):
        app.models.load("shape:tiny")
        await wait_until(lambda: isinstance(app.screen, Loading))
        await pilot.press("escape")
        await wait_until(lambda: not isinstance(app.screen, Loading))
        assert app.state.phase == "loading"
        client.finish()
        await wait_until(lambda: any("is loaded" in toast.title for toast in app._notifications))


class Failing(ScriptedClient):
    """Cannot load anything but its first model."""

    def become_ready(self, **changes: object) -> None:
        if self.config.model == "smollm2":
            super().become_ready(**changes)
        else:
            self.state = "dead"
            self._emit(Failed("model not loaded", f"{self.config.model} is gone.", "Check it."))


async def test_a_load_that_fails_goes_back_to_the_model_before_with_the_reason() -> None:
    client = Failing("Yes.", rate=400)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "Is it?")
        await settled(app)
        history = list(app.state.current.history_ids)
        app.models.load("shape:tiny")
        await wait_until(lambda: client.restarts == 2 and app.state.phase == "ready")
        assert client.config.model == "smollm2"
        await wait_until(
            lambda: any("is gone. Check it. Back to smollm2." in t.message for t in app._notifications)
        )
        assert app.state.current.history_ids == history, "the tokens mean the same as before"


async def test_another_model_can_be_loaded_where_the_first_one_never_did() -> None:
    client = Failing("Yes.", rate=400)
    client.config = EngineConfig(model="none/such")
    async with running(client) as (app, _):
        await wait_until(lambda: "/model NAME loads another model" in screen_text(app))
        assert app.models.command(["smollm2"]) == ""
        await wait_until(lambda: app.state.phase == "ready")
        assert (client.config.model, client.restarts) == ("smollm2", 1)


async def test_options_of_the_former_model_alone_are_not_taken_along() -> None:
    client = ScriptedClient("Yes.")
    client.config = EngineConfig(model="a/b", revision="v2", trust_remote_code=True, max_batch=4)
    async with running(client) as (app, _):
        app.models.load("shape:tiny")
        await wait_until(lambda: client.restarts == 1)
        assert client.config == EngineConfig(model="shape:tiny", max_batch=4)


# --- the real engine -------------------------------------------------------------------------------


async def test_a_real_engine_is_replaced_and_the_chat_goes_on_with_the_other_model(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(tiny_model_dir, tmp_path / "other"))
    config = EngineConfig(model=str(tiny_model_dir), device="cpu", num_blocks=64, max_batch=4, threads=1)
    client = EngineClient(config, log_path=tmp_path / "engine.log")
    sent: list[Submit] = []
    real_send = client.send

    def send(command):  # type: ignore[no-untyped-def]
        sent.extend([command] if isinstance(command, Submit) else [])
        real_send(command)

    client.send = send  # type: ignore[method-assign]
    settings = Settings(max_tokens=6, ignore_eos=True)
    try:
        async with running(client, settings=settings) as (app, pilot):  # type: ignore[arg-type]
            await wait_until(lambda: app.state.phase == "ready", 120)
            first = client.pid
            await ask(app, pilot, "hello world")
            await wait_until(lambda: not app.state.active and app.state.current.history_ids, 60)
            assert app.models.command([str(other)]) == ""
            await wait_until(lambda: client.config.model == str(other) and app.state.phase == "ready", 120)
            assert client.pid != first
            assert app.state.status is not None
            assert app.state.status.model_path == str(other)
            await wait_until(lambda: app.screen is app.main, 60, "the screen that shows the loading to go")
            await ask(app, pilot, "the cat")
            await wait_until(lambda: len(app.state.current.turns) == 4 and not app.state.active, 60)
            assert sent[-1].history is None, "token ids of the model before are not sent"
            assert [message.role for message in sent[-1].prompt] == ["user", "assistant", "user"]  # type: ignore[union-attr]
            assert app.state.current.turns[3].status == "done"
            assert app.state.current.model == str(other)

            assert app.models.command([str(tmp_path / "none")]) == ""
            await wait_until(lambda: any("Back to" in toast.message for toast in app._notifications), 120)
            await wait_until(lambda: app.state.phase == "ready", 120)
            assert client.config.model == str(other)
    finally:
        client.kill()
