"""The ablation: which techniques are on in which line, and a climb in small."""

import json

import pytest

from benchmarks import ablation, steady
from benchmarks.ablation import RUNGS, Rung, switched
from engine.bench.session import Need, open_session
from engine.config import EngineConfig
from engine.models import decode_path
from engine.staging import Staging

pytestmark = pytest.mark.usefixtures("small_copies")

TECHNIQUES = ("kernels", "dependent_launch", "advance", "ahead")


def test_each_line_keeps_what_the_lines_before_it_brought_and_adds_one_thing():
    assert RUNGS[0].impl == "transformers"
    assert {rung.impl for rung in RUNGS[1:]} == {"decoder"}
    on = [[name for name in TECHNIQUES if getattr(rung, name)] for rung in RUNGS[1:]]
    assert on == [list(TECHNIQUES[:count]) for count in range(len(TECHNIQUES) + 1)]


def test_switches_hold_while_an_engine_is_measured_and_go_back_after_a_failure():
    before = vars(decode_path.DEFAULTS).copy()
    inside = []

    def fail():
        with switched(Rung("", kernels=False, dependent_launch=False)):
            inside.append((decode_path.DEFAULTS.enabled, decode_path.DEFAULTS.dependent_launch))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside == [(False, False)]
    assert vars(decode_path.DEFAULTS) == before
    with switched(RUNGS[-1]):
        assert (decode_path.DEFAULTS.enabled, decode_path.DEFAULTS.dependent_launch) == (True, True)


@pytest.mark.parametrize("ahead", [False, True])
def test_without_advance_the_host_sends_every_row_in_every_step(graphs, monkeypatch, ahead):
    sent = []
    send = Staging.send_columns
    monkeypatch.setattr(Staging, "send_columns", lambda self: (sent.append(1), send(self))[1])
    config = EngineConfig(model="shape:tiny", device="cpu", dtype="float32", threads=1, max_batch=4)
    counts = {}
    with open_session(config, Need(2, 200), lambda _: None) as session:
        for advance in (False, True):
            plan = steady.Steady(batch=2, context=40, steps=12, ahead=ahead, advance=advance)
            session.fill(2, plan.fitted(session), 40)
            session.engine.land()
            sent.clear()
            step = steady.stepper(session, plan.ahead, plan.advance)
            for _ in range(plan.steps):
                step()
            counts[advance] = len(sent)
            session.clear()
    assert counts[False] >= 12
    assert counts[True] <= 1


def test_a_climb_has_a_row_for_every_line_and_a_table(tmp_path, graphs, capsys):
    file = tmp_path / "ablation.json"
    arguments = ["--device", "cpu", "--shapes", "tiny", "--batch", "2"]
    arguments += ["--attention", "sdpa", "--dtype", "float32"]
    assert ablation.main([*arguments, "--steps", "2", "--context", "16", "--json", str(file)]) == 0
    value = json.loads(file.read_text())
    assert value["failed"] == []
    names = [rung.name for rung in RUNGS]
    assert [(row["rung"], row["batch"]) for row in value["rows"]] == [(name, 2) for name in names]
    assert [row["impl"] for row in value["rows"]] == ["transformers"] + ["decoder"] * 5
    assert {row["mode"] for row in value["rows"]} == {"graph"}
    assert [row["ahead"] for row in value["rows"]] == [False] * 5 + [True]
    table = capsys.readouterr().out.splitlines()[-len(RUNGS) - 2 :]
    assert table[0] == "| ms a step: wall, device; kernels | tiny, batch 2 |"
    assert [line.split(" | ")[0] for line in table[2:]] == [f"| {name}" for name in names]


def test_cells_give_wall_and_device_time_and_kernels():
    row = {"shape": "tiny", "batch": 1, "ms_p50": 1.054, "device_ms_p50": 1.021, "kernels_per_step": 141.0}
    rows = [{**row, "rung": RUNGS[0].name}, {**row, "rung": RUNGS[1].name, "device_ms_p50": None}]
    lines = ablation.table(rows).splitlines()
    assert lines[2].endswith("| 1.05, 1.02; 141 |")
    assert lines[3].endswith("| 1.05, –; 141 |")
    assert lines[4].endswith("|  |")
