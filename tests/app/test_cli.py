"""The command line, without a model: options, refusals, exit codes, what is imported."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.records import Progress
from engine.request import Completion, SamplingParams
from engine.version import __version__
from tui_infer.cli import main
from tui_infer.config import Settings
from tui_infer.headless import JsonPrinter, ProgressLine, TextPrinter
from tui_infer.locations import all_folders
from tui_infer.logs import new_log
from tui_infer.options import ByteSize, Integers, engine_config, sampling_params, text_of

REPOSITORY = Path(__file__).resolve().parents[2]


def call(*arguments, stdin="", env=None, timeout=60):
    """The command as a user's shell runs it."""
    return subprocess.run(
        [sys.executable, "-m", "tui_infer", *arguments],
        input=stdin, capture_output=True, text=True, cwd=REPOSITORY, timeout=timeout,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


def before_python_path(folder):
    """``folder`` first, and then what may hold the dependencies."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def exit_code(*arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return left.value.code


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_version_comes_without_torch_and_without_textual():
    script = (
        "import sys\nfrom tui_infer.cli import main\n"
        "try: main(['--version'])\n"
        "except SystemExit as left: print(left.code, {'torch', 'textual'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY)
    assert run.stdout.splitlines() == [f"tui-infer {__version__}", "0 set()"]


@pytest.mark.parametrize("command", [[], ["run"]])
def test_every_engine_setting_has_an_option(command, capsys):
    assert exit_code(*command, "--help") == 0
    text = capsys.readouterr().out
    missing = [name for name in EngineConfig.__struct_fields__ if f"--{name.replace('_', '-')}" not in text]
    assert missing == []


def test_every_sampling_parameter_has_an_option(capsys):
    assert exit_code("run", "--help") == 0
    text = capsys.readouterr().out
    missing = [name for name in SamplingParams.__struct_fields__ if f"--{name.replace('_', '-')}" not in text]
    assert missing == []


def test_the_app_without_a_terminal_is_one_line_and_exit_code_two():
    run = call()
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: The app needs a terminal")
    assert "none of stdin, stdout and stderr is a terminal" in run.stderr
    assert "tui-infer run" in run.stderr
    assert run.stderr.count("\n") == 1
    assert "\x1b" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-batch", "0"], "max_batch=0 is too small"),
        (["--kv-memory", "2GX"], "'2GX' is no size; write 2GB"),
        (["--device", "gpu"], "device='gpu' is unknown. Use auto, cpu"),
        (["--device", "cuda:\u00b2"], "device='cuda:\u00b2' is unknown"),
        (["--nonsense"], "No such option"),
        (["--threads", "0"], "threads=0 is too small"),
        (["--threads", "100000"], "threads=100000 is too large; this process may use "),
        (["run", "--prompt", "x", "--max-tokens", "9999999999"], "from 1 to 2147483648."),
        (["run", "--prompt", "x", "--model", b"\xff"], r"model='\udcff' is not UTF-8"),
        (
            ["run", "--prompt", "x", "--model-impl", "compiled"],
            "'compiled' is not one of 'auto', 'transformers', 'decoder'",
        ),
        (["run", "--prompt", "x", "--dtype", "int3"], "'int3' is not one of"),
        (["run", "--prompt", "x", "--temperature", "-1"], "temperature=-1.0 is out of range"),
        (["run", "--prompt", "x", "--top-p", "0"], "top_p=0.0 is out of range"),
        (["run", "--prompt", "x", "--graph-sizes", "1,b"], "'1,b' is no list of whole numbers"),
        (
            ["run", "--prompt", "x", "--graph-sizes", ""],
            "'' is no list of whole numbers such as 1,2,4. 'none'",
        ),
        (["run", "--prompt", "x", "--graph-sizes", "1,,2"], "'1,,2' is no list of whole numbers"),
        (["run", "--prompt", "x", "--graph-sizes", "2,"], "'2,' is no list of whole numbers"),
        (["run", "--prompt", "x", "--graph-sizes", "0"], "graph_sizes entry=0 is too small"),
        (["run", "--prompt", "x", "--stop-token-ids", "none"], "'none' is no list of whole numbers"),
        (["run", "--prompt", "x", "--raw", "--system", "y"], "--system needs the chat template"),
        (["run", "--prompt", "-", "--prompt", "-"], "stdin can be read only once"),
        (["run"], "stdin is empty"),
        (
            ["run", "--prompt", "x", "--model", "./no/such/folder"],
            "There is no file or folder './no/such/folder'",
        ),
        (["frobnicate"], "No such command"),
    ],
)
def test_what_the_user_can_put_right_is_one_line_and_exit_code_two(arguments, words):
    run = call(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: ")
    assert words in run.stderr
    assert run.stderr.count("\n") == 1


def test_run_at_a_terminal_without_a_prompt_asks_for_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert exit_code("run") == 2
    assert "Give one with --prompt, or pipe it in" in capsys.readouterr().err


def test_an_unforeseen_error_is_one_line_with_the_traceback_in_a_log(own_folders, monkeypatch, capsys):
    monkeypatch.setattr("tui_infer.locations.all_folders", lambda: 1 / 0)
    assert exit_code("paths") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ZeroDivisionError: division by zero The traceback is in ")
    log = Path(captured.err.strip().rpartition(" ")[2])
    assert log.parent == own_folders / "log"
    assert "Traceback" in log.read_text()


def test_a_log_folder_that_cannot_be_made_costs_the_traceback_and_not_the_line(monkeypatch, capsys):
    monkeypatch.setenv("TUI_INFER_LOG_DIR", "/dev/null/nope")
    monkeypatch.setattr("tui_infer.locations.all_folders", lambda: 1 / 0)
    assert exit_code("paths") == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ZeroDivisionError: division by zero")
    assert "The log folder /dev/null/nope cannot be used" in said
    assert said.count("\n") == 1


def test_the_app_names_a_log_folder_that_cannot_be_used_and_the_variable(monkeypatch, capsys):
    monkeypatch.setenv("TUI_INFER_LOG_DIR", "/dev/null/nope")
    monkeypatch.setattr("tui_infer.terminal.require_terminal", lambda: None)
    assert exit_code() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: The log folder /dev/null/nope cannot be used: Not a directory.")
    assert "TUI_INFER_LOG_DIR" in said
    assert said.count("\n") == 1


def test_ctrl_c_leaves_with_130_and_no_traceback(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("tui_infer.locations.all_folders", interrupted)
    assert exit_code("paths") == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_left_is_not_worth_a_word():
    command = f"{sys.executable} -m tui_infer --help; echo code $? >&2"
    run = subprocess.run(
        ["bash", "-c", f"({command}) | (exec <&-; sleep 0.5)"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert run.stderr.splitlines() in (["code 141"], ["code 0"])  # 0 where the pipe took it all in time


# --- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("2GB", 2 * 10**9),
        ("2g", 2 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 KiB", 1536),
        (".5k", 500),
        ("1T", 10**12),
    ],
)
def test_a_size_may_carry_its_unit(text, size):
    assert ByteSize().convert(text, None, None) == size


def test_options_that_were_not_given_leave_the_engines_defaults():
    assert engine_config({"model": None, "max_batch": None, "theme": "x"}) == EngineConfig()


def test_no_graph_sizes_is_a_choice_of_its_own():
    sizes = Integers(none=True)
    assert sizes.convert("none", None, None) == ()
    assert sizes.convert("1, 2,4", None, None) == (1, 2, 4)
    assert engine_config({"graph_sizes": ()}).graph_sizes == ()
    assert engine_config({"graph_sizes": (1, 2)}, {"graph_sizes": None}).graph_sizes == (1, 2)
    assert engine_config({"graph_sizes": (1, 2)}, {"graph_sizes": ()}).graph_sizes == ()


def test_options_of_the_command_win_over_those_before_it():
    config = engine_config({"model": "a", "max_batch": 2}, {"model": "b", "max_batch": None})
    assert (config.model, config.max_batch) == ("b", 2)
    with pytest.raises(ConfigError):
        engine_config({"block_size": 0})


def test_the_seed_is_every_prompts_own_so_that_a_prompt_alone_gives_the_same_tokens():
    assert sampling_params({"seed": 7}, {"seed": None, "stop": ("a",), "top_k": 3}) == SamplingParams(
        seed=7, stop=("a",), top_k=3
    )


@pytest.mark.parametrize(
    ("argument", "text"),
    [("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600"), ("a\udcff\udcfeb", "a\ufffd\ufffdb"), ("\ud800", "?")],
)
def test_an_argument_is_always_text_that_a_tokenizer_takes(argument, text):
    assert text_of(argument) == text


# --- folders and logs ------------------------------------------------------------------------------


def test_paths_follow_the_environment(own_folders, capsys):
    assert exit_code("paths", "--json") == 0
    paths = json.loads(capsys.readouterr().out)
    assert paths == {name: str(path) for name, path in all_folders().items()}
    assert paths["logs"] == str(own_folders / "log")
    assert paths["config"] == str(own_folders / "config" / "config.toml")
    assert exit_code("paths") == 0
    assert f"logs            {own_folders / 'log'}\n" in capsys.readouterr().out


def test_only_the_last_logs_of_a_kind_are_kept(own_folders):
    other = new_log("app")
    other.write_text("kept")
    for number in range(9):
        (other.parent / f"engine-2020010{number}-000000-1.log").write_text("old")
    newest = new_log("engine")
    newest.write_text("new")
    kept = sorted(path.name for path in other.parent.glob("engine-*.log"))
    assert kept == [*(f"engine-2020010{number}-000000-1.log" for number in range(5, 9)), newest.name]
    assert other.exists()


# --- printing --------------------------------------------------------------------------------------

COMPLETION = Completion(
    text="a\x1b]52;c;x\x07b\x9b2J", token_ids=[1], finish_reason="stop", prompt_tokens=1, cached_tokens=0,
    ttft_s=0.1, decode_tokens_per_s=None,
)  # fmt: skip


@pytest.mark.parametrize("make", [lambda out: TextPrinter(out, 1), JsonPrinter])
def test_no_escape_of_a_model_reaches_a_terminal(make):
    out = Terminal()
    printer = make(out)
    printer.begin("prompt")
    printer.text(COMPLETION.text[:4])
    printer.end(COMPLETION)
    assert not set(out.getvalue()) & {"\x1b", "\x07", "\x9b"}
    assert out.getvalue().endswith("\n")


def test_a_pipe_gets_the_text_to_the_letter():
    out = io.StringIO()
    printer = TextPrinter(out, 1)
    printer.begin("prompt")
    printer.end(COMPLETION)
    assert out.getvalue() == COMPLETION.text + "\n"


def test_times_in_json_have_the_digits_that_mean_something():
    out = io.StringIO()
    printer = JsonPrinter(out)
    printer.begin("prompt")
    printer.end(msgspec.structs.replace(COMPLETION, ttft_s=0.123456789, decode_tokens_per_s=31.98765))
    value = json.loads(out.getvalue())
    assert (value["ttft_s"], value["decode_tokens_per_s"]) == (0.1235, 31.99)
    assert (value["index"], value["output_tokens"]) == (0, 1)


def test_several_answers_stand_under_their_prompts():
    out = io.StringIO()
    printer = TextPrinter(out, 2)
    for prompt in ("first\nsecond line", "x" * 200):
        printer.begin(prompt)
        printer.end(COMPLETION)
    heads = [line for line in out.getvalue().splitlines() if line.startswith("[")]
    assert heads[0] == "[1] first second line"
    assert len(heads[1]) <= 80


def test_progress_on_a_terminal_is_one_line_that_is_wiped_at_the_end(monkeypatch):
    monkeypatch.setattr(ProgressLine, "QUIET_S", 0.0)
    out = Terminal()
    with ProgressLine(out) as line:
        line.show(Progress("loading", "weights \x1b[2J", 0.5))
    assert "loading weights" in out.getvalue()
    assert "50 %" in out.getvalue()
    assert "\n" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


def test_progress_without_a_terminal_is_a_line_now_and_then_and_nothing_for_a_short_load(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("tui_infer.headless.time.monotonic", lambda: clock[0])
    out = io.StringIO()
    with ProgressLine(out) as line:
        for percent in range(100):
            clock[0] += 0.07
            line.show(Progress("downloading", "x", percent / 100))
    assert out.getvalue().splitlines() == ["downloading x 43 %", "downloading x 86 %"]


# --- doctor ----------------------------------------------------------------------------------------


def test_the_doctor_says_of_every_attention_back_end_whether_it_is_used_and_why(own_folders):
    run = call("doctor", "--json")
    assert (run.returncode, run.stderr) == (0, "")
    found = json.loads(run.stdout)
    assert {"python", "torch", "device", "attention", "nvml", "models", "terminal", "problems"} == set(found)
    assert {"flash-attn 3", "flash-attn 2", "triton", "varlen", "sdpa"} == set(found["attention"])
    assert all(reason.startswith(("used: ", "not used: ")) for reason in found["attention"].values())
    assert sum(reason.startswith("used: ") for reason in found["attention"].values()) == 1
    if found["device"]["auto"].startswith("cpu"):
        assert found["attention"]["flash-attn 2"] == "not used: needs CUDA"
    assert found["device"]["auto"]
    assert "is installed" in found["models"]["smollm2"]


def test_the_doctor_is_of_use_where_torch_is_broken(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    run = call("doctor", env={"PYTHONPATH": before_python_path(tmp_path), "LC_ALL": "C.UTF-8"})
    assert run.returncode == 1
    assert "libtorch_cpu.so" in run.stdout
    assert "terminal" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("env", "words"),
    [({"TERM": "dumb"}, "TERM is 'dumb'"), ({"TERM": "xterm", "COLUMNS": "40", "LINES": "10"}, "40x10")],
)
def test_the_doctor_names_what_is_wrong_with_the_terminal(env, words):
    run = call("doctor", env=env)
    assert words in run.stdout.partition("to put right")[2]


# --- streams ---------------------------------------------------------------------------------------


def through_a_shell(line, env=None):
    """The command with streams that only a shell makes."""
    return subprocess.run(
        ["sh", "-c", f'"$0" -m tui_infer {line}', sys.executable],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=60, env={**os.environ, **(env or {})},
    )  # fmt: skip


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_crash(closed, tmp_path):
    run = through_a_shell(f"paths {closed}", {"TUI_INFER_LOG_DIR": str(tmp_path)})
    assert (run.returncode, run.stderr) == (0, "")
    assert ("config.toml" in run.stdout) == (">&- " not in f"{closed} ".replace("2>&-", ""))
    assert not list(tmp_path.glob("crash-*"))


def test_a_closed_stderr_keeps_complaints_out_of_the_output():
    run = through_a_shell("nonsense 2>&-")
    assert (run.returncode, run.stdout) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["paths", "--version", "config"])
def test_a_full_disk_behind_stdout_is_told_in_one_line(command, tmp_path):
    run = through_a_shell(f"{command} >/dev/full", {"TUI_INFER_LOG_DIR": str(tmp_path)})
    assert run.returncode == 1
    assert run.stderr.endswith("cannot be written: No space left on device.\n")
    assert run.stderr.count("\n") == 1
    assert not list(tmp_path.glob("crash-*"))


@pytest.mark.parametrize("command", ["config", "chat"])
def test_the_help_of_the_app_has_the_defaults_of_its_settings(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    usual = Settings()
    assert f"0 is greedy. [{usual.temperature}]" in said
    assert f"Longest answer. [{usual.max_tokens}]" in said
    assert "0 is off. [0]" in said
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"Longest answer. [{SamplingParams().max_tokens}]" in said
