"""Looking back: the view stands at a past step while the engine goes on."""

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.records import StepMode, StepRecord
from tui_infer.history import StepHistory, decode_rows
from tui_infer.keys import JUMP_KEYS, PAST_KEYS
from tui_infer.landmarks import Landmark, next_landmark, none_left
from tui_infer.past import Moment
from tui_infer.past_turns import request_at
from tui_infer.session import SessionState
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.view import InspectorView

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

# by the ids of their keys
MOVES = {
    "past-back": -1,
    "past-on": 1,
    "past-back-10": -10,
    "past-on-10": 10,
    "past-back-100": -100,
    "past-on-100": 100,
}
JUMPS: dict[str, tuple[Landmark, int]] = {
    "jump-eager-back": ("eager", -1),
    "jump-eager-on": ("eager", 1),
    "jump-change-back": ("change", -1),
    "jump-change-on": ("change", 1),
}
LONGEST_NUMBER = 12
MODE_STEPS = 512  # how far back a step that decoded is looked for, to tell the mode


class TimeTravel:
    """What keys and clicks do to the moment that is shown. ``typed`` is a step number being typed."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self._panel = ""  # that had the keys before
        self.typed = ""

    @property
    def on(self) -> bool:
        """Whether the past is shown."""
        return self._app.state.moment is not None

    def toggle(self) -> None:
        """Into the past, at the newest step; from there back to now."""
        if self.on:
            self.leave()
        else:
            self.go(self._app.state.newest_step)

    def leave(self, *, to_prompt: bool = False) -> None:
        """Back to now, and to the panel in which the user was, but not with ``to_prompt``."""
        if self.on:
            self.typed = ""
            panel = "" if to_prompt else self._focused_panel() or self._panel
            self._app.state.look_at_now()
            main = self._app.main
            main.show_moment(focus=True)
            if panel and main.dock.visible and panel not in main.inspector.arrangement.hidden:
                main.inspector.focus_panel(panel)

    def _focused_panel(self) -> str:
        """The id of the panel that has the keys, or an empty string; for the card of a block the map's."""
        here = self._app.main.focused
        name = (here.id or "") if isinstance(here, Panel) else ""
        return "kv" if name == "card" else name

    def escape(self) -> bool:
        """Give up a number, or go back to now; False where the key means something else."""
        strip = self._app.main.timeline
        if not self.on or (self._app.main.inspector.has_panel_focus and not strip.has_focus):
            return False
        if self.typed:
            self._type("")
        else:
            self.leave()
        return True

    def go(self, step: int, *, focus: bool = False) -> bool:
        """Show the moment after a step, or after the kept step next to it; False where no step is kept.

        From now the timeline takes the keys; from the past with ``focus``.
        """
        entered = not self.on
        self.typed = ""
        if not self._app.state.look_at(step):
            self._app.state.notice("No past yet", "The engine has run no step.")
            return False
        if entered:
            self._panel = self._focused_panel()
        self._app.main.show_moment(focus=focus or entered)
        return True

    def go_to_position(self, position: int) -> None:
        """Show the step at a position of what is looked at."""
        past = self._app.state.past
        if past is not None:
            self.go(past.records[min(max(position, past.oldest), len(past) - 1)].index)

    def move(self, steps: int) -> None:
        """So many steps back or ahead; at the end of what was looked at, on into what came since."""
        state = self._app.state
        if state.past is None or state.moment is None:
            return
        if state.moment.position + steps >= len(state.past):
            state.past = state.timeline.freeze()
            self.go_to_position(state.past.position_of(state.moment.step) + steps)
        else:
            self.go_to_position(state.moment.position + steps)

    def jump(self, what: Landmark, by: int) -> None:
        """To the nearest landmark before what is shown, or, with a positive ``by``, after it, also among the
        steps that came since; where there is none, say so and stay.
        """
        state = self._app.state
        pasts = [state.past] if state.past is not None else []
        if by > 0 or not pasts:
            pasts.append(state.timeline.freeze())
        here = state.moment.step if state.moment is not None else state.newest_step
        for past in pasts:
            # from now, the newest step itself is one before
            start = len(past) if state.moment is None and by < 0 else past.position_of(here)
            found = next_landmark(past.records, what, by, start, past.oldest)
            if found is not None:
                self.go(past.records[found].index)
                return
        if state.newest_step < 0:
            state.notice("No past yet", "The engine has run no step.")
            return
        end = pasts[0].records[pasts[0].oldest].index if by < 0 else state.newest_step
        state.notice("Look back", none_left(what, by, here + (state.moment is None and by < 0), end))

    def key(self, key: str, character: str | None = None) -> bool:
        """Do what a key means in the past; False where it means nothing here."""
        state = self._app.state
        if state.past is None:
            return False
        id = state.keys.id_of(key, (*PAST_KEYS, *JUMP_KEYS))
        if id in MOVES:
            self.move(MOVES[id])
        elif id in JUMPS:
            self.jump(*JUMPS[id])
        elif id == "past-oldest":
            self.go_to_position(state.past.oldest)
        elif id == "past-newest":
            self.go(state.newest_step)
        elif key == "enter" and self.typed:
            self.go(int(self.typed))
        elif key == "backspace" and self.typed:
            self._type(self.typed[:-1])
        elif character is not None and character.isascii() and character.isdigit():
            self._type((self.typed + character)[:LONGEST_NUMBER])
        else:
            return False
        return True

    def _type(self, typed: str) -> None:
        self.typed = typed
        self._app.main.show_moment(focus=False)


def view_at(now: InspectorView, moment: Moment, chat: SessionState) -> InspectorView:
    """A view of now turned to a moment. The card is shown as it is now: nobody recorded it."""
    mode, reason = mode_at(moment.history) or (now.mode, now.mode_reason)
    return replace(
        now,
        history=moment.history,
        mirror=moment.mirror,
        focused_request=request_at(chat, moment.step),
        mode=mode,
        mode_reason="" if mode == "graph" else reason,
        paused=False,
        dead=False,
        at=moment.step,
    )


def mode_at(history: StepHistory) -> tuple[StepMode, str] | None:
    """Mode and reason of the newest step that decoded; None where there is none nearby."""
    size = len(history)
    for position in range(size - 1, max(-1, size - 1 - MODE_STEPS), -1):
        record: StepRecord = history[position]
        if decode_rows(record):
            return record.mode, record.reason
    return None
