"""Results as rich tables for people and as one JSON document for machines."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from engine.bench.header import header
from engine.errors import ConfigError
from engine.kernels.tiles import Tile
from engine.models.memory import size_text

PIPE_WIDTH = 120  # characters where there is no terminal to ask
MOST_COLUMNS = 9  # of a table in 80 characters

Row = Mapping[str, Any]
Column = tuple[str, str, Callable[[Any], str]]  # heading, key, format


def document(bench: str, settings: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What is written with ``--json``: header, what was asked for, and what was found."""
    return {"bench": bench, "header": header(), "settings": dict(settings), **found}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a document.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def show(value: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a document's tables, one an engine."""
    console = console or _console()
    engines = value.get("engines") or [{}]
    for engine in engines:
        own = [row for row in value["rows"] if row.get("shape") == engine.get("shape")]
        skipped = [row for row in value.get("skipped", ()) if row["shape"] == engine.get("shape")]
        ratios = [row for row in value.get("ratios", ()) if row["shape"] == engine.get("shape")]
        if engine:
            title = _title(engine, value["settings"])
            console.print(title, style="bold", highlight=False, markup=False)
        if own:
            columns = COLUMNS[value["bench"]]
            upright = columns[0][1] == "mode" and len(columns) > MOST_COLUMNS
            console.print(_figures(columns, own, ratios) if upright else _lines(columns, own))
        notes = [note["text"] for note in value.get("notes", ()) if note["shape"] == engine.get("shape")]
        for line in (*_reasons(skipped), *notes, *_facts(engine)):
            console.print(line, highlight=False, markup=False)
    console.print(_origin(value["header"]), style="dim", highlight=False, markup=False)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def _lines(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """A line a row."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(_cell(row.get(key), form) for _, key, form in columns))
    return table


def _figures(columns: Sequence[Column], rows: Sequence[Row], ratios: Sequence[Row]) -> Table:
    """A line a figure and a column a row, for few rows of many figures."""
    (head, mode, name), *figures = columns
    table = Table(head, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_column(name(row[mode]), justify="right")
    for _ in ratios:
        table.add_column("eager / graph", justify="right")
    for heading, key, form in figures:
        cells = [_cell(row.get(key), form) for row in rows]
        table.add_row(heading, *cells, *(_cell(row.get(key), _ratio) for row in ratios))
    return table


def _cell(value: Any, form: Callable[[Any], str]) -> str:
    return "–" if value is None else form(value)


def _title(engine: Row, settings: Row) -> str:
    context = f" · context {settings['context']}" if "context" in settings else ""
    return (
        f"{engine['shape']} · {engine['impl']} · {engine['attention']}, blocks of {engine['block_size']} · "
        f"{engine['dtype']} · {engine['device_name']}{context}"
    )


def _reasons(skipped: Iterable[Row]) -> list[str]:
    """What was left out and why, equal reasons in one line."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for row in skipped:
        size = row.get("batch", row.get("prompt_tokens"))
        grouped.setdefault((row.get("mode", ""), row["reason"]), []).extend(
            [] if size is None else [str(size)]
        )
    lines = []
    for (mode, reason), sizes in grouped.items():
        what = f"{mode} at {', '.join(sizes)}" if mode and sizes else mode or ", ".join(sizes)
        lines.append(f"not measured: {what + ': ' if what else ''}{reason}")
    return lines


def _facts(engine: Row) -> list[str]:
    if not engine:
        return []
    parts = [f"copies move {_number(engine['copy_gb_per_s'])} GB/s, read and write together"]
    if engine["graph_capture_s"]:
        sizes = ", ".join(map(str, engine["graph_sizes"]))
        memory = f" in {size_text(engine['graph_bytes'])}" if engine["graph_bytes"] else ""
        parts.append(f"graphs for {sizes} captured in {engine['graph_capture_s']:.2f} s{memory}")
    return parts


def _origin(header: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    return f"{header['machine']}; Python {header['python']}, {versions}; {header['date']}"


def _text(value: Any) -> str:
    return str(value)


def _tile(value: Sequence[Any]) -> str:
    return str(Tile(*value))


def _ms(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _count(value: Sequence[Any]) -> str:
    return str(len(value))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:.2f}×"


def _percent(value: float) -> str:
    return f"{value:.1%}"


COLUMNS: dict[str, tuple[Column, ...]] = {
    "decode": (
        ("mode", "mode", _text),
        ("batch", "batch", _text),
        ("ms a step", "ms_p50", _ms),
        ("p99", "ms_p99", _ms),
        ("device", "device_ms_p50", _ms),
        ("host", "host_ms_p50", _ms),
        ("tokens/s", "tokens_per_s", _number),
        ("GB/s", "gb_per_s", _number),
        ("of copies", "share_of_copy", _percent),
    ),
    "ab": (
        ("batch", "batch", _text),
        ("graph of", "graph_size", _text),
        ("steps", "steps", _text),
        ("eager ms", "eager_ms", _ms),
        ("graph ms", "graph_ms", _ms),
        ("ratio", "ratio", _ratio),
        ("eager host", "eager_host_ms", _ms),
        ("graph host", "graph_host_ms", _ms),
        ("eager device", "eager_device_ms", _ms),
        ("graph device", "graph_device_ms", _ms),
    ),
    "profile": (
        ("mode", "mode", _text),
        ("batch", "batch", _text),
        ("steps", "steps", _text),
        ("CPU self total, ms", "cpu_self_total_ms", _ms),
        ("CPU ms a step", "cpu_ms_per_step", _ms),
        ("  of it not waiting", "cpu_busy_ms_per_step", _ms),
        ("device total, ms", "device_total_ms", _ms),
        ("kernels a step", "kernels_per_step", _number),
        ("launch ms a step, unprofiled", "launch_ms_p50", _ms),
        ("wall ms a step, unprofiled", "ms_p50", _ms),
    ),
    "launch": (
        ("batch", "batch", _text),
        ("replays", "replays", _text),
        ("eager ms", "eager_ms", _ms),
        ("replay ms", "replay_ms", _ms),
        ("ratio", "ratio", _ratio),
        ("output before", "output_address_before", _text),
        ("output after", "output_address_after", _text),
    ),
    "prefill": (
        ("prompt", "prompt_tokens", _text),
        ("cached", "cached_tokens", _text),
        ("computed", "computed_tokens", _text),
        ("steps", "steps", _text),
        ("ms", "ms_p50", _ms),
        ("device", "device_ms_p50", _ms),
        ("first token ms", "ttft_ms_p50", _ms),
        ("tokens/s", "tokens_per_s", _number),
    ),
    "tiles": (
        ("rows", "rows", _text),
        ("product", "product", _text),
        ("tile before", "before", _tile),
        ("ms", "before_ms", _ms),
        ("tile after", "after", _tile),
        ("ms", "after_ms", _ms),
        ("left out", "left_out", _count),
    ),
    "throughput": (
        ("mode", "mode", _text),
        ("requests", "requests", _text),
        ("prompt tokens", "prompt_tokens", _number),
        ("output tokens", "output_tokens", _number),
        ("seconds", "seconds", _number),
        ("tokens/s", "tokens_per_s", _number),
        ("output tokens/s", "output_tokens_per_s", _number),
        ("requests/s", "requests_per_s", _number),
        ("first token, ms p50", "ttft_ms_p50", _ms),
        ("first token, ms p99", "ttft_ms_p99", _ms),
        ("between tokens, ms p50", "itl_ms_p50", _ms),
        ("between tokens, ms p99", "itl_ms_p99", _ms),
        ("mean decode batch", "mean_batch", _number),
        ("steps by graph", "graph_share", _percent),
        ("preemptions", "preemptions", _text),
    ),
}
