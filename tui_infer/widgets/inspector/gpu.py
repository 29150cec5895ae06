"""GPU: what the card says of itself, or one line that says why it says nothing."""

from engine.records import EngineStatus
from tui_infer.nvml import GpuReading
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.lines import Line, counted, fit, gauge, joined, sparkline, wrap_words
from tui_infer.widgets.inspector.panel import Panel

GIB = 1024**3
_LABEL = 7


class GpuPanel(Panel):
    NAME = "GPU"

    def headline(self, frame: Frame, width: int) -> Line:
        status = frame.view.status
        if status is None or status.device == "cpu":
            return []
        name = frame.view.gpu.name or status.device_name
        return [(f"{name} · {status.device}", frame.ink.dim)]

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        ink, gpu = frame.ink, frame.view.gpu
        unknown = frame.view.status is None
        reason = frame.waiting_text if unknown else why_no_numbers(frame.view.status, gpu)
        if reason:
            return [[(row, ink.dim)] for row in wrap_words(reason, width, height)]
        if height == 1:
            return [joined(_brief(gpu, ink), (" · ", ink.faint), width)]
        if height == 2:
            return [
                joined(_brief(gpu, ink)[:2], (" · ", ink.faint), width),
                joined(_brief(gpu, ink)[2:], (" · ", ink.faint), width),
            ]
        lines = [
            _use(gpu, ink, width),
            _memory(gpu, ink, width),
            _power(gpu, ink, width),
            joined(_clocks(gpu, ink), ("   ", ink.dim), width),
        ]
        return (
            lines[:height]
            if height >= 4
            else [*lines[:2], joined(_brief(gpu, ink)[2:], ("   ", ink.dim), width)]
        )


def why_no_numbers(status: EngineStatus | None, gpu: GpuReading) -> str:
    """One line, or an empty string when there is something to show."""
    if status is None:
        return "waiting for the engine"
    if status.device == "cpu":
        return f"CPU: every step runs on {status.device_name}, {counted(status.threads, 'thread')}"
    if not status.device.startswith("cuda"):
        return f"{status.device_name}: NVML speaks of NVIDIA cards only"
    return gpu.reason


def _row(label: str, share: float | None, value: Line, width: int, ink: Ink) -> Line:
    room = width - _LABEL - 22
    line: Line = [(label.ljust(_LABEL), ink.dim)]
    if room >= 4:
        style = ink.load(share) if share is not None else ink.free
        line += gauge(share or 0.0, room, style, ink.free)
        line.append((" ", ink.dim))
    return fit([*line, *value], width)


def _missing(gpu: GpuReading, name: str, ink: Ink) -> Line:
    reason = gpu.missing.get(name, "")
    return [("n/a", ink.dim), (f" {reason}" if reason else "", ink.faint)]


def _use(gpu: GpuReading, ink: Ink, width: int) -> Line:
    if gpu.utilisation is None:
        return _row("busy", None, _missing(gpu, "utilisation", ink), width, ink)
    percent: Line = [(f"{gpu.utilisation:3.0f} %", ink.text), (" ", ink.dim)]
    past = sparkline(gpu.utilisation_history[-15:], 100)
    # A busy GPU is the goal here, not an alarm: the gauge keeps one colour.
    line = _row("busy", gpu.utilisation / 100, [*percent, (past, ink.device)], width, ink)
    return [(text, ink.device if style in (ink.ok, ink.warn, ink.error) else style) for text, style in line]


def _memory(gpu: GpuReading, ink: Ink, width: int) -> Line:
    if gpu.memory_used is None or not gpu.memory_total:
        return _row("memory", None, _missing(gpu, "memory", ink), width, ink)
    used, total = gpu.memory_used / GIB, gpu.memory_total / GIB
    value: Line = [(f"{used:.1f}", ink.text), (f" of {total:.1f} GiB", ink.dim)]
    return _row("memory", used / total, value, width, ink)


def _power(gpu: GpuReading, ink: Ink, width: int) -> Line:
    if gpu.power is None:
        return _row("power", None, _missing(gpu, "power", ink), width, ink)
    value: Line = [(f"{gpu.power:.0f}", ink.text)]
    value.append((f" of {gpu.power_limit:.0f} W", ink.dim) if gpu.power_limit else (" W", ink.dim))
    share = gpu.power / gpu.power_limit if gpu.power_limit else None
    return _row("power", share, value, width, ink)


def _clocks(gpu: GpuReading, ink: Ink) -> list[Line]:
    groups: list[Line] = []
    if gpu.temperature is not None:
        limit = gpu.temperature_limit or 95
        style = ink.load(gpu.temperature / limit)
        groups.append([("temp   ", ink.dim), (f"{gpu.temperature} °C", style)])
    else:
        groups.append([("temp   ", ink.dim), *_missing(gpu, "temperature", ink)])
    if gpu.sm_clock is not None:
        most = f" of {gpu.sm_clock_max:,}" if gpu.sm_clock_max else ""
        groups.append([("SM ", ink.dim), (f"{gpu.sm_clock:,}", ink.text), (f"{most} MHz", ink.dim)])
    else:
        groups.append([("SM ", ink.dim), *_missing(gpu, "sm_clock", ink)])
    if gpu.memory_clock is not None:
        groups.append([("memory ", ink.dim), (f"{gpu.memory_clock:,}", ink.text), (" MHz", ink.dim)])
    return groups


def _brief(gpu: GpuReading, ink: Ink) -> list[Line]:
    """Every number without a gauge, most important first."""
    groups: list[Line] = []
    if gpu.utilisation is not None:
        groups.append([(f"{gpu.utilisation:.0f} %", ink.text), (" busy", ink.dim)])
    else:
        groups.append([("busy ", ink.dim), ("n/a", ink.dim)])
    if gpu.memory_used is not None and gpu.memory_total:
        used, total = gpu.memory_used / GIB, gpu.memory_total / GIB
        groups.append([(f"{used:.1f}", ink.text), (f"/{total:.1f} GiB", ink.dim)])
    else:
        groups.append([("memory n/a", ink.dim)])
    if gpu.power is not None:
        limit = f"/{gpu.power_limit:.0f}" if gpu.power_limit else ""
        groups.append([(f"{gpu.power:.0f}", ink.text), (f"{limit} W", ink.dim)])
    else:
        groups.append([("power n/a", ink.dim)])
    if gpu.temperature is not None:
        groups.append([(f"{gpu.temperature} °C", ink.load(gpu.temperature / (gpu.temperature_limit or 95)))])
    if gpu.sm_clock is not None:
        groups.append([(f"{gpu.sm_clock:,}", ink.text), (" MHz", ink.dim)])
    return groups
