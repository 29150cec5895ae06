"""Steps as CSV and JSON, the screen as SVG."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.app.driving import running
from tests.app.recorded import simulated_entries, simulated_steps, written
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.cli import main
from tui_infer.export import COLUMNS, ExportError, step_row, steps_as_csv, steps_as_json, write_steps
from tui_infer.slash import Call, obey, read


def test_every_column_is_documented_and_filled() -> None:
    _, records = simulated_steps(600, num_blocks=120, chats=8, max_batch=4)
    records += simulated_steps(600, num_blocks=120, chats=8)[1]
    rows = [step_row(record) for record in records]
    assert all(list(row) == list(COLUMNS) for row in rows)
    for name in COLUMNS.keys() - {"copied"}:  # which takes a fork
        assert any(row[name] not in (None, "", 0) for row in rows), name


def test_csv_has_a_line_a_step_whose_numbers_are_the_record_s() -> None:
    _, records = simulated_steps(200)
    lines = list(csv.DictReader(io.StringIO(steps_as_csv(records))))
    assert len(lines) == 200
    for line, record in zip(lines, records):
        assert int(line["step"]) == record.index
        assert float(line["total_ms"]) == record.ms.total
        assert int(line["blocks_used"]) == record.blocks.used
        assert int(line["decode_rows"]) + int(line["prefill_rows"]) == record.active
        assert line["graph_size"] == ("" if record.graph_size is None else str(record.graph_size))
        allocated = sum(change.kind == "allocate" for change in record.block_changes)
        assert int(line["allocated"]) == allocated


def test_json_also_has_rows_and_block_changes() -> None:
    _, records = simulated_steps(50)
    read_back = json.loads(steps_as_json(records))
    assert read_back["columns"] == COLUMNS
    for step, record in zip(read_back["steps"], records):
        assert [row["request"] for row in step["rows"]] == [row.request for row in record.rows]
        assert [change["block"] for change in step["block_changes"]] == [
            change.block for change in record.block_changes
        ]


def test_a_name_without_a_known_ending_and_a_place_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"neither \.csv nor \.json"):
        write_steps([], tmp_path / "steps.txt")
    with pytest.raises(ExportError, match="No such file"):
        write_steps([], tmp_path / "none" / "steps.csv")


async def test_the_slash_command_writes_steps_and_screenshot_and_says_so(tmp_path: Path) -> None:
    client = ScriptedClient("some answer " * 500, rate=300)  # late steps make several tokens at once
    async with running(client) as (app, _pilot):
        app.state.submit(app.state.focused, "hello")
        await wait_until(lambda: len(app.state.history) > 20)

        def command(text: str) -> bool:
            said = read(text)
            assert isinstance(said, Call)
            return obey(app, said)

        assert command(f"/export steps {tmp_path}/my steps.csv")
        assert command(f"/export screenshot {tmp_path}/screen.svg")
        assert not command("/export steps")
        assert not command(f"/export picture {tmp_path}/x.svg")
        assert not command(f"/export screenshot {tmp_path}/x.png")
        assert not command(f"/export steps {tmp_path}/none/x.csv")
        told = [f"{notice.title}: {notice.message}" for notice in app.state.notices]
        assert any("steps to" in text and "my steps.csv" in text for text in told)
    assert (tmp_path / "my steps.csv").read_text().count("\n") > 20
    assert (tmp_path / "screen.svg").read_text().startswith("<svg")


def test_replay_writes_the_steps_of_a_recording_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "r.tirec", simulated_entries())
    out = tmp_path / "steps.csv"
    with pytest.raises(SystemExit) as left:
        main(["replay", str(path), "--steps", str(out)])
    assert left.value.code == 0
    assert "60 steps" in capsys.readouterr().out
    assert len(list(csv.DictReader(out.open()))) == 60
