"""GPU: what the card says of itself, or one line that says why it says nothing, and what we hold of it."""

from rich.style import Style

from engine.records import EngineStatus
from tui_infer.engine_words import about_weights
from tui_infer.nvml import GpuReading
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.lines import (
    Line,
    byte_size,
    counted,
    fit,
    joined,
    sparkline,
    spread,
    stacked,
    width_of,
    wrap_words,
)
from tui_infer.widgets.inspector.panel import Panel

GIB = 1024**3
ALL_ROWS = 6
_LABEL, _VALUE = 7, 18  # "memory ", "126.4 of 140.4 GiB"
_LEAST_GAUGE, _LEAST_SPARK, _MOST_SPARK = 4, 8, 40
_NOTE_ROW = 50  # letters of the note about weights that a row takes, about
_USUAL_LIMIT_C = 95  # where the card does not tell at what temperature it slows down


class GpuPanel(Panel):
    NAME = "GPU"

    def caption(self, frame: Frame, width: int) -> Line:
        """Nobody records the card: beside the past it shows the present."""
        return [("now", frame.ink.warn)] if frame.view.at is not None else []

    def headline(self, frame: Frame, width: int) -> Line:
        status = frame.view.status
        if status is None or status.device == "cpu":
            return []
        name = frame.view.gpu.name or status.device_name
        return [(f"{name} · {status.device}", frame.ink.dim)]

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        ink, gpu, status = frame.ink, frame.view.gpu, frame.view.status
        if status is None:
            return [[(frame.waiting_text, ink.dim)]]
        ours = _ours(status, gpu, ink, width)
        if reason := why_no_numbers(status, gpu):
            rows: list[Line] = [[(row, ink.dim)] for row in wrap_words(reason, width, max(1, height - 1))]
            note = about_weights(status) if status.device == "cpu" else ""
            rows += [ours, *([(row, ink.dim)] for row in wrap_words(note, width, height - len(rows) - 1))]
            return rows[:height]
        brief = _brief(gpu, ink)
        gap = (" · ", ink.faint)
        if height == 1:
            return [joined(brief, gap, width)]
        if height == 2:
            first = joined(brief[:3], gap, width)
            return [first, joined(brief[3:] if brief[2][0] in first else brief[2:], gap, width)]
        busy, memory, power = (
            _busy(gpu, ink, width),
            _memory(status, gpu, ink, width),
            _power(gpu, ink, width),
        )
        if height == 3:
            return [busy, memory, joined(brief[2:], gap, width)]
        if height < ALL_ROWS:
            rows = [busy, memory, *([ours] if height == 5 else []), power]
            return [*rows, joined(brief[3:], gap, width)]
        return [busy, memory, ours, power, _sm_clock(gpu, ink, width), _warmth(gpu, ink, width)]


def why_no_numbers(status: EngineStatus | None, gpu: GpuReading) -> str:
    """One line, or an empty string when there is something to show."""
    if status is None:
        return "waiting for the engine"
    if status.device == "cpu":
        return f"CPU: every step runs on {status.device_name}, {counted(status.threads, 'thread')}"
    if not status.device.startswith("cuda"):
        return f"{status.device_name}: NVML speaks of NVIDIA cards only"
    return gpu.reason


def gpu_rows(status: EngineStatus | None, gpu: GpuReading) -> int:
    """Rows that the panel can fill."""
    if status is None:
        return 1
    if not why_no_numbers(status, gpu):
        return ALL_ROWS
    note = about_weights(status) if status.device == "cpu" else ""
    return 2 + -(-len(note) // _NOTE_ROW)


# --- rows ------------------------------------------------------------------------------------------


def _row(label: str, bar: list[tuple[float, Style]], value: Line, past: str, width: int, ink: Ink) -> Line:
    """Label, bar, value, and the past at the right end as far as there is room."""
    room = width - _LABEL - _VALUE - 1
    spark = min(_MOST_SPARK, (room - 1) * 4 // 9)
    spark = spark if spark >= _LEAST_SPARK else 0
    cells = room - (spark + 1 if spark else 0)
    line: Line = [(label.ljust(_LABEL), ink.dim)]
    if cells >= _LEAST_GAUGE:
        line += [*stacked(bar, cells, ink.free), (" ", ink.dim)]
    line += value
    if spark:
        pad = width - width_of(line) - spark
        line += [(" " * pad, ink.dim), (past[-spark:].rjust(spark), ink.shade(ink.device, 70))]
    return fit(line, width)


def _number(text: str, of: str, ink: Ink) -> Line:
    return [(f"{text:>5}", ink.text), (of, ink.dim)]


def _absent(label: str, gpu: GpuReading, name: str, ink: Ink, width: int) -> Line:
    reason = gpu.missing.get(name, "")
    line: Line = [
        (label.ljust(_LABEL), ink.dim),
        ("n/a", ink.dim),
        (f" {reason}" if reason else "", ink.faint),
    ]
    return fit(line, width)


def _past(gpu: GpuReading, name: str, top: float | None) -> str:
    """Marks of earlier readings; the highest leaves a gap, or those of rows below each other would merge."""
    values = gpu.past.get(name, ())
    return sparkline(values, (top or max(values, default=0.0)) * 8 / 7)


def _busy(gpu: GpuReading, ink: Ink, width: int) -> Line:
    if gpu.utilisation is None:
        return _absent("busy", gpu, "utilisation", ink, width)
    # A busy GPU is the goal here, not an alarm: the bar keeps one colour.
    bar = [(gpu.utilisation / 100, ink.device)]
    value = _number(f"{gpu.utilisation:.0f}", " %", ink)
    return _row("busy", bar, value, _past(gpu, "utilisation", 100), width, ink)


def _memory(status: EngineStatus, gpu: GpuReading, ink: Ink, width: int) -> Line:
    """The card's memory; the bar is cut up into what is ours, in the colours of the row below."""
    if gpu.memory_used is None or not gpu.memory_total:
        return _absent("memory", gpu, "memory", ink, width)
    used, total = gpu.memory_used, gpu.memory_total
    parts = _parts(status, gpu, ink)
    if sum(size for _, size, _ in parts) > used:  # a card that counts less than we hold: its word stands
        parts = [("", used, ink.device)]
    bar = [(size / total, style) for _, size, style in parts]
    value = _number(f"{used / GIB:.1f}", f" of {total / GIB:.1f} GiB", ink)
    return _row("memory", bar, value, _past(gpu, "memory_used", total), width, ink)


def _parts(status: EngineStatus, gpu: GpuReading, ink: Ink) -> list[tuple[str, int, Style]]:
    """What takes memory: ours by purpose, and what else the card counts as used."""
    parts = [
        ("weights", status.weight_bytes, ink.launch),
        ("KV", status.kv_bytes, ink.graph),
        ("graphs", status.graph_bytes, ink.read),
    ]
    if gpu.memory_used is not None:
        parts.append(("other", max(0, gpu.memory_used - sum(size for _, size, _ in parts)), ink.dim))
    return [part for part in parts if part[1]]


def _ours(status: EngineStatus, gpu: GpuReading, ink: Ink, width: int) -> Line:
    """The colours of the memory bar, or, where there is none, what the engine holds."""
    groups: list[Line] = [
        [(f"{name} ", style), (byte_size(size), ink.text)] for name, size, style in _parts(status, gpu, ink)
    ]
    label = "" if gpu.memory_used is not None else "memory"
    return [(label.ljust(_LABEL), ink.dim), *joined(groups, ("  ", ink.dim), width - _LABEL)]


def _power(gpu: GpuReading, ink: Ink, width: int) -> Line:
    if gpu.power is None:
        return _absent("power", gpu, "power", ink, width)
    limit = gpu.power_limit
    share = gpu.power / limit if limit else 0.0
    value = _number(f"{gpu.power:.0f}", f" of {limit:.0f} W" if limit else " W", ink)
    return _row("power", [(share, ink.load(share))], value, _past(gpu, "power", limit), width, ink)


def _sm_clock(gpu: GpuReading, ink: Ink, width: int) -> Line:
    if gpu.sm_clock is None:
        return _absent("SM", gpu, "sm_clock", ink, width)
    most = gpu.sm_clock_max
    value = _number(f"{gpu.sm_clock:,}", f" of {most:,} MHz" if most else " MHz", ink)
    share = gpu.sm_clock / most if most else 0.0
    return _row("SM", [(share, ink.device)], value, _past(gpu, "sm_clock", most), width, ink)


def _warmth(gpu: GpuReading, ink: Ink, width: int) -> Line:
    """Temperature at the left, the memory's clock at the right."""
    limit = gpu.temperature_limit or _USUAL_LIMIT_C
    left = _absent("temp", gpu, "temperature", ink, width)
    if gpu.temperature is not None:
        left = [("temp   ", ink.dim), (f"{gpu.temperature} °C", ink.load(gpu.temperature / limit))]
    right: Line = [("memory clock ", ink.dim), *_absent("", gpu, "memory_clock", ink, width)[1:]]
    if gpu.memory_clock is not None:
        right = [right[0], (f"{gpu.memory_clock:,}", ink.text), (" MHz", ink.dim)]
    spark = min(_MOST_SPARK, (width - width_of(left) - width_of(right) - 5) // 2)
    if spark >= _LEAST_SPARK - 3:
        style = ink.shade(ink.device, 70)
        left += [(" ", ink.dim), (_past(gpu, "temperature", limit)[-spark:], style)]
        clock = _past(gpu, "memory_clock", gpu.memory_clock_max)[-spark:]
        right += [(" ", ink.dim), (clock.rjust(min(spark, _LEAST_SPARK)), style)]
    return spread(left, right, width, ink.dim)


# --- without bars ----------------------------------------------------------------------------------


def _brief(gpu: GpuReading, ink: Ink) -> list[Line]:
    """Every number on its own: busy, memory, power, temperature, clocks."""
    limit = gpu.temperature_limit or _USUAL_LIMIT_C
    warmth = ink.load((gpu.temperature or 0) / limit)
    return [
        _short("busy", gpu.utilisation, "{:.0f} %", " busy", ink),
        _short_memory(gpu, ink),
        _short("power", gpu.power, "{:.0f}", f"/{gpu.power_limit:.0f} W" if gpu.power_limit else " W", ink),
        [(f"{gpu.temperature} °C", warmth)] if gpu.temperature is not None else _none("temp", ink),
        [("SM ", ink.dim), *_short("", gpu.sm_clock, "{:,}", "" if gpu.memory_clock else " MHz", ink)],
        [("mem ", ink.dim), *_short("", gpu.memory_clock, "{:,}", " MHz", ink)],
    ]


def _short(name: str, number: float | None, form: str, unit: str, ink: Ink) -> Line:
    return _none(name, ink) if number is None else [(form.format(number), ink.text), (unit, ink.dim)]


def _short_memory(gpu: GpuReading, ink: Ink) -> Line:
    if gpu.memory_used is None or not gpu.memory_total:
        return _none("memory", ink)
    return [(f"{gpu.memory_used / GIB:.1f}", ink.text), (f"/{gpu.memory_total / GIB:.1f} GiB", ink.dim)]


def _none(name: str, ink: Ink) -> Line:
    return [(f"{name} n/a".lstrip(), ink.dim)]
