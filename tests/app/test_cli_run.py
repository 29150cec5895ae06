"""``tui-infer run`` with real models: the default one as a user's shell runs it, a tiny one for the rest."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tui_infer.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = ("--device", "cpu", "--dtype", "float32", "--kv-memory", "8MiB")
QUESTION = "What is the capital of France? Answer in one sentence."
KEYS = {
    "index",
    "output_tokens",
    "text",
    "token_ids",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "ttft_s",
    "decode_tokens_per_s",
}


@pytest.fixture
def run(tiny_model_dir, monkeypatch, capsys):
    """Runs the command in this process on the tiny model; gives exit code, stdout, stderr."""

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as left:
            main(["run", "--model", str(tiny_model_dir), *TINY, *arguments])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return run


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


def test_the_default_model_names_the_capital_of_france(default_model_dir):
    command = [sys.executable, "-m", "tui_infer", "run", "--temperature", "0", "--max-tokens", "24", "--json"]
    done = subprocess.run(
        [*command, "--prompt", QUESTION], capture_output=True, text=True, cwd=REPOSITORY, timeout=240,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (answer,) = objects(done.stdout)
    assert (answer["text"], answer["finish_reason"]) == ("The capital of France is Paris.", "stop")
    assert set(answer) == KEYS
    assert answer["ttft_s"] > 0
    assert answer["decode_tokens_per_s"] > 0
    assert answer["cached_tokens"] == 0
    assert answer["prompt_tokens"] > len(QUESTION.split())


def test_several_prompts_run_in_one_batch_and_come_in_their_order(run):
    prompts = ["hello world", "the cat and the dog", "red green blue"]
    alone = [
        objects(run("--temperature", "0", "--max-tokens", "9", "--json", "-p", p)[1])[0] for p in prompts
    ]
    arguments = [part for prompt in prompts for part in ("--prompt", prompt)]
    code, out, err = run("--temperature", "0", "--max-tokens", "9", "--json", *arguments)
    together = objects(out)
    assert (code, err) == (0, "")
    assert [answer["index"] for answer in together] == [0, 1, 2]
    assert [answer["output_tokens"] for answer in together] == [9, 9, 9]
    assert [answer["token_ids"] for answer in together] == [answer["token_ids"] for answer in alone]
    assert [answer["prompt_tokens"] for answer in together] == [answer["prompt_tokens"] for answer in alone]


def test_plain_answers_are_text_and_nothing_else(run):
    _, as_json, _ = run("--temperature", "0", "--max-tokens", "9", "--json", "--prompt", "hello")
    code, out, err = run("--temperature", "0", "--max-tokens", "9", "--prompt", "hello")
    text = objects(as_json)[0]["text"]
    assert (code, err) == (0, "")
    assert out == text if text.endswith("\n") else text + "\n"


@pytest.mark.parametrize("arguments", [[], ["--prompt", "-"]])
def test_stdin_is_one_prompt_without_its_last_line_end(run, arguments):
    options = ("--temperature", "0", "--max-tokens", "5", "--json")
    _, given, _ = run(*options, "--prompt", "hello\nworld")
    code, piped, _ = run(*options, *arguments, stdin="hello\nworld\n")
    assert code == 0
    assert objects(piped)[0]["token_ids"] == objects(given)[0]["token_ids"]


def test_a_raw_prompt_goes_without_the_chat_template(run):
    options = ("--temperature", "0", "--max-tokens", "5", "--json", "--prompt", "hello")
    chat, raw = objects(run(*options)[1])[0], objects(run(*options, "--raw")[1])[0]
    assert raw["prompt_tokens"] < chat["prompt_tokens"]


def test_a_system_message_comes_before_the_prompt(run):
    options = ("--temperature", "0", "--max-tokens", "5", "--json", "--prompt", "hello")
    plain, system = objects(run(*options)[1])[0], objects(run(*options, "--system", "red cat")[1])[0]
    assert system["prompt_tokens"] > plain["prompt_tokens"]


def test_a_seed_gives_a_prompt_the_same_tokens_alone_and_among_others(run):
    options = ("--seed", "5", "--max-tokens", "8", "--json")
    alone = objects(run(*options, "-p", "hello")[1])[0]
    among = objects(run(*options, "-p", "the cat", "-p", "hello")[1])[1]
    assert alone["token_ids"] == among["token_ids"]


def test_a_prompt_that_cannot_fit_is_reported_in_its_place_and_the_others_are_answered(run):
    code, out, err = run("--max-tokens", "5", "--json", "-p", "cat " * 2000, "-p", "hello")
    refused, answered = objects(out)
    assert (refused["index"], refused["output_tokens"], answered["index"]) == (0, 0, 1)
    assert code == 2
    assert refused["finish_reason"] == "error"
    assert "512" in refused["error"]
    assert err.startswith("error: ")
    assert len(answered["token_ids"]) == 5


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_bytes_that_are_no_text_and_a_locale_without_utf8_do_not_end_a_run(tiny_model_dir, locale):
    command = [sys.executable, "-m", "tui_infer", "run", "--model", str(tiny_model_dir), *TINY]
    done = subprocess.run(
        [*command, "--json", "--max-tokens", "2", "-p", b"\xff\xfe", "-p", "caf\u00e9".encode(),
         "--system", b"\xff", "--stop", b"\xfe"],
        capture_output=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL, timeout=120,
        env={**os.environ, **locale},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert [answer["index"] for answer in objects(done.stdout.decode())] == [0, 1]


def test_text_that_the_locale_cannot_show_is_a_question_mark(tiny_model_dir):
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "tui_infer", "run", "--model", str(tiny_model_dir), *TINY]
    done = subprocess.run(
        [*command, "--max-tokens", "1", "-p", "caf\u00e9".encode(), "-p", "cat"],
        capture_output=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL, timeout=120,
        env={**os.environ, **locale},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"[1] caf?\n")


def test_ctrl_c_ends_a_run_with_130_and_no_traceback(tiny_model_dir):
    command = [sys.executable, "-m", "tui_infer", "run", "--model", str(tiny_model_dir), "--ignore-eos"]
    started = subprocess.Popen(
        [*command, "--max-model-len", "512", "--max-tokens", "480", "--prompt", "hello"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert started.stdout.read(1)  # it streams
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=20)
    assert (started.returncode, err) == (130, "") or started.returncode == 0  # 0 where it was done already
    assert "Traceback" not in err


def test_a_reader_that_leaves_early_ends_the_run_quietly(tiny_model_dir):
    command = [sys.executable, "-m", "tui_infer", "run", "--model", str(tiny_model_dir), "--ignore-eos"]
    started = subprocess.Popen(
        [*command, "--max-tokens", "480", "--prompt", "hello"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert started.stdout.read(1)
    started.stdout.close()
    began = time.monotonic()
    assert started.wait(20) in (141, 0)
    assert time.monotonic() - began < 20
    assert started.stderr.read() == ""
    started.stderr.close()
