"""``tui-infer bench``: options in, tables and a JSON file out. The engine runs in this process."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from engine.config import EngineConfig
from engine.models.shapes import PREFIX, shape_name
from tui_infer.options import Integers, engine_config, engine_options

F = TypeVar("F", bound=Callable[..., Any])

# What measuring wants unless told otherwise: prompts in few steps, room for the batch.
PREFILL_CHUNK = 4096
MAX_BATCH = EngineConfig().max_batch

_json = click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write header, settings and rows to this file.",
)
_shapes = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME",
    help="Random weights of this shape, such as qwen2.5-1.5b, as --model shape:NAME; may be repeated.",
)


def _bench_options(function: F) -> F:
    """Engine options, shapes and the JSON file."""
    return engine_options(_shapes(_json(function)))


@click.group()
def bench() -> None:
    """Measure the engine on this machine.

    Weights can be random (--shape): speed does not depend on them, and nothing is downloaded.
    """


@bench.command()
@click.option(
    "--batch", "batches", type=Integers(), default="1,2,4,8,16,32", show_default=True, help="Batch sizes."
)
@click.option("--context", type=int, default=512, show_default=True, metavar="N", help="Prompt tokens a row.")
@click.option(
    "--steps", type=int, metavar="N", help="Steps a mode and batch size.  [default: 100; 25 without a GPU]"
)
@_bench_options
@click.pass_obj
def decode(
    group: Mapping[str, Any], batches: tuple[int, ...], context: int, steps: int | None, **values: Any
) -> int:
    """Milliseconds a decode step, eager and graph.

    Both modes take turns in one run, unless --mode names one.
    """
    plan: dict[str, Any] = {"batches": tuple(dict.fromkeys(batches)), "context": context}
    room = {"max_batch": max(MAX_BATCH, *batches, 1)}
    configs = _configs(group, values, room)

    def measure(progress: Any) -> Any:
        from engine.bench.decode import DecodePlan, bench_decode

        plan["steps"] = (100 if _has_gpu(configs) else 25) if steps is None else steps

        return bench_decode(configs, DecodePlan(**plan, modes=_modes(configs)), progress)

    return _run("decode", plan, values, measure)


@bench.command()
@click.option(
    "--batch", "batches", type=Integers(), default="1,2,4,8", show_default=True, help="Batch sizes."
)
@click.option("--context", type=int, default=512, show_default=True, metavar="N", help="Prompt tokens a row.")
@click.option(
    "--steps", type=int, default=100, show_default=True, metavar="N", help="Steps a mode and batch."
)
@click.option(
    "--block", type=int, default=20, show_default=True, metavar="N", help="Steps before the modes change."
)
@_bench_options
@click.pass_obj
def ab(
    group: Mapping[str, Any],
    batches: tuple[int, ...],
    context: int,
    steps: int,
    block: int,
    **values: Any,
) -> int:
    """Eager and graph in turn, and their ratio.

    The same rows decode a block of steps eager, then one by replayed graphs, and so on.
    """
    plan: dict[str, Any] = {"batches": tuple(dict.fromkeys(batches)), "context": context}
    plan |= {"steps": steps, "block": block}
    configs = _configs(group, values, {"max_batch": max(MAX_BATCH, *batches, 1)})

    def measure(progress: Any) -> Any:
        from engine.bench.ab import AbPlan, bench_ab, check_device

        chosen = AbPlan(**plan)
        check_device(configs[0])
        return bench_ab(configs, chosen, progress)

    return _run("ab", plan, values, measure)


@bench.command()
@click.option("--batch", type=int, default=1, show_default=True, metavar="N", help="Batch size.")
@click.option("--context", type=int, default=512, show_default=True, metavar="N", help="Prompt tokens a row.")
@click.option("--steps", type=int, default=20, show_default=True, metavar="N", help="Steps a mode.")
@_bench_options
@click.pass_obj
def profile(group: Mapping[str, Any], batch: int, context: int, steps: int, **values: Any) -> int:
    """Host and device time by torch's profiler."""
    plan = {"batch": batch, "context": context, "steps": steps}
    configs = _configs(group, values, {"max_batch": max(MAX_BATCH, batch)})

    def measure(progress: Any) -> Any:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own lines on stderr
        from engine.bench.profile import ProfilePlan, bench_profile

        return bench_profile(configs, ProfilePlan(**plan, modes=_modes(configs)), progress)

    return _run("profile", plan, values, measure)


@bench.command()
@click.option("--replays", type=int, default=200, show_default=True, metavar="N", help="Calls a round.")
@click.option("--device", metavar="DEVICE", help="cuda or cuda:N.")
@_json
@click.pass_obj
def launch(group: Mapping[str, Any], replays: int, device: str | None, json_file: Path | None) -> int:
    """A tiny network, eager against a graph.

    Three layers, 128 to 256 to 128: its output is copied into a preallocated tensor, captured once and
    replayed.
    """
    plan = {"replays": replays}
    # Checked as every device is.
    from tui_infer.config_sources import load_config

    usual = load_config().engine.get("device")
    config = engine_config({"device": usual}, {"device": group.get("device")}, {"device": device})

    def measure(progress: Any) -> Any:
        from engine.bench.launch import LaunchPlan, bench_launch

        return bench_launch(config.device, LaunchPlan(**plan), progress)

    return _run("launch", plan, {"json_file": json_file}, measure)


@bench.command()
@click.option(
    "--rows", type=Integers(), default="1,8,16,32", show_default=True, help="Batch sizes to tune for."
)
@_bench_options
@click.pass_obj
def tiles(group: Mapping[str, Any], rows: tuple[int, ...], **values: Any) -> int:
    """Tune the kernels to this card and model.

    Tries how the matrix kernels of a decode step are cut, by timing whole steps, and keeps what is fastest
    in the cache folder, where engines that are started later find it.
    """
    plan: dict[str, Any] = {"rows": tuple(dict.fromkeys(rows))}
    configs = _configs(group, values)

    def measure(progress: Any) -> Any:
        from engine.bench.tiles import TilesPlan, bench_tiles

        return bench_tiles(configs, TilesPlan(**plan), progress)

    return _run("tiles", plan, values, measure)


@bench.command()
@click.option(
    "--lengths",
    type=Integers(),
    help="Prompt lengths in tokens.  [default: powers of two from 128 to 8192; to 1024 without a GPU]",
)
@click.option("--repeats", type=int, default=3, show_default=True, metavar="N", help="Prompts a length.")
@_bench_options
@click.pass_obj
def prefill(group: Mapping[str, Any], lengths: tuple[int, ...] | None, repeats: int, **values: Any) -> int:
    """Prompts by length, new and cached."""
    plan: dict[str, Any] = {"lengths": lengths, "repeats": repeats}
    configs = _configs(group, values)

    def measure(progress: Any) -> Any:
        from engine.bench.prefill import PrefillPlan, bench_prefill

        return bench_prefill(configs, PrefillPlan(**plan), progress)

    return _run("prefill", plan, values, measure)


@bench.command()
@click.option("--requests", type=int, metavar="N", help="How many.  [default: 200; 8 without a GPU]")
@click.option(
    "--rate",
    type=float,
    default=0.0,
    show_default=True,
    metavar="R",
    help="Mean arrivals a second, Poisson; 0 lets all arrive at once.",
)
@click.option(
    "--lengths",
    type=click.Choice(["lognormal", "uniform"]),
    default="lognormal",
    show_default=True,
    help="Distribution of prompt and answer lengths.",
)
@click.option(
    "--prompt-mean", type=int, metavar="N", help="Mean prompt tokens.  [default: 512; 64 without a GPU]"
)
@click.option(
    "--output-mean", type=int, metavar="N", help="Mean answer tokens.  [default: 128; 16 without a GPU]"
)
@_bench_options
@click.pass_obj
def throughput(
    group: Mapping[str, Any],
    requests: int | None,
    rate: float,
    lengths: Any,
    prompt_mean: int | None,
    output_mean: int | None,
    **values: Any,
) -> int:
    """Requests of mixed lengths, as they arrive."""
    # Scheduling is what is measured here, so steps stay as the app makes them.
    configs = _configs(group, values, {"prefill_chunk": None})
    plan: dict[str, Any] = {"rate": rate, "lengths": lengths, "seed": configs[0].seed}

    def measure(progress: Any) -> Any:
        from engine.bench.load import LoadPlan
        from engine.bench.throughput import bench_throughput

        gpu = _has_gpu(configs)
        asked = {
            "requests": (requests, 200 if gpu else 8),
            "prompt_mean": (prompt_mean, 512 if gpu else 64),
            "output_mean": (output_mean, 128 if gpu else 16),
        }
        plan.update({name: usual if given is None else given for name, (given, usual) in asked.items()})
        return bench_throughput(configs, LoadPlan(**plan), progress)

    return _run("throughput", plan, values, measure)


def _configs(
    group: Mapping[str, Any], values: Mapping[str, Any], own: Mapping[str, Any] | None = None
) -> list[EngineConfig]:
    """One configuration a model: what was asked for, over what this measurement prefers and the settings."""
    from tui_infer.config_sources import load_config

    layers = [load_config().engine, {"prefill_chunk": PREFILL_CHUNK, **(own or {})}, group, values]
    shapes: Sequence[str] = values["shapes"]
    if shapes and (values.get("model") or group.get("model")):
        raise click.UsageError("--shape and --model both name a model; give one of them.")
    # Unknown shapes are refused before the first is measured.
    names = dict.fromkeys(map(shape_name, shapes))
    models = [{"model": f"{PREFIX}{name}"} for name in names] or [{}]
    return [engine_config(*layers, model) for model in models]


def _modes(configs: Sequence[EngineConfig]) -> tuple[Any, ...]:
    """Both modes, or the one that was asked for."""
    return ("eager", "graph") if configs[0].mode == "auto" else (configs[0].mode,)


def _has_gpu(configs: Sequence[EngineConfig]) -> bool:
    """Whether a CUDA device is used; imports torch."""
    from engine.device import find_device

    return find_device(configs[0].device).device.type == "cuda"


def _run(
    name: str,
    plan: Mapping[str, Any],
    values: Mapping[str, Any],
    measure: Callable[[Any], Mapping[str, Any]],
) -> int:
    """Measure, print the tables, and write the JSON file where one is wanted."""
    json_file: Path | None = values["json_file"]
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise click.UsageError(f"--json {json_file}: there is no folder {json_file.parent}.")
    from tui_infer.headless import ProgressLine

    with ProgressLine(sys.stderr) as line:
        found = measure(line.show)
    from engine.bench.report import document, show, write_json

    value = document(name, plan, found)
    show(value)
    if json_file is not None:
        write_json(json_file, value)
    return 0
