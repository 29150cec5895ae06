"""One step's whole record, in lines."""

from collections import Counter
from time import localtime, strftime

from engine.records import StepRecord
from tui_infer.history import StepHistory, decode_rows
from tui_infer.sanitize import one_line
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, counted, fit, milliseconds, spread, width_of, wrap_words

_VERBS = {
    "allocate": "allocated",
    "share": "shared",
    "copy": "copied",
    "publish": "published",
    "release": "released",
    "evict": "evicted",
}


def position_at(history: StepHistory, step: int) -> int:
    """Position of this step, or of the first kept one behind it, else of the newest. Needs one record."""
    low, high = 0, len(history) - 1
    while low < high:
        middle = (low + high) // 2
        if history[middle].index < step:
            low = middle + 1
        else:
            high = middle
    return low


def record_at(history: StepHistory, step: int) -> StepRecord:
    """The record at ``position_at``."""
    return history[position_at(history, step)]


def record_lines(frame: Frame, record: StepRecord, width: int) -> list[Line]:
    """What the engine said of a step, most important lines first."""
    lines = [*_what(frame, record, width), *_times(frame, record, width), *_rows(frame, record, width)]
    lines += [*_tokens(frame, record, width), *_blocks(frame, record, width)]
    lines += _ends(frame, record, width)
    return lines


def _wrapped(label: str, groups: list[Line], width: int, frame: Frame) -> list[Line]:
    """Groups side by side, on as many lines as they take."""
    dim = frame.ink.dim
    lines: list[Line] = [[(label, dim)] if label else []]
    for group in groups:
        if width_of(lines[-1]) + width_of(group) + 2 > width and len(lines[-1]) > 1:
            lines.append([(" " * len(label), dim)] if label else [])
        gap = [("  ", dim)] if width_of(lines[-1]) > len(label) else []
        lines[-1] = [*lines[-1], *gap, *group]
    return [fit(line, width) for line in lines]


def _what(frame: Frame, record: StepRecord, width: int) -> list[Line]:
    ink = frame.ink
    reason: list[Line] = []
    line: Line = [("step ", ink.dim), (f"{record.index:,} ", ink.strong)]
    line.append((record.kind, ink.prefill if record.kind == "prefill" else ink.text))
    rows = decode_rows(record)
    if record.graph_size is not None:
        line.append((f" graph {record.graph_size}", ink.graph))
        if record.graph_size > rows:
            line.append((f" for {counted(rows, 'row')}", ink.dim))
        if record.kind == "mixed":  # the graph is of the decode batch alone
            line += [(" + ", ink.faint), ("eager prefill", ink.prefill)]
    else:
        line.append((" eager", ink.eager))
        why = one_line(record.reason, 300)
        if why and width_of(line) + len(why) + 2 > width:
            reason = [[(text, ink.dim)] for text in wrap_words(why, width, 2)]
        elif why:
            line.append((f": {why}", ink.dim))
    clock = strftime("%H:%M:%S", localtime(record.t)) + f"{record.t % 1:.3f}"[1:]
    return [spread(line, [(clock, ink.faint)], width, ink.dim), *reason]


def _times(frame: Frame, record: StepRecord, width: int) -> list[Line]:
    ink, ms = frame.ink, record.ms
    launch = "launch" if ms.device is not None else "compute"
    groups: list[Line] = [[(f"{milliseconds(ms.total)} ms", ink.strong)]]
    parts = [("schedule", ms.schedule, ink.schedule), (launch, ms.launch, ink.launch)]
    parts += [("device", ms.device, ink.device)] if ms.device is not None else []
    parts.append(("read", ms.read, ink.read))
    groups += [[(f"{name} ", style), (milliseconds(value), ink.text)] for name, value, style in parts]
    return _wrapped("", groups, width, frame)


def _rows(frame: Frame, record: StepRecord, width: int) -> list[Line]:
    """Each row with its chat's letter: the context of a decode row, the chunk of a prefill."""
    ink = frame.ink
    groups: list[Line] = []
    for row in record.rows:
        tag = frame.tag(row.request)
        letter = (tag.letter, ink.letter(tag.color)) if tag else ("?", ink.dim)
        if row.prefill:
            groups.append([letter, (f" +{row.tokens}→{row.context}", ink.prefill)])
        else:
            groups.append([letter, (f" {row.context}", ink.text)])
    return _wrapped("rows ", groups, width, frame)[:3]


def _tokens(frame: Frame, record: StepRecord, width: int) -> list[Line]:
    ink = frame.ink
    groups: list[Line] = [[(f"{record.decode_tokens} decoded", ink.text)]]
    if record.prefill_tokens:
        groups.append([(f"{record.prefill_tokens} prefill", ink.prefill)])
    if record.cached_tokens:
        groups.append([(f"{record.cached_tokens} cached", ink.cached)])
    groups.append([(f"{record.waiting} waiting", ink.warn if record.waiting else ink.faint)])
    return _wrapped("tokens ", groups, width, frame)


def _blocks(frame: Frame, record: StepRecord, width: int) -> list[Line]:
    ink, blocks = frame.ink, record.blocks
    changes = Counter(change.kind for change in record.block_changes)
    groups: list[Line] = [[(f"{count} {_VERBS[kind]}", ink.text)] for kind, count in changes.items()]
    groups = groups or [[("no change", ink.dim)]]
    groups.append([(f"{blocks.used:,} used {blocks.cached:,} cached {blocks.free:,} free", ink.faint)])
    return _wrapped("blocks ", groups, width, frame)


def _ends(frame: Frame, record: StepRecord, width: int) -> list[Line]:
    ink = frame.ink
    lines: list[Line] = []
    for word, requests, style in (
        ("preempted ", record.preempted, ink.error),
        ("finished ", record.finished, ink.ok),
    ):
        letters = [tag.letter if (tag := frame.tag(request)) else "?" for request in requests]
        if letters:
            lines.append(fit([(word, style), (" ".join(letters), ink.text)], width))
    return lines
