"""Figures of other engines, measured in the same run, and ours beside them in Markdown tables.

A file of peers has one JSON object a line. Steps: ``peer``, ``shape``, ``mode``, ``bs`` (batch), ``ctx``
(tokens of context in the middle of the steps), ``ms`` (median wall time from one token on the host to the
next, all rows live). Mixed load: ``throughput`` (output tokens a second) in place of ``bs`` and ``ms``.
Other lines, such as an engine's settings, are kept as they are.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import ConfigError

Row = Mapping[str, Any]

NAMES = {"vllm": "vLLM", "nano": "nano-vllm", "cb": "transformers, continuous batching", "hf": "transformers"}
OURS = "tui-infer"


def read_peers(path: Path) -> list[Row]:
    """The lines of a file.

    Raises:
        ConfigError: it cannot be read, or a line is no figure of a peer.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"peer", "shape", "mode"} <= row.keys():
            raise ConfigError(f"{path}, line {number} is no figure of a peer: {line[:60]!r}.")
        rows.append(row)
    return rows


def fastest(peers: Iterable[Row]) -> dict[tuple[str, str, int], float]:
    """Milliseconds a step by shape, engine and batch: of runs made twice, the peer's better one."""
    found: dict[tuple[str, str, int], float] = {}
    for row in peers:
        if "ms" in row and "bs" in row:
            key = (row["shape"], engine_name(row), row["bs"])
            found[key] = min(row["ms"], found.get(key, row["ms"]))
    return found


def engine_name(row: Row) -> str:
    """A peer and its mode, as people know them."""
    return f"{NAMES.get(row['peer'], row['peer'])}, {row['mode']}"


def comparison(ours: Sequence[Row], peers: Sequence[Row]) -> str:
    """Median milliseconds a step by batch, a line an engine; behind a peer's, ours over it.

    Contexts are equal; our rows and a peer's of other contexts than ours are left out.
    """
    contexts = {row["context"] for row in ours}
    theirs = fastest(row for row in peers if row.get("ctx") in contexts)
    own = {(row["shape"], row["batch"]): row["ms_p50"] for row in ours}
    batches = sorted({batch for _, batch in own} | {batch for *_, batch in theirs})
    lines = [["shape", "engine", *(f"batch {batch}" for batch in batches)]]
    for shape in dict.fromkeys([shape for shape, _ in own] + [shape for shape, *_ in theirs]):
        mine = [own.get((shape, batch)) for batch in batches]
        if any(mine):
            lines.append([shape, OURS, *(_ms(ms) for ms in mine)])
        for engine in dict.fromkeys(name for found, name, _ in theirs if found == shape):
            times = [theirs.get((shape, engine, batch)) for batch in batches]
            lines.append([shape, engine, *(_against(ms, own_ms) for ms, own_ms in zip(times, mine))])
    return markdown(lines)


def loads(ours: Sequence[Row], peers: Sequence[Row]) -> str:
    """The mixed load: output tokens a second of each engine, and our slowest over a peer's."""
    slowest: dict[str, float] = {}
    for row in ours:
        rate = row["output_tokens_per_s"]
        slowest[row["shape"]] = min(rate, slowest.get(row["shape"], rate))
    lines = [["shape", "engine", "output tokens/s", f"{OURS} over it"]]
    for row in ours:
        lines.append(
            [
                row["shape"],
                f"{OURS}, temperature {row['temperature']}",
                f"{row['output_tokens_per_s']:,.0f}",
                "",
            ]
        )
    for row in peers:
        if "throughput" in row:
            ratio = f"{slowest[row['shape']] / row['throughput']:.2f}" if row["shape"] in slowest else ""
            lines.append([row["shape"], engine_name(row), f"{row['throughput']:,.0f}", ratio])
    return markdown(lines)


STEADY: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("batch", "batch", str),
    ("context", "context_mean", "{:,}".format),
    ("ms a step", "ms_p50", "{:.3f}".format),
    ("p99", "ms_p99", "{:.3f}".format),
    ("device", "device_ms_p50", "{:.3f}".format),
    ("p99", "device_ms_p99", "{:.3f}".format),
    ("host work", "work_ms_p50", "{:.3f}".format),
    ("tokens/s", "tokens_per_s", "{:,.0f}".format),
    ("GB/s", "gb_per_s", "{:,.0f}".format),
    ("of copies", "share_of_copy", "{:.1%}".format),
)


def steady(rows: Sequence[Row]) -> str:
    """Our own steps in full: times, rates, and wall time over device time."""
    lines = [["shape", *(heading for heading, *_ in STEADY), "wall : device"]]
    for row in rows:
        cells = ["" if row[key] is None else form(row[key]) for _, key, form in STEADY]
        device = row["device_ms_p50"]
        lines.append([row["shape"], *cells, f"{row['ms_p50'] / device:.3f}" if device else ""])
    return markdown(lines)


def prompts(rows: Sequence[Row]) -> str:
    """Time to the first token of new prompts and of cached ones."""
    lines = [["shape", "prompt", "cached", "steps", "first token, ms", "prompt tokens/s"]]
    for row in rows:
        counts = (f"{row[key]:,}" for key in ("prompt_tokens", "cached_tokens", "steps"))
        lines.append([row["shape"], *counts, f"{row['ttft_ms_p50']:.2f}", f"{row['tokens_per_s']:,.0f}"])
    return markdown(lines)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table whose first line is its heading."""
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    rows.insert(1, "|" + "---|" * len(lines[0]))
    return "\n".join(rows)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _against(ms: float | None, own_ms: float | None) -> str:
    """A peer's time, and ours over it."""
    if ms is None or own_ms is None:
        return _ms(ms)
    return f"{ms:.2f} ({own_ms / ms:.2f})"
