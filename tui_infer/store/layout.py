"""The arrangement of the screen as text: order, focus, panes, inspector. Chats are named by their keys."""

import json
from typing import Any

from tui_infer.arrangement import PANELS
from tui_infer.pane_layout import LAYOUTS
from tui_infer.workspace import Workspace

INSPECTOR = ("auto", "hidden", "side", "full")


def layout_text(space: Workspace, inspector: str, defaults: tuple[str, str]) -> str:
    """``defaults`` are the layout and the inspector of the settings, which began it."""
    keys = {session.id: session.key for session in space.sessions.values()}
    panels = space.arrangement
    return json.dumps(
        {
            "order": list(keys.values()),
            "focused": keys.get(space.focused, ""),
            "layout": space.layout.name,
            "zoomed": space.layout.zoomed,
            "slots": [keys[slot] for slot in space.layout.slots if slot in keys],
            "inspector": inspector,
            "theme": space.theme,
            "defaults": defaults,
            "panels": {
                "order": panels.order,
                "hidden": sorted(panels.hidden),
                "current": panels.current,
                "enlarged": panels.enlarged,
            },
        }
    )


def order_of(layouts: list[str]) -> dict[str, int]:
    """The place of each chat, by its key, in the order of these layouts, the first before the second."""
    order: dict[str, int] = {}
    for text in layouts:
        for key in _strings(_object(text).get("order")):
            order.setdefault(key, len(order))
    return order


def apply_layout(space: Workspace, text: str, defaults: tuple[str, str]) -> str:
    """Arrange the chats that are there as they were; returns the inspector's mode, empty where it is unknown.

    What does not fit any more is left out. A setting that was changed meanwhile wins over what was.
    """
    values = _object(text)
    if not values:
        return ""
    ids = {session.key: session.id for session in space.sessions.values()}
    same = [was == now for was, now in zip(_strings(values.get("defaults")), defaults)] or [False, False]
    layout = space.layout
    if same[0] and values.get("layout") in ("auto", *LAYOUTS):
        layout.name = values["layout"]
    layout.slots = [ids[key] for key in _strings(values.get("slots")) if key in ids]
    if (focused := ids.get(str(values.get("focused")))) is not None:
        space.focus(focused)
    layout.zoomed = values.get("zoomed") is True
    if len(theme := _strings(values.get("theme"))) == 2:
        space.theme = (theme[0], theme[1])
    panels = values.get("panels")
    if isinstance(panels, dict):
        _arrange(space, panels)
    inspector = values.get("inspector")
    return inspector if len(same) > 1 and same[1] and inspector in INSPECTOR else ""


def _arrange(space: Workspace, panels: dict[str, Any]) -> None:
    order = [name for name in dict.fromkeys(_strings(panels.get("order"))) if name in PANELS]
    arrangement = space.arrangement
    arrangement.order = order + [name for name in PANELS if name not in order]
    hidden = {name for name in _strings(panels.get("hidden")) if name in PANELS}
    arrangement.hidden = hidden if hidden - {"ab"} < set(PANELS) - {"ab"} else set()
    arrangement.current = panels["current"] if panels.get("current") in PANELS else ""
    arrangement.enlarged = panels.get("enlarged") is True and bool(arrangement.current)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
