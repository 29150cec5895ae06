"""The CPU benchmark: what it computes, that rounds survive a failing engine, and our side of it in small."""

import argparse
import itertools
import json
import signal
import sys

import psutil
import pytest

from benchmarks import cpu_decode
from benchmarks.cpu_decode import OURS, figures, ratios, run_rounds, spread, summed, table, without_folders
from benchmarks.cpu_ours import Ours
from benchmarks.cpu_peers import Measured, Peer, memory_mib
from engine.config import EngineConfig
from engine.errors import EngineError


def measured(first_s=(0.1, 0.3), first_tokens=2, end_s=2.2, tokens=22):
    return Measured(first_s, first_tokens, end_s, tokens, prompt_tokens=60, text="An answer")


def run(peer, number, rate, requests=1):
    row = {"peer": peer, "round": number, "requests": requests, "prompt_tokens": 60, "text": "x"}
    rest = {"ttft_ms": 100.0, "ttft_max_ms": 120.0, "peak_mib": 500.0, "pss_mib": 400.0, "start_s": 2.0}
    return {**row, **rest, "tokens_per_s": rate}


class Scripted(Peer):
    """Makes tokens in no time, and fails when it is told to; counts what became of it."""

    def __init__(self, name, fails_at=None):
        super().__init__(name, "scripted")
        self.fails_at = fails_at
        self.asked, self.starts, self.stops = [], 0, 0

    @property
    def pid(self):
        return psutil.Process().pid

    def start(self):
        self.starts += 1
        return 0.5

    def run(self, chats, new):
        self.asked.append((len(chats), new))
        if self.fails_at == len(self.asked):
            raise RuntimeError("out of luck")
        return Measured((0.1,) * len(chats), len(chats), 1.1, len(chats) * new, 60, "An answer")

    def stop(self):
        self.stops += 1


def chosen(path=None, **settings):
    return argparse.Namespace(**{"n": [1, 4], "new": 8, "warm_up": 2, "rounds": 2, "json": path} | settings)


def empty():
    return {"peers": {}, "rows": [], "ratios": [], "loads": [], "failed": []}


def test_the_rate_is_of_tokens_behind_the_first_since_the_mean_first():
    found = figures(measured(), new=11)
    assert found["tokens_per_s"] == pytest.approx(20 / 2.0)
    assert found["ttft_ms"] == pytest.approx(200)
    assert found["ttft_max_ms"] == pytest.approx(300)


def test_tokens_that_came_with_the_first_are_no_part_of_the_rate():
    assert figures(measured(first_tokens=6), new=11)["tokens_per_s"] == pytest.approx(16 / 2.0)


def test_an_engine_that_makes_fewer_tokens_has_no_figures():
    with pytest.raises(EngineError, match="21 tokens were made instead of 2 times 11"):
        figures(measured(tokens=21), new=11)


def test_no_two_prompts_begin_alike_and_every_peer_gets_the_same():
    prompts = cpu_decode.chats(itertools.count(1000), 12)
    assert [chat[0]["content"].split(".")[0] for chat in prompts] == [f"Number {1000 + i}" for i in range(12)]
    assert prompts == cpu_decode.chats(itertools.count(1000), 12)
    assert len({chat[1]["content"] for chat in prompts}) == len(cpu_decode.TOPICS)


def test_rounds_become_median_and_ends():
    assert spread([3.0, 1.0, 2.0]) == {"values": [3.0, 1.0, 2.0], "median": 2.0, "min": 1.0, "max": 3.0}
    rows = summed([run("a", 1, 10.0), run("b", 1, 5.0), run("a", 2, 30.0), run("a", 1, 7.0, requests=4)])
    assert [(row["peer"], row["requests"], row["tokens_per_s"]["median"]) for row in rows] == [
        ("a", 1, 20.0),
        ("b", 1, 5.0),
        ("a", 4, 7.0),
    ]


def test_ratios_compare_what_was_measured_in_the_same_round():
    runs = [run(OURS, 1, 30.0), run("a", 1, 10.0), run(OURS, 2, 80.0), run("a", 2, 20.0)]
    (row,) = ratios(runs)
    assert (row["peer"], row["requests"], row["tokens_per_s"]["values"]) == ("a", 1, [3.0, 4.0])
    (row,) = ratios([*runs[2:], run("a", 1, 10.0)])
    assert row["tokens_per_s"]["values"] == [4.0]
    assert ratios([run(OURS, 1, 30.0), run("a", 2, 10.0)]) == []


def test_the_table_has_a_line_a_peer_and_gaps_where_nothing_was_measured():
    lines = table(summed([run("a", 1, 10.0), run("a", 1, 20.0, requests=4), run("b", 1, 5.0)])).splitlines()
    assert lines[0].startswith("| engine | tokens/s, 1 | tokens/s, 4 | first token, ms, 1 |")
    assert lines[2] == "| a | 10.0 (10.0 to 10.0) | 20.0 (20.0 to 20.0) | 100 | 100 | 500 | 2.0 |"
    assert lines[3] == "| b | 5.0 (5.0 to 5.0) |  | 100 |  | 500 | 2.0 |"


def test_a_command_names_files_without_their_folders():
    command = (
        "python -m benchmarks.cpu_decode --llama-server /home/a/bin/llama-server --json results/cpu.json"
    )
    expected = "python -m benchmarks.cpu_decode --llama-server llama-server --json results/cpu.json"
    assert without_folders(command) == expected


def test_rounds_take_turns_and_keep_the_document_up_to_date(tmp_path, capsys):
    peers, value = [Scripted(OURS), Scripted("a")], empty()
    run_rounds(peers, chosen(tmp_path / "cpu.json"), value)
    assert json.loads((tmp_path / "cpu.json").read_text()) == value
    assert [row["peer"] for row in value["loads"]] == [OURS, "a", OURS, "a"]
    assert all(peer.starts == peer.stops == 2 for peer in peers)
    assert peers[0].asked == [(1, 2), (1, 8), (4, 2), (4, 8)] * 2
    rates = {(row["peer"], row["requests"]): row["tokens_per_s"]["values"] for row in value["rows"]}
    assert rates == {
        (OURS, 1): [7.0, 7.0],
        (OURS, 4): [28.0, 28.0],
        ("a", 1): [7.0, 7.0],
        ("a", 4): [28.0, 28.0],
    }
    assert "round 2, a, 4 at once: 28.0 tokens/s" in capsys.readouterr().out


def test_an_engine_that_fails_keeps_its_figures_and_is_left_out_of_later_rounds(capsys):
    peers, value = [Scripted("a", fails_at=4), Scripted(OURS)], empty()
    run_rounds(peers, chosen(), value)
    assert value["failed"] == [{"peer": "a", "round": 1, "reason": "out of luck"}]
    assert (peers[0].starts, peers[0].stops, peers[1].starts) == (1, 1, 2)
    assert [(row["peer"], row["requests"]) for row in value["rows"]] == [("a", 1), (OURS, 1), (OURS, 4)]


def test_memory_of_a_process_is_its_peak_and_its_share_of_now():
    peak, share = memory_mib(psutil.Process().pid)
    assert peak >= psutil.Process().memory_info().rss / 2**20 * 0.5
    assert 0 < share <= peak
    assert memory_mib(2**22 + 1) == (0.0, 0.0)


def test_our_engine_process_is_timed_weighed_and_ended(tiny_model_dir, tmp_path):
    config = EngineConfig(
        model=str(tiny_model_dir), device="cpu", dtype="float32", threads=1, num_blocks=40, max_model_len=300
    )
    ours = Ours(OURS, config, tmp_path / "log")
    try:
        assert ours.start() > 0
        process = psutil.Process(ours.pid)
        for count in (1, 3):
            prompts = [[{"role": "user", "content": f"Number {i}"}] for i in range(count)]
            found = ours.run(prompts, 6)
            assert found.tokens == 6 * count
            assert 0 < min(found.first_s) <= max(found.first_s) <= found.end_s
            assert found.prompt_tokens > 0
            assert count <= found.first_tokens < found.tokens
            assert figures(found, 6)["tokens_per_s"] > 0
        assert memory_mib(ours.pid)[0] > 50
        assert ours.settings.startswith("--quant auto; decoder; float32")
        assert ours.versions.keys() == {"torch", "transformers"}
    finally:
        ours.stop()
    assert not process.is_running()


def test_the_command_measures_what_it_was_given_and_says_what_it_left_out(
    tiny_model_dir, tmp_path, monkeypatch, capsys
):
    kept = signal.getsignal(signal.SIGTERM)
    words = [
        "--model",
        str(tiny_model_dir),
        "--only",
        "quant none",
        "--rounds",
        "1",
        "--new",
        "8",
        "--n",
        "1,2",
    ]
    monkeypatch.setattr(
        sys, "argv", ["cpu_decode", *words, "--json", str(tmp_path / "cpu.json"), "--logs", str(tmp_path)]
    )
    try:
        cpu_decode.main()
    finally:
        signal.signal(signal.SIGTERM, kept)
    value = json.loads((tmp_path / "cpu.json").read_text())
    assert [(row["peer"], row["requests"]) for row in value["rows"]] == [
        ("tui-infer --quant none", 1),
        ("tui-infer --quant none", 2),
    ]
    assert {row["peer"] for row in value["skipped"]} == {"llama.cpp", "vLLM"}
    printed = capsys.readouterr().out
    assert "left out: vLLM, needs --vllm-python" in printed
    assert printed.splitlines()[-1].startswith("| tui-infer --quant none |")


def test_a_model_that_our_engine_cannot_load_says_why_and_leaves_nothing(tmp_path):
    before = set(psutil.Process().children())
    ours = Ours(OURS, EngineConfig(model=str(tmp_path), device="cpu"), tmp_path / "log")
    with pytest.raises(EngineError, match=r"config\.json"):
        ours.start()
    ours.stop()
    assert set(psutil.Process().children()) <= before
