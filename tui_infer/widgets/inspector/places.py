"""Where each panel goes: one above the other, or in two columns where it is wide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.widget import Widget

from tui_infer.widgets.inspector.ab import ab_rows
from tui_infer.widgets.inspector.gpu import gpu_rows
from tui_infer.widgets.inspector.kvmap import MAP_NOTES
from tui_infer.widgets.inspector.plan import TWO_COLUMNS, plan_rows
from tui_infer.widgets.inspector.view import InspectorView, graph_failures
from tui_infer.widgets.inspector.window import ROUND, rows_needed

LEFT, RIGHT = ("batch", "step", "ab", "gpu"), ("kv", "table", "events")


@dataclass(frozen=True, slots=True)
class Needs:
    """What decides over the rows of the panels; it changes with the engine, not with its steps."""

    gpu_rows: int = 1
    graphs: bool = False
    failures: bool = False
    reason: int = 0
    blocks: int = 0
    ab_rows: int = 0

    @classmethod
    def of(cls, view: InspectorView) -> "Needs":
        status = view.status
        return cls(
            gpu_rows=gpu_rows(status, view.gpu),
            graphs=bool(status and status.graph_sizes),
            failures=bool(status and graph_failures(status)),
            reason=len(view.mode_reason),
            blocks=view.mirror.num_blocks,
            ab_rows=ab_rows(view.ab),
        )

    def most(self, width: int, height: int) -> dict[str, int]:
        """Rows that a panel can use at most, in a column so wide of an area so high; all but the map's."""
        return {
            "batch": 6 + self.failures if self.graphs else 5 if self.reason > width - 24 else 4,
            "table": 4 if height >= 50 else 3,
            "gpu": self.gpu_rows,
            "ab": self.ab_rows,
        }


def plan_columns(shown: Sequence[str], size: Size, needs: Needs, keep: str) -> list[dict[str, Region]]:
    """Columns of places for the panels that find room among those ``shown``; ``keep`` is the last to go."""
    width, height = size
    left, right = ([name for name in shown if name in side] for side in (LEFT, RIGHT))
    if width >= TWO_COLUMNS and left and right:
        column = width // 2
        beside = Region(column, 0, width - column, height)
        most = needs.most(column, height)
        return [
            _plan_column(left, Region(0, 0, column, height), needs, most, ("step",), keep),
            _plan_column(right, beside, needs, most, ("kv", "table", "events"), keep),
        ]
    most = needs.most(width, height)
    return [_plan_column(shown, Region(0, 0, width, height), needs, most, ("kv", "step"), keep)]


def same_column(name: str, shown: Sequence[str], width: int) -> list[str]:
    """Panels of the column in which this one is."""
    return [other for other in shown if width < TWO_COLUMNS or (other in LEFT) == (name in LEFT)]


def _plan_column(
    names: Sequence[str],
    area: Region,
    needs: Needs,
    most: dict[str, int],
    greedy: Sequence[str],
    keep: str,
) -> dict[str, Region]:
    rows: dict[str, int] = {}
    for wide, step in ((wide, step) for wide in (True, False) for step in ROUND):
        map_rows = rows_needed(needs.blocks, max(1, area.width - 4), wide=wide, step=step)
        most = most | {"kv": max(6, map_rows + MAP_NOTES)}
        rows = plan_rows(names, area.height, most, greedy=greedy, keep=keep)
        if rows.get("kv", 0) >= map_rows + MAP_NOTES:
            break
    places: dict[str, Region] = {}
    y = area.y
    shown = [name for name in names if name in rows]
    for name in shown:
        height = rows[name] + 1 + (name == shown[-1])
        places[name] = Region(area.x, y, area.width, height)
        y += height
    return places


class PanelLayout(Layout):
    """Widgets at the places that ``place`` names; styles are not asked, so nothing can overflow."""

    name = "panels"

    def __init__(self, place: Callable[[Size], dict[str, Region]]) -> None:
        self._place = place

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        places = self._place(size)
        return [
            WidgetPlacement(
                places.get(child.id or "", Region()), NULL_OFFSET, NULL_SPACING, child, child.id == "card"
            )
            for child in children
        ]
