"""The benchmark of decode beside its peers: what it draws, reads, keeps and prints, and a run in small."""

import json

import pytest

from benchmarks import h200_decode, mixed_load, peers, steady
from benchmarks.findings import Findings
from benchmarks.mixed_load import MixedLoad
from engine.bench.session import Need, open_session
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError

pytestmark = pytest.mark.usefixtures("small_copies")

PEERS = [
    {"peer": "vllm", "shape": "tiny", "mode": "graph", "bs": 1, "ctx": 20, "ms": 4.0, "p90": 4.1},
    {"peer": "vllm", "shape": "tiny", "mode": "graph", "bs": 1, "ctx": 20, "ms": 2.0, "p90": 2.1},
    {"peer": "vllm", "shape": "tiny", "mode": "graph", "bs": 8, "ctx": 20, "ms": 5.0, "p90": 5.1},
    {"peer": "vllm", "shape": "tiny", "mode": "graph", "bs": 1, "ctx": 4096, "ms": 9.0, "p90": 9.1},
    {"peer": "vllm", "shape": "tiny", "mode": "graph", "start_s": 61.5, "compile": "3"},
    {"peer": "cb", "shape": "other", "mode": "default", "bs": 1, "ctx": 20, "ms": 7.0, "p90": 7.1},
    {
        "peer": "nano",
        "shape": "tiny",
        "mode": "graph",
        "tokens": 133966,
        "seconds": 7.27,
        "throughput": 18427,
    },
]


def tiny(**settings):
    return EngineConfig(model="shape:tiny", device="cpu", dtype="float32", threads=1, **settings)


def opened(config, rows=4, tokens=400):
    return open_session(config, Need(rows, tokens), lambda _: None)


def test_the_mixed_load_is_the_published_one():
    load = MixedLoad.draw()
    assert (len(load.prompts), len(load.answers)) == (256, 256)
    assert sum(load.answers) == 133_966
    lengths = [*map(len, load.prompts), *load.answers]
    assert (min(lengths) >= 100, max(lengths) <= 1024) == (True, True)
    assert load.prompts[0][:3] == [6311, 6890, 663]
    assert max(map(max, load.prompts)) == 10_000


def test_a_small_vocabulary_gets_the_same_lengths():
    load = MixedLoad.draw(4)
    small = load.within(100)
    assert [len(prompt) for prompt in small.prompts] == [len(prompt) for prompt in load.prompts]
    assert max(map(max, small.prompts)) < 100
    assert small.answers == load.answers
    assert load.within(10_001) == load


def test_a_mixed_load_runs_to_its_last_token_from_an_empty_prefix_cache():
    load = MixedLoad([[5] * 40, [6] * 25, [5] * 40], [3, 9, 1])
    with opened(tiny(max_batch=2)) as session:
        rows = [mixed_load.measure(session, load, temperature) for temperature in (0.6, 0.0)]
        assert session.engine.has_work is False
    for row, temperature in zip(rows, (0.6, 0.0)):
        assert (row["prompt_tokens"], row["output_tokens"]) == (105, 13)
        assert row["temperature"] == temperature
        assert row["output_tokens_per_s"] == pytest.approx(13 / row["seconds"], rel=1e-3)
        assert 0 < row["ttft_ms_p50"] <= row["ttft_ms_p99"] <= row["seconds"] * 1e3
    # What the first run left in the cache would have saved the second one a step.
    assert rows[0]["steps"] == rows[1]["steps"]


def test_steady_rows_have_their_context_in_the_middle_and_only_replays(graphs):
    plan = steady.Steady(batch=3, context=60, steps=20)
    with opened(tiny(max_batch=4)) as session:
        row = steady.measure(session, plan)
        assert session.engine.has_work is False
    assert (row["mode"], row["batch"], row["steps"]) == ("graph", 3, 20)
    assert row["context_mean"] == pytest.approx(60, abs=4)
    assert 0 < row["ms_p50"] <= row["ms_p99"]
    assert 0 < row["work_ms_p50"] <= row["ms_p99"]
    assert row["tokens_per_s"] == pytest.approx(3 / row["ms_p50"] * 1e3, rel=1e-3)
    assert row["device_ms_p50"] is row["device_ms_p99"] is None


def test_wall_time_is_what_the_caller_sees_between_steps_and_not_what_the_engine_says(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(steady.time, "perf_counter", lambda: next(clock) / 100)
    with opened(tiny()) as session:
        records, wall_ms, _ = steady.run(session, steady.Steady(batch=1, context=16, steps=4))
    # The engine reads the clock at a step's beginning and end, the caller once behind it.
    assert all(wall > record.ms.total > 0 for wall, record in zip(wall_ms, records))
    assert len(wall_ms) == len(records) == 4


def test_a_context_at_the_limit_of_the_model_ends_inside_it():
    with opened(tiny(max_model_len=200)) as session:
        row = steady.measure(session, steady.Steady(batch=2, context=200, steps=10))
    assert 150 < row["context_mean"] < 200


def test_steps_that_are_not_all_of_one_kind_are_no_figure(graphs, monkeypatch):
    with opened(tiny(max_batch=4)) as session:
        step, calls = session.engine.step, iter(range(10_000))

        def switching(*arguments, **options):
            session.engine.set_mode("graph" if next(calls) % 3 else "eager")
            return step(*arguments, **options)

        monkeypatch.setattr(steady, "stepper", lambda *_, **__: switching)
        with pytest.raises(EngineError, match="eager, graph"):
            steady.run(session, steady.Steady(batch=1, context=16, steps=9))


def lines(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    return path


def test_peers_are_read_line_by_line_and_other_lines_refused_by_number(tmp_path):
    assert peers.read_peers(lines(PEERS, tmp_path / "peers.jsonl")) == PEERS
    for bad in ('{"peer": "vllm"}', "[1]", "Traceback (most recent call last):"):
        file = tmp_path / "bad.jsonl"
        file.write_text(json.dumps(PEERS[0]) + "\n" + bad + "\n")
        with pytest.raises(ConfigError, match="line 2 is no figure of a peer"):
            peers.read_peers(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        peers.read_peers(tmp_path / "none.jsonl")


def test_the_table_sets_us_over_each_peer_at_the_same_context():
    ours = [
        {"shape": "tiny", "batch": 1, "context": 20, "ms_p50": 1.0},
        {"shape": "tiny", "batch": 2, "context": 20, "ms_p50": 1.5},
    ]
    assert peers.comparison(ours, PEERS).splitlines() == [
        "| shape | engine | batch 1 | batch 2 | batch 8 |",
        "|---|---|---|---|---|",
        "| tiny | tui-infer | 1.00 | 1.50 |  |",
        "| tiny | vLLM, graph | 2.00 (0.50) |  | 5.00 |",  # of two runs the peer's better one
        "| other | transformers, continuous batching, default | 7.00 |  |  |",
    ]


def test_the_mixed_load_is_compared_within_its_shape():
    ours = [
        {"shape": "tiny", "temperature": 0.6, "output_tokens_per_s": 30_000.0},
        {"shape": "tiny", "temperature": 0.0, "output_tokens_per_s": 36_854.0},
    ]
    other = {"peer": "cb", "shape": "other", "mode": "default", "throughput": 10}
    assert peers.loads(ours, [*PEERS, other]).splitlines()[2:] == [
        "| tiny | tui-infer, temperature 0.6 | 30,000 |  |",
        "| tiny | tui-infer, temperature 0.0 | 36,854 |  |",
        "| tiny | nano-vllm, graph | 18,427 | 1.63 |",
        "| other | transformers, continuous batching, default | 10 |  |",
    ]


def test_findings_are_on_disk_after_every_row_and_a_failure_is_one_of_them(tmp_path, capsys):
    file = tmp_path / "found.json"
    found = Findings("some", file, {"steps": 3}, ("rows",))
    found.add("rows", {"ms": 1})
    assert json.loads(file.read_text())["rows"] == [{"ms": 1}]
    with found.guard("rows", "tiny"):
        raise EngineError("no room")
    assert json.loads(file.read_text())["failed"] == [{"part": "rows", "what": "tiny", "reason": "no room"}]
    assert "failed: rows, tiny: no room" in found.failures()
    assert "EngineError: no room" in capsys.readouterr().err


def test_a_part_that_is_measured_again_replaces_itself_and_leaves_the_others():
    kept = {
        "header": {"date": "then"}, "settings": {"steps": 9}, "a": [1], "b": [2],
        "engines": [{"part": "a"}, {"part": "b"}], "skipped": [{"part": "a"}], "failed": [{"part": "a"}],
    }  # fmt: skip
    found = Findings("some", None, {"steps": 3}, ("a", "b"), kept)
    assert (found.value["header"], found.value["settings"]) == ({"date": "then"}, {"steps": 9})
    found.begin("a")
    assert (found.value["a"], found.value["b"]) == ([], [2])
    assert found.value["engines"] == [{"part": "b"}]
    assert found.value["skipped"] == found.value["failed"] == []
    found.begin("b")
    assert found.value["settings"] == {"steps": 3}
    assert found.value["earlier"] == [{"header": {"date": "then"}, "settings": {"steps": 9}}]
    assert "command" in found.value["header"]


def test_a_whole_run_in_small_writes_every_part_and_a_second_one_adds_the_peers(tmp_path, capsys):
    file = tmp_path / "decode.json"
    common = ["--device", "cpu", "--dtype", "float32", "--json", str(file), "--context", "20"]
    small = [
        "--batch",
        "1,2",
        "--steps",
        "4",
        "--contexts",
        "16,32",
        "--context-batch",
        "1",
        "--requests",
        "1",
    ]
    shapes = ["--shapes", "tiny", "--context-shape", "tiny", "--load-shape", "tiny", "--prompts", "24"]
    assert h200_decode.main([*common, *small, *shapes]) == 0
    value = json.loads(file.read_text())
    assert value["bench"] == "h200_decode"
    assert [(row["batch"], row["steps"]) for row in value["decode"]] == [(1, 4), (2, 4)]
    assert [row["context"] for row in value["contexts"]] == [16, 32]
    assert [row["cached_tokens"] for row in value["ttft"]] == [0, 16]
    assert [row["temperature"] for row in value["throughput"]] == [0.6, 0.0]
    assert [engine["part"] for engine in value["engines"]] == ["decode", "contexts", "ttft", "throughput"]
    assert value["failed"] == []

    capsys.readouterr()
    told = lines(PEERS, tmp_path / "peers.jsonl")
    assert h200_decode.main([*common, "--only", "none", "--add", "--peers", str(told)]) == 0
    merged = json.loads(file.read_text())
    assert merged["peers"] == PEERS
    assert merged["header"] == value["header"]
    assert merged["decode"] == value["decode"]
    out = capsys.readouterr().out
    assert "| tiny | vLLM, graph | 2.00 (" in out
    assert "| tiny | nano-vllm, graph | 18,427 |" in out
    assert all(title in out for title in ("**Our steps**", "**By context**", "**First token**"))


def test_a_shape_that_fails_costs_the_others_nothing(tmp_path, capsys):
    file = tmp_path / "decode.json"
    arguments = ["--device", "cpu", "--json", str(file), "--batch", "1", "--steps", "2", "--context", "8"]
    assert h200_decode.main([*arguments, "--only", "decode", "--shapes", "nothing,tiny"]) == 1
    value = json.loads(file.read_text())
    assert [row["shape"] for row in value["decode"]] == ["tiny"]
    assert [failure["what"] for failure in value["failed"]] == ["nothing"]
    assert "failed: decode, nothing: There is no shape 'nothing'" in capsys.readouterr().out


def test_a_part_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        h200_decode.main(["--only", "decode,prefill"])
    assert "no part prefill; there are decode, contexts, ttft, throughput" in capsys.readouterr().err
