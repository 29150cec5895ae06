"""Batch: how many rows are active, which graph was replayed for them, and why a step ran eager."""

from engine.records import StepRecord
from tui_infer.history import decode_rows
from tui_infer.sanitize import one_line
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import (
    Line,
    byte_size,
    counted,
    fit,
    joined,
    sparkline,
    spread,
    width_of,
    wrap_words,
)
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.view import graph_failures

_GAUGE_MOST_ROWS = 64


class BatchPanel(Panel):
    NAME = "Batch"

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._told: set[str] = set()  # reasons of eager steps that the rows name

    def caption(self, frame: Frame, width: int) -> Line:
        """How many other reasons of eager steps there were, and the key that makes room for them."""
        others = len(self._told and frame.view.history.eager_reasons.keys() - self._told)
        if not others:
            return []
        more = f"{others} more eager reason{'s' if others > 1 else ''}: "
        return [(more, frame.ink.dim), ("z", frame.ink.text)]

    def headline(self, frame: Frame, width: int) -> Line:
        ink, status = frame.ink, frame.view.status
        if frame.activity == "paused":
            return [("‖ paused", ink.warn)]
        if frame.activity == "past":
            return [(f"◀ step {frame.view.at:,}", ink.warn)]
        if frame.activity == "dead":
            return [("stopped", ink.error)]
        if status is None:
            return []
        mode = frame.view.mode
        if frame.activity == "live" and frame.latest and frame.latest.kind != "prefill":
            mode = frame.latest.mode
        return [("● " if frame.activity == "live" else "○ ", ink.mode(mode)), (mode, ink.mode(mode))]

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        self._told.clear()
        if frame.view.status is None:
            return [[(frame.waiting_text, frame.ink.dim)]]
        if frame.view.status.graph_sizes:
            return self._with_graphs(frame, width, height)
        record = frame.latest
        reason = self._reason(frame, record, width, 2 if height >= 5 else 1)
        lines = [self._summary(frame, record, width)]
        gauge = self._gauge(frame, record, width)
        if height == 2:
            return [*lines, reason[0] if reason else gauge]
        lines += [gauge, *reason]
        if height > len(lines) and record is not None:
            lines.append(self._past(frame, width))
        return [*lines, *self._all_reasons(frame, width, height - len(lines))][:height]

    def _all_reasons(self, frame: Frame, width: int, room: int) -> list[Line]:
        """Where there is room, every reason of eager steps on a row of its own, the most frequent first."""
        ink, reasons = frame.ink, frame.view.history.eager_reasons
        if room < 3 or not reasons:
            return []
        title = f"{sum(reasons.values()):,} eager steps, by reason"
        lines: list[Line] = [[], [(title, ink.dim)]]
        for reason, count in reasons.most_common(room - 2):
            self._told.add(reason)
            lines.append(fit([(f"{count:>9,}  ", ink.text), (one_line(reason, 300), ink.eager)], width))
        return lines

    def _with_graphs(self, frame: Frame, width: int, height: int) -> list[Line]:
        """Captured sizes in view; which rows there are depends on the mode and not on the step, so that none
        of them jumps when a step runs eager.
        """
        record = frame.latest
        last = self._reason(frame, record, width, 1) or [self._eager_steps(frame, width)]
        failed = self._failures(frame, width)
        # What goes first where rows are few; the reason of an eager step can stand in the first row.
        wanted = ["sizes", *(["last"] if frame.view.mode == "eager" else []), "hits"]
        wanted += [*(["failed"] if failed else []), *(["past"] if record else []), "last"]
        shown = list(dict.fromkeys(wanted))[: max(0, height - 2)]
        if "last" not in shown:
            self._told.clear()
        lines = [
            self._summary(frame, record, width, reason="last" not in shown),
            self._gauge(frame, record, width),
        ]
        if "sizes" in shown:
            lines += self._sizes(frame, record, width, hits="hits" in shown)
        if "failed" in shown:
            lines.append(failed)
        if "past" in shown:
            lines.append(self._past(frame, width))
        if "last" in shown:
            lines += last
        return [*lines, *self._all_reasons(frame, width, height - len(lines))][:height]

    def _summary(self, frame: Frame, record: StepRecord | None, width: int, *, reason: bool = False) -> Line:
        ink = frame.ink
        if record is None or frame.activity in ("idle", "dead"):
            text = frame.waiting_text if frame.activity == "dead" else "idle"
            if frame.activity == "paused" and frame.view.queued:
                text = f"{frame.view.queued} waiting"
            return fit([("0 active", ink.strong), (f"  {text}", ink.dim)], width)
        last = frame.stands_idle
        left: Line = [("last step: ", ink.dim)] if last else []
        left.append((f"{record.active} active", ink.strong))
        arrow = (" → ", ink.faint)
        if decode_rows(record):
            if record.graph_size is not None:
                left += [arrow, (f"graph {record.graph_size}", ink.graph)]
            else:
                left += [arrow, ("eager", ink.eager)]
                if reason and record.reason:
                    left.append((f": {record.reason}", ink.dim))
                    self._told.add(record.reason)
        if record.prefill_tokens or record.kind == "prefill":
            joint = (" + ", ink.faint) if decode_rows(record) else arrow
            # Beside a graph, which is of the decode rows alone, it has to be said.
            prefill = "prefill" if record.graph_size is None else "eager prefill"
            left += [joint, (f"{prefill} {counted(record.prefill_tokens, 'token')}", ink.prefill)]
        notes: list[Line] = []
        # While the engine stands no step says who came since.
        waiting = max(record.waiting, frame.view.queued) if frame.activity == "paused" else record.waiting
        if waiting:
            notes.append([(f"{waiting} waiting", ink.warn)])
        elif last:
            notes.append([("nothing runs now", ink.dim)])
        wasted = wasted_rows(record)
        if wasted:
            notes.append([(counted(wasted, "row") + " wasted", ink.dim)])
        if record.cached_tokens:
            notes.append([(f"{record.cached_tokens} cached", ink.cached)])
        if not waiting and not last:
            notes.append([("0 waiting", ink.faint)])
        room = width - sum(len(text) for text, _ in left) - 2
        return spread(left, joined(notes, ("  ", ink.dim), room), width, ink.dim)

    def _gauge(self, frame: Frame, record: StepRecord | None, width: int) -> Line:
        """A tile for each row of the batch: chats by letter, padding, then the room that is left."""
        ink, status = frame.ink, frame.view.status
        most = status.max_batch if status else 0
        tiles: Line = []
        idle = record is None or frame.activity in ("idle", "dead")
        rows = () if idle or record is None else record.rows
        padded = 0 if idle or record is None else wasted_rows(record)
        label = f" of {most} rows"
        room = min(_GAUGE_MOST_ROWS, width - len(label))
        spaced = 2 if most * 2 <= room else 1
        cells = room // spaced
        for row in rows[:cells]:
            tag = frame.tag(row.request)
            letter = tag.letter[-1] if tag else "?"
            style = (
                ink.tile(tag.color, 4, shared=False, glow=not row.prefill, focused=False) if tag else ink.dim
            )
            tiles.append((letter, ink.lit(ink.prefill) if row.prefill and not tag else style))
        tiles += [("▒", ink.eager)] * min(padded, cells - len(tiles))
        tiles += [("·", ink.free)] * (min(most, cells) - len(tiles))
        line: Line = []
        for tile in tiles:
            line.append(tile)
            if spaced == 2:
                line.append((" ", ink.dim))
        count = f"{0 if idle or record is None else record.active}"
        return spread(line, [(count, ink.text), (label, ink.dim)], width, ink.dim)

    def _sizes(self, frame: Frame, record: StepRecord | None, width: int, hits: bool) -> list[Line]:
        """The captured sizes with the replayed one lit, and how often each was replayed."""
        ink, status = frame.ink, frame.view.status
        if status is None or not status.graph_sizes:
            return []
        live = record is not None and frame.activity not in ("idle", "dead")
        chosen = record.graph_size if live and record is not None else None
        counts = frame.view.history.graph_hits
        names: Line = [("graphs ", ink.dim)]
        below: Line = [("  hits ", ink.dim)]
        used = 7
        for size in status.graph_sizes:
            number = short_count(counts.get(size, 0))
            cell = max(len(str(size)) + 2, len(number) + 1)
            if used + cell > width:
                names.append(("…", ink.dim))
                break
            used += cell
            style = ink.graph if counts.get(size) else ink.dim
            if size == chosen:
                label = f"{size}".center(len(str(size)) + 2)
                names += [(" " * (cell - len(label)), ink.dim), (label, ink.lit(ink.graph))]
            else:
                names.append((f"{size} ".rjust(cell), style))
            below.append((f"{number} ".rjust(cell), ink.dim if counts.get(size) else ink.faint))
        seconds = status.graph_capture_s
        took: Line = [(f"captured in {seconds:.1f} s", ink.faint)] if seconds is not None else []
        holds: Line = [(byte_size(status.graph_bytes), ink.faint)] if status.graph_bytes else []
        names = spread(names, took, width, ink.dim)
        return [names, spread(below, holds, width, ink.dim)] if hits else [names]

    def _failures(self, frame: Frame, width: int) -> Line:
        """Sizes that have no graph, by reason; empty when all were captured."""
        ink, status = frame.ink, frame.view.status
        by_reason: dict[str, list[str]] = {}
        for name, reason in graph_failures(status) if status else ():
            by_reason.setdefault(reason, []).append(name)
        if not by_reason:
            return []
        text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
        return fit([("failed ", ink.error), (one_line(text, 400), ink.text)], width)

    def _reason(self, frame: Frame, record: StepRecord | None, width: int, lines: int) -> list[Line]:
        """Why steps run eager, in the engine's own words."""
        ink, status, history = frame.ink, frame.view.status, frame.view.history
        reason = ""
        if record is not None and frame.activity != "idle" and record.graph_size is None:
            reason = record.reason
        if not reason and status is not None:
            reason = frame.view.mode_reason
        if not reason:
            return []
        self._told.add(reason)
        times = history.eager_reasons.get(reason, 0)
        suffix = f"  {times:,}×" if times else ""
        label = "eager: "
        rows = wrap_words(reason, width - len(label) - (len(suffix) if lines == 1 else 0), lines)
        result: list[Line] = []
        for number, text in enumerate(rows):
            head = label if number == 0 else " " * len(label)
            result.append([(head, ink.eager), (text, ink.text)])
        if suffix and result:
            result[-1] = spread(result[-1], [(suffix.strip(), ink.dim)], width, ink.dim)
        return [fit(line, width) for line in result]

    def _eager_steps(self, frame: Frame, width: int) -> Line:
        """Why steps ran eager so far, most frequent reason first."""
        ink, reasons = frame.ink, frame.view.history.eager_reasons
        if not reasons:
            return [("eager  ", ink.dim), ("no step yet", ink.faint)]
        line: Line = []
        for reason, count in reasons.most_common():
            group: Line = [(short_count(count), ink.text), (f" {reason}", ink.dim)]
            if line and width_of(line) + width_of(group) + 2 > width - 7:
                break
            line += [("  ", ink.dim), *group] if line else group
            self._told.add(reason)
        return fit([("eager  ", ink.dim), *line], width)

    def _past(self, frame: Frame, width: int) -> Line:
        """Active rows over time, on the same columns as the chart of steps."""
        ink = frame.ink
        label = "active "
        columns = frame.series.last(max(1, width - len(label) - 8))
        top = max([column.most_active for column in columns], default=0)
        marks = sparkline([column.most_active for column in columns], max(top, 4))
        most = f"most {top}"
        return spread(
            [(label, ink.dim), (marks, ink.shade(ink.launch, 62))], [(most, ink.dim)], width, ink.dim
        )


def wasted_rows(record: StepRecord) -> int:
    """Padded rows of the replayed graph: computed, and thrown away."""
    return 0 if record.graph_size is None else max(0, record.graph_size - decode_rows(record))


def short_count(number: int) -> str:
    """At most four characters: ``0``, ``999``, ``1.2k``, ``35k``, ``1.2M``."""
    if number < 1000:
        return str(number)
    for unit, size in (("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)):
        if number < size * 1000:
            value = number / size
            return f"{value:.1f}{unit}" if value < 9.95 else f"{value:.0f}{unit}"
    return "many"
