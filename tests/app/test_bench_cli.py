"""``tui-infer bench``: help, refusals, the JSON file, and what reaches the engine."""

import json

import pytest

from engine.config import EngineConfig
from tests.app.test_cli import call, exit_code

ENGINE_COMMANDS = ("decode", "ab", "profile", "tiles", "prefill", "throughput")


@pytest.fixture
def small(monkeypatch, own_folders):
    """Copies that take no time, and folders that are not the user's."""
    monkeypatch.setattr("engine.bench.measure.CPU_COPY_BYTES", 2**22)


@pytest.mark.parametrize("command", ENGINE_COMMANDS)
def test_every_engine_setting_is_an_option_of_every_bench(command, capsys):
    assert exit_code("bench", command, "--help") == 0
    text = capsys.readouterr().out
    names = [f"--{name.replace('_', '-')}" for name in EngineConfig.__struct_fields__]
    assert [name for name in (*names, "--shape", "--json") if name not in text] == []


def test_the_help_of_the_group_names_every_measurement(capsys):
    assert exit_code("bench", "--help") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*ENGINE_COMMANDS, "launch"))


def test_decode_prints_a_table_and_writes_the_file(small, tmp_path, capsys):
    file = tmp_path / "decode.json"
    arguments = ("--shape", "tiny", "--device", "cpu", "--batch", "1,2", "--context", "16", "--steps", "5")
    assert exit_code("bench", "decode", *arguments, "--json", str(file)) == 0
    out = capsys.readouterr().out
    assert "tiny · decoder · sdpa" in out
    assert "graph at 1, 2: no CUDA graphs on cpu" in out
    value = json.loads(file.read_text())
    assert value["bench"] == "decode"
    assert value["settings"] == {"batches": [1, 2], "context": 16, "steps": 5}
    assert [(row["batch"], row["mode"]) for row in value["rows"]] == [(1, "eager"), (2, "eager")]
    assert set(value["header"]) == {"command", "machine", "python", "versions", "date"}


def test_a_shape_is_a_model_and_shapes_go_into_one_file(small, tmp_path):
    files = [tmp_path / "model.json", tmp_path / "shapes.json"]
    common = ("bench", "decode", "--device", "cpu", "--batch", "1", "--context", "8", "--steps", "2")
    assert exit_code(*common, "--model", "shape:tiny", "--json", str(files[0])) == 0
    assert exit_code(*common, "--shape", "tiny", "--shape", "Tiny", "--json", str(files[1])) == 0
    one, two = (json.loads(file.read_text()) for file in files)
    assert [row["shape"] for row in one["rows"]] == [row["shape"] for row in two["rows"]] == ["tiny"]
    assert one["engines"][0]["weight_bytes"] == two["engines"][0]["weight_bytes"]


def test_settings_reach_the_engine_from_the_group_and_from_the_command(small, tmp_path):
    file = tmp_path / "out.json"
    arguments = ("--shape", "tiny", "--dtype", "float32", "--block-size", "8", "--mode", "eager")
    assert (
        exit_code(
            "--device", "cpu", "bench", "decode", *arguments, "--batch", "1", "--context", "8",
            "--steps", "2", "--json", str(file),
        )
        == 0
    )  # fmt: skip
    value = json.loads(file.read_text())
    (engine,) = value["engines"]
    assert (engine["device"], engine["dtype"], engine["block_size"]) == ("cpu", "float32", 8)
    assert value["skipped"] == []  # eager was asked for, so nothing is missing


def test_throughput_without_a_gpu_is_over_in_seconds_and_says_what_it_drew(small, tmp_path):
    file = tmp_path / "out.json"
    arguments = ("--shape", "tiny", "--device", "cpu", "--json", str(file))
    assert exit_code("bench", "throughput", *arguments) == 0
    value = json.loads(file.read_text())
    assert value["settings"] == {
        "rate": 0.0, "lengths": "lognormal", "seed": 0, "requests": 8, "prompt_mean": 64, "output_mean": 16,
    }  # fmt: skip
    assert value["rows"][0]["requests"] == 8
    assert value["engines"][0]["prefill_chunk"] == EngineConfig().prefill_chunk


@pytest.mark.parametrize("command", ["profile", "prefill"])
def test_the_other_measurements_write_their_file(small, command, tmp_path):
    file = tmp_path / "out.json"
    few = {"profile": ("--steps", "2", "--context", "8"), "prefill": ("--lengths", "20", "--repeats", "1")}
    arguments = ("--shape", "tiny", "--device", "cpu", *few[command], "--json", str(file))
    assert exit_code("bench", command, *arguments) == 0
    assert json.loads(file.read_text())["rows"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("decode", "--shape", "qwen9"), "There is no shape 'qwen9'. The shapes are: tiny,"),
        (("decode", "--shape", "tiny", "--model", "smollm2"), "--shape and --model both name a model"),
        (("decode", "--shape", "tiny", "--batch", "0"), "--batch must be at least 1; it is 0"),
        (("decode", "--shape", "tiny", "--batch", "x"), "no list of whole numbers"),
        (("decode", "--shape", "tiny", "--device", "cpu", "--mode", "graph"), "no CUDA graphs on cpu"),
        (("profile", "--shape", "tiny", "--steps", "0"), "--steps must be at least 1"),
        (("prefill", "--shape", "tiny", "--json", "/no/such/x.json"), "there is no folder /no/such"),
        (("throughput", "--shape", "tiny", "--rate", "-1"), "--rate must be 0 or more"),
        (("launch", "--device", "cpu"), "CUDA"),
        (("ab", "--shape", "tiny", "--device", "cpu"), "nothing to compare: no CUDA graphs on cpu"),
        (("ab", "--shape", "tiny", "--mode", "eager"), "--mode eager: this compares both modes"),
        (("ab", "--shape", "tiny", "--block", "0"), "--block must be at least 1; it is 0"),
        (
            ("tiles", "--shape", "tiny", "--device", "cpu"),
            "nothing to tune: decode steps on cpu have no kernels",
        ),
        (("tiles", "--shape", "tiny", "--rows", "1,3"), "--rows takes 1, 8, 16, 32; it is 1, 3"),
        (("launch", "--device", "abacus"), "device='abacus' is unknown"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_two(arguments, message, capsys):
    assert exit_code("bench", *arguments) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.count("\n") == 1
    assert caught.err.startswith("error: ")
    assert message in caught.err


def test_launch_in_a_shell_without_cuda_is_one_line_and_exit_code_two():
    run = call("bench", "launch", env={"CUDA_VISIBLE_DEVICES": ""})
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.count("\n") == 1
    assert "torch sees no CUDA device" in run.stderr


def test_a_model_of_shape_answers_prompts_too(own_folders):
    run = call("run", "--model", "shape:tiny", "--device", "cpu", "-p", "Hello", "--max-tokens", "8")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
