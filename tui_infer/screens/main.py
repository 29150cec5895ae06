"""The main screen: bars, panes and the inspector, arranged to fit the terminal."""

from collections.abc import Iterable
from functools import partial

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Horizontal

from tui_infer.assistance import Assistance
from tui_infer.keys import bindings
from tui_infer.nvml import GpuReading
from tui_infer.pane_layout import grid
from tui_infer.parameters import marks, usual
from tui_infer.past_turns import turns_at
from tui_infer.screens.block_views import BlockViews
from tui_infer.screens.hints import hint, placeholder
from tui_infer.screens.inspector_dock import WIDE, InspectorDock
from tui_infer.sending import send, take_back
from tui_infer.session import SessionState
from tui_infer.slash import as_typed
from tui_infer.state import AppState
from tui_infer.themes import code_style, session_color
from tui_infer.widgets.banner import Banner
from tui_infer.widgets.chat.assist import Assist
from tui_infer.widgets.chat.document import ChatDocument
from tui_infer.widgets.chat.messages import Messages
from tui_infer.widgets.chat.palette import Palette, palette_of
from tui_infer.widgets.chat.pane import Pane
from tui_infer.widgets.chat.prompt import Prompt
from tui_infer.widgets.chat.session_bar import SessionBar
from tui_infer.widgets.inspector.inspector import Inspector
from tui_infer.widgets.inspector.timeline import ROWS as TIMELINE_ROWS
from tui_infer.widgets.inspector.timeline import TimelineStrip, words_of
from tui_infer.widgets.key_bar import Chats, KeyBar
from tui_infer.widgets.title_bar import TitleBar
from tui_infer.widgets.too_small import TooSmall

MAX_PANES = 4


class MainScreen(BlockViews, inherit_bindings=False):
    """Draws the state. ``refresh_state`` is told what changed; nothing here is true by itself."""

    BINDINGS = bindings()

    def __init__(
        self, state: AppState, *, inspector: str = "auto", assistance: Assistance | None = None
    ) -> None:
        super().__init__()
        self._state = state
        self._documents: dict[str, ChatDocument] = {}
        self._arranged: tuple[object, ...] = ()
        self.title_bar = TitleBar(state)
        self.session_bar = SessionBar(state)
        self.banner = Banner(state)
        self.panes = [Pane(state.prompts, self._send) for _ in range(MAX_PANES)]
        for pane in self.panes:
            pane.prompt.take_back = partial(self._take_back, pane)
            pane.transcript.why_not = self._why_not
            if assistance is not None:
                pane.assistance = assistance
        self.inspector = Inspector(arrangement=state.arrangement)
        self.dock = InspectorDock(self, state, inspector)
        self.timeline = TimelineStrip(state.keys)
        self._past_documents: dict[str, ChatDocument] = {}
        self.key_bar = KeyBar()
        self.too_small = TooSmall()

    def compose(self) -> ComposeResult:
        yield self.title_bar
        yield self.session_bar
        yield self.banner
        with Horizontal(id="body"):
            yield Container(*self.panes, id="panes")
            yield self.inspector
        yield self.timeline
        yield self.key_bar
        yield self.too_small

    def on_mount(self) -> None:
        self.refresh_state({("sessions", ""), ("engine", "")})

    # --- from the state to the screen --------------------------------------------------------------

    def refresh_state(self, changes: Iterable[tuple[str, str]]) -> None:
        """Draw what changed: pairs of topic and session id, as ``AppState`` gives them."""
        topics = {topic for topic, _ in changes}
        if topics & {"sessions", "engine"}:
            self.banner.update(self.size.width)
            self.timeline.display = self._state.moment is not None
            self.fit_panes(keep_panel=True)
            self.session_bar.refresh()
            self.title_bar.refresh()
            self._update_hints()
        elif "title" in topics:
            self.title_bar.refresh()
        changed = {session for topic, session in changes if topic == "turns"}
        for pane in self.visible_panes:
            if pane.session is not None and pane.session.id in changed:
                pane.transcript.update()
                pane.update_frame(focused=pane.session.id == self._state.focused, soon=True)

    def fit_panes(self, *, keep_panel: bool = False) -> None:
        """Give the panes to chats and the area to panes; focus the prompt of the focused chat, but not, with
        ``keep_panel``, where the user is in a panel of the inspector.

        All of it holds when this returns, so that the next key finds the right prompt.
        """
        width, height = self.size
        self.too_small.fit(self)
        mode = self.dock.mode
        self.inspector.tabbed = width < WIDE
        inspector_width = self.dock.width if mode == "side" else 0
        area_height = height - 3 - (self.banner.styles.height.value if self.banner.display else 0)  # type: ignore[union-attr]
        area_height -= TIMELINE_ROWS if self._state.moment is not None else 0
        area_width = width - inspector_width
        wanted = 1 if self._state.layout.zoomed else self._state.layout.wanted(len(self._state.sessions))
        columns, rows = grid(wanted, area_width, int(area_height))
        shown = self._state.panes(columns * rows)
        rows = -(-len(shown) // columns)
        arrangement = (mode, inspector_width, columns, rows, len(shown))
        if arrangement != self._arranged:
            self._arranged = arrangement
            self._apply(mode, inspector_width, columns, rows, len(shown))
        palette = self._palette()
        for pane, session_id in zip(self.panes, shown):
            session = self._state.sessions[session_id]
            moment = self._state.moment
            if moment is None and session_id not in self._documents:
                self._documents[session_id] = ChatDocument(self.app.archive.saved_place(session))  # type: ignore[attr-defined]
            documents = self._documents if moment is None else self._past_documents
            document = documents.setdefault(session_id, ChatDocument())
            turns = turns_at(session, moment.step) if moment is not None else None
            pane.then = words_of(moment, self._state.newest_step) if moment is not None else ""
            color = session_color(self.app.current_theme, session.color)
            pane.set_class(session_id == self._state.focused, "-current")
            pane.engine_stopped = self._state.phase == "failed"
            pane.receives = self._state.to_all and len(shown) > 1
            pane.marks = tuple(marks(session, usual(self._state)))
            pane.bind(session, document, palette, color, turns)
            elsewhere = mode == "full" or (
                keep_panel
                and (
                    self.inspector.has_panel_focus
                    or (isinstance(self.focused, Messages) and self.focused.cursor is not None)
                    or (self.focused is self.timeline and self._state.moment)
                )
            )
            if session_id == self._state.focused and not elsewhere:
                self.set_focus(pane.prompt, scroll_visible=False)

    def _apply(self, mode: str, inspector_width: int, columns: int, rows: int, count: int) -> None:
        area = self.query_one("#panes")
        area.display = mode != "full"
        self.inspector.display = mode != "hidden"
        self.inspector.styles.width = inspector_width if mode == "side" else "1fr"
        area.styles.grid_size_columns = columns
        area.styles.grid_size_rows = rows
        for number, pane in enumerate(self.panes):
            pane.display = number < count
            alone = number == count - 1 and count % columns
            pane.styles.column_span = columns if alone else 1

    def _palette(self) -> Palette:
        theme = self.app.current_theme
        variables = tuple(sorted(self.app.theme_variables.items()))
        return palette_of(theme.name, variables, code_style(theme))

    def _update_hints(self) -> None:
        shown = len(self.visible_panes)
        to = shown if self._state.to_all else 0
        current, now = self._state.current, self._state.moment is None and not self._state.read_only
        answering = current.letter if current.busy and now else ""
        self.key_bar.follow(Chats(len(self._state.sessions), shown, to if to > 1 else 0, answering))
        lines = hint(self._state)
        for pane in self.panes:
            pane.transcript.set_hint(lines)
            pane.prompt.placeholder = placeholder(self._state, pane.session, to)

    @property
    def visible_panes(self) -> list[Pane]:
        return [pane for pane in self.panes if pane.display and pane.session is not None]

    def store_drafts(self) -> None:
        """Bring the chats' drafts up to what stands in the prompts."""
        for pane in self.visible_panes:
            pane.prompt.store_draft()

    def document_of(self, session_id: str) -> ChatDocument | None:
        """The lines of a chat that was shown."""
        return self._documents.get(session_id)

    def forget(self, session_id: str) -> None:
        """A chat is about to be closed."""
        self._documents.pop(session_id, None)

    def selected_text(self) -> str:
        """What is selected in the prompt that has the focus, or chosen or selected in a transcript."""
        focused = self.app.focused
        if isinstance(focused, Prompt) and focused.selected_text:
            return focused.selected_text
        shown = [pane.transcript for pane in self.visible_panes]
        return next(
            filter(None, (text for each in shown for text in (each.chosen_text, each.selected_text))), ""
        )

    def unselect(self) -> None:
        """Nothing is selected in the transcripts any more."""
        for pane in self.visible_panes:
            pane.transcript.unselect()

    def show_chats(self) -> None:
        self.dock.make_room()
        self.fit_panes()
        self.focus_timeline()

    def show_inspector(self, gpu: GpuReading) -> None:
        """Hand the inspector the state of this moment, and say which moment that is."""
        self._say_when()
        self.dock.show(gpu)

    # --- the past ----------------------------------------------------------------------------------

    def focus_timeline(self) -> None:
        """In the past the timeline has the keys again, which a panel or a prompt had."""
        if self._state.moment is not None:
            self.set_focus(self.timeline, scroll_visible=False)

    def show_moment(self, *, focus: bool) -> None:
        """Draw the moment that the state looks at, or now; with ``focus`` the timeline takes the keys, or
        the prompt has them again.
        """
        state = self._state
        if state.moment is None:
            self._past_documents.clear()
        self.timeline.display = state.moment is not None  # before it can have the focus
        if focus and state.moment is not None:
            self.set_focus(self.timeline, scroll_visible=False)
        elif focus:
            self.set_focus(None)
        self.refresh_state({("sessions", "")})
        self.show_inspector(self.app.gpu.reading)  # type: ignore[attr-defined]

    def _say_when(self) -> None:
        """How far back the moment is: more with every step that the engine runs."""
        state = self._state
        if state.past is None or state.moment is None:
            return
        typed = self.app.time.typed  # type: ignore[attr-defined]
        self.timeline.show(state.past, state.moment, state.newest_step, typed)
        then = words_of(state.moment, state.newest_step)
        for pane in self.visible_panes:
            if pane.then != then:
                pane.then = then
                pane.update_frame(focused=pane.has_class("-current"))

    def on_timeline_strip_key(self, event: TimelineStrip.Key) -> None:
        """What means nothing in time is typed into the prompt."""
        if self.focused is self.timeline and self.app.time.key(event.key, event.character):  # type: ignore[attr-defined]
            return  # what was typed quickly after a / belongs to it
        if event.character and (prompt := self._focused_prompt) is not None:
            self.set_focus(prompt, scroll_visible=False)
            prompt.insert(event.character)

    def on_timeline_strip_wanted(self, event: TimelineStrip.Wanted) -> None:
        self.app.time.go_to_position(event.position)  # type: ignore[attr-defined]

    @property
    def _focused_prompt(self) -> Prompt | None:
        panes = [pane for pane in self.visible_panes if pane.session is self._state.current]
        return panes[0].prompt if panes and self.dock.mode != "full" else None

    # --- from the user -----------------------------------------------------------------------------

    def on_screen_resume(self) -> None:
        """A dialog went: its keys are not the screen's, and the bar may have been drawn meanwhile."""
        self.key_bar.refresh()

    def on_resize(self, event: events.Resize) -> None:
        self.refresh_state({("sessions", "")})

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.key_bar.refresh()
        self.timeline.refresh()

    def on_panel_hints_changed(self) -> None:
        self.key_bar.refresh()

    def on_messages_moved(self) -> None:
        self.key_bar.refresh()

    def _why_not(self, session: SessionState, position: int, act: str) -> str:
        return str(self.app.turns.why_not(session, position, act))  # type: ignore[attr-defined]

    def on_pane_chosen(self, event: Pane.Chosen) -> None:
        self._state.focus(event.session)
        self.fit_panes()

    def _send(self, pane: Pane, text: str) -> bool:
        return pane.session is not None and send(self.app, pane.session, text)  # type: ignore[arg-type]

    def _take_back(self, pane: Pane) -> str:
        return take_back(self.app, pane.session) if pane.session is not None else ""  # type: ignore[arg-type]

    def _assist(self) -> Assist | None:
        """The list of the prompt that has the focus."""
        prompt = self.focused
        return prompt.assist if isinstance(prompt, Prompt) else None

    def close_list(self) -> bool:
        """Take the list above the prompt away; False where there was none."""
        assist = self._assist()
        return assist is not None and assist.close()

    def take_choice(self) -> bool:
        """Take what is chosen in the list above the prompt; False where there is none."""
        assist = self._assist()
        return assist is not None and assist.tab()

    def search_prompts(self) -> None:
        """Search the earlier prompts, from wherever the user is."""
        if self._assist() is None:
            self.show_chats()
            if (prompt := self._focused_prompt) is not None:
                self.set_focus(prompt, scroll_visible=False)
        if (assist := self._assist()) is not None:
            assist.begin_search()

    def type_into_prompt(self, text: str) -> None:
        """Type a text for the model into the focused prompt."""
        if (prompt := self._focused_prompt) is not None:
            prompt.insert(as_typed(text))

    def catch_up(self) -> None:
        """Draw all that changed while another screen was shown in place of this one."""
        self.refresh_state({("sessions", ""), ("engine", "")})
        for pane in self.visible_panes:
            pane.transcript.update()
        self.fit_panes()
