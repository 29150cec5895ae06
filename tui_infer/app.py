"""The app: the engine's client on one side, the state in the middle, the screen on the other."""

import asyncio
import contextlib
from collections.abc import Sequence
from time import monotonic, strftime
from typing import get_args

from textual import events
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.timer import Timer

from engine.client import Client
from engine.config import EngineConfig
from engine.records import EngineStatus
from tui_infer.archive import ChatArchive
from tui_infer.assistance import AppAssistance
from tui_infer.chat_commands import ChatCommands
from tui_infer.chat_transfer import ChatTransfer
from tui_infer.commands import AllCommands, TuiCommands
from tui_infer.config import Settings
from tui_infer.config_sources import load_config
from tui_infer.drafts import Drafts
from tui_infer.help_topics import topic_of
from tui_infer.keymap import KeyNames, check_keymap
from tui_infer.keys import app_bindings
from tui_infer.landmarks import Landmark
from tui_infer.looks import Looks
from tui_infer.model_switch import ModelSwitch
from tui_infer.nvml import GpuMonitor, GpuReading
from tui_infer.recording.client import ReplayClient
from tui_infer.recording.commands import export
from tui_infer.recording.control import RecordControl
from tui_infer.recording.playback import ReplayControl
from tui_infer.recording.writer import RecordingWriter
from tui_infer.sanitize import sanitize_paste
from tui_infer.screens.ask import Ask, Rename
from tui_infer.screens.help import HelpScreen, all_sections, titles_here
from tui_infer.screens.main import MainScreen
from tui_infer.several import Several
from tui_infer.slash import COMMANDS
from tui_infer.state import AppState, Topic
from tui_infer.store.keeper import Keeper
from tui_infer.store.store import Store
from tui_infer.terminal_input import TerminalDriver
from tui_infer.time_travel import TimeTravel
from tui_infer.tools import Tools
from tui_infer.turn_acts import TurnActs
from tui_infer.widgets.chat.messages import Messages
from tui_infer.widgets.inspector.ab import AbPanel
from tui_infer.widgets.inspector.panel import Panel

QUIT_TWICE_S = 2.0
INSPECTOR_PERIOD_S = 0.1
SHARED_PERIOD_S = 0.2  # of the same, while the engine computes on the cores that drawing takes
SHARED_FRAME_S = 0.1  # between two draws of what streams, then
STREAMING = {"steps", "turns"}  # what changes by itself, many times a second
GPU_PERIOD_S = 1.0
FLASH_S = 2.0  # for toasts that follow each other quickly
TYPED_S = 2.0  # for a prompt to take in what was typed before a key of the app


class TuiInferApp(App[int], inherit_bindings=False):
    """Owns the state and the client. Events are applied as they come; the screen is brought up to date at
    most ``settings.fps`` times a second, and no timer runs while nothing changes.
    """

    TITLE = "tui-infer"
    CSS_PATH = "screens/main.tcss"  # the default screen's own CSS_PATH would not be read
    COMMANDS = {TuiCommands}
    BINDINGS = app_bindings()
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        client: Client,
        *,
        theme: str | None = None,
        settings: Settings | None = None,
        record: RecordingWriter | None = None,
        store: Store | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings or load_config().settings
        self.screen_entered = False  # the terminal shows the alternate screen already
        self.client = client
        self.state = AppState(
            client.send,
            params=self.settings.params,
            system=self.settings.system,
        )
        bound = check_keymap(self.settings.keys)
        self.set_keymap(bound)
        self.state.keys = KeyNames(bound)
        self.state.layout.name = self.settings.layout
        self.gpu_reading = GpuReading()
        self.time = TimeTravel(self)
        self._gpu = GpuMonitor(None)
        self._gpu_status: EngineStatus | None = None
        self.tools = Tools(self)
        self.several = Several(self)
        self.turns = TurnActs(self)
        self.transfer = ChatTransfer(self)
        self.models = ModelSwitch(self)
        self.chats = ChatCommands(self)
        self.drafts = Drafts(self)
        self._dirty: set[tuple[str, str]] = set()
        self._inspector_due = False
        self._inspector_awaited = False  # by somebody who did something
        self._drawn_s = 0.0
        self._inspector_shown_s = 0.0
        self._frame_timer: Timer | None = None
        self._gpu_timer: Timer | None = None
        self._interrupted_s = float("-inf")
        self.looks = Looks(self, theme or self.settings.theme)
        for topic in get_args(Topic):
            self._watch_topic(topic)
        client.on_event = self.state.apply
        self.recordings = RecordControl(self)
        self._record = record
        self.replay = ReplayControl(self, client) if isinstance(client, ReplayClient) else None
        self.archive = ChatArchive(self, store)
        if not theme:
            self.looks.recall()

    # --- themes ------------------------------------------------------------------------------------

    @property
    def theme_names(self) -> list[str]:
        return self.looks.names

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self.looks.filters]

    def action_use_theme(self, name: str) -> None:
        self.looks.use(name)

    def action_next_theme(self) -> None:
        self.looks.use(self.looks.after(self.theme))

    # --- keys --------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Paste):  # here, for every field of every screen
            event.text = sanitize_paste(event.text)
        if self.replay is not None:
            if isinstance(event, events.Key) and event.character in ("+", "-") and not event.is_forwarded:
                await self._taken_in()  # in "/seek -50" the minus is the prompt's
            if self.replay.takes(event):
                return
        if isinstance(event, events.Key) and not event.is_forwarded and self._has_priority(event.key):
            await self._taken_in()
        await super().on_event(event)

    def _has_priority(self, key: str) -> bool:
        return any(
            binding.priority
            for _, bindings in self.screen._binding_chain
            for binding in bindings.key_to_bindings.get(key, ())
        )

    async def _taken_in(self) -> None:
        """Wait until the focused widget handled all that was typed or pasted so far: those keys lie in its
        queue, and the action to come may give the prompt to another chat.
        """
        done = asyncio.Event()
        if self.focused is not None and self.focused.call_later(done.set):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), TYPED_S)

    # --- start and frames --------------------------------------------------------------------------

    def get_driver_class(self) -> type[Driver]:
        """Textual's choice, with the terminal's input read by our own parser."""
        chosen = super().get_driver_class()
        return TerminalDriver if chosen is LinuxDriver else chosen

    def get_default_screen(self) -> MainScreen:
        return MainScreen(self.state, inspector=self.archive.inspector(), assistance=AppAssistance(self))

    @property
    def _screen_is_up(self) -> bool:
        """Whether the main screen can be drawn: on a slow machine frames come before it."""
        return bool(self.screen_stack) and self.screen_stack[0].is_mounted

    @property
    def keeper(self) -> Keeper | None:
        """What saves the chats, where anything does."""
        return self.archive.keeper

    @property
    def main(self) -> MainScreen:
        """The main screen, whatever lies above it."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    async def on_mount(self) -> None:
        self._frame_timer = self.set_interval(1 / self.settings.fps, self._frame, name="frame", pause=True)
        self._gpu_timer = self.set_interval(GPU_PERIOD_S, self._read_gpu, name="gpu", pause=True)
        self.theme_changed_signal.subscribe(self, lambda _: self._theme_changed())
        self.looks.watch()
        if self._record is not None:
            self.recordings.begin(self._record)
        self.archive.begin()
        await self.client.start()
        self._wake()

    def _watch_topic(self, topic: Topic) -> None:
        def changed(session: str) -> None:
            self._dirty.add((topic, session))
            self._wake()

        self.state.subscribe(topic, changed)

    def _wake(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.resume()

    def _frame(self) -> None:
        """Draw what changed since the last frame, all of it at once."""
        if self._screen_is_up and not self._waits:
            main = self.main
            main.begin_frame()
            try:
                self._follow_state()
            finally:
                main.end_frame()

    def _follow_state(self) -> None:
        """Bring the widgets up to date; go to sleep when nothing changed."""
        dirty, self._dirty = self._dirty, set()
        if dirty:
            self._drawn_s = monotonic()
            self.tools.follow()
            self.models.follow()
            self._show_notices()
            topics = {topic for topic, _ in dirty}
            self._follow_engine(topics)
            self.archive.follow(topics)
            if not self.several.follow(dirty):
                self.main.refresh_state(dirty)
                self._inspector_due = True
                self._inspector_awaited = self._inspector_awaited or not topics <= STREAMING
        if self._inspector_due and monotonic() - self._inspector_shown_s >= self._inspector_period:
            self._inspector_due = self._inspector_awaited = False
            self._inspector_shown_s = monotonic()
            self.main.show_inspector(self.gpu_reading)
        if not dirty and not self._inspector_due and self._frame_timer is not None:
            self._frame_timer.pause()

    @property
    def _shared(self) -> bool:
        """Whether the engine computes on the cores that drawing takes."""
        status = self.state.status
        return status is not None and status.device == "cpu" and self.replay is None

    @property
    def _waits(self) -> bool:
        """Whether what changed can wait for a later frame: only what streams by itself, on shared cores."""
        if not self._dirty or not self._shared or monotonic() - self._drawn_s >= SHARED_FRAME_S:
            return False
        return {topic for topic, _ in self._dirty} <= STREAMING

    @property
    def _inspector_period(self) -> float:
        """Seconds between two draws of the inspector."""
        streams = not (self._inspector_awaited or self.state.paused or self.state.moment is not None)
        return SHARED_PERIOD_S if self._shared and streams else INSPECTOR_PERIOD_S

    def _show_notices(self) -> None:
        notices, self.state.notices = self.state.notices, []
        shown = {(toast.title, toast.message) for toast in self._notifications}
        for notice in notices:
            if (notice.title, notice.message) in shown:
                continue
            shown.add((notice.title, notice.message))
            self.notify(notice.message, title=notice.title, severity=notice.severity, markup=False)

    def _theme_changed(self) -> None:
        self._dirty.add(("sessions", ""))
        self._dirty.add(("engine", ""))
        self._wake()

    # --- the engine --------------------------------------------------------------------------------

    def _follow_engine(self, topics: set[str]) -> None:
        """Read the card that the engine runs on, while it runs."""
        if "engine" not in topics or self._gpu_timer is None or self.replay is not None:
            return
        status = self.state.status if self.state.phase == "ready" else None
        if status is None:
            self._gpu_timer.pause()
        elif status.device_uuid is None:
            self.take_reading(GpuMonitor(None).read())
            self._gpu_timer.pause()
        elif status is not self._gpu_status:  # a switch or a pause is no other card: its past is kept
            self._gpu_status = status
            self._gpu.close()
            self._gpu = GpuMonitor(status.device_uuid)
            self._read_gpu()
            self._gpu_timer.resume()
        else:
            self._gpu_timer.resume()

    def _read_gpu(self) -> None:
        """The driver takes milliseconds to answer, so it is asked on a thread."""
        monitor = self._gpu

        def read() -> None:
            reading = monitor.read()
            self.call_from_thread(self.take_reading, reading)

        if self.main.dock.visible or self.recordings.on:
            self.run_worker(read, thread=True, group="gpu", exclusive=True)

    def take_reading(self, reading: GpuReading) -> None:
        """The card was read."""
        self.gpu_reading = reading
        self.recordings.reading(reading)
        self._inspector_due = True
        self._wake()

    def action_choose_model(self) -> None:
        if problem := self.models.command([]):
            self.state.notice("Models", problem, "warning")

    def action_restart_engine(self) -> None:
        """Start a new engine process in place of one that failed; where one runs, ask first."""
        if self.replay is not None:
            self.replay.restart()
        elif self.state.phase == "loading":
            self.state.notice("Engine", "It is loading already.")
        elif self.state.phase == "failed":
            self._restart()
        else:
            question = "Restart the engine? Answers under way are stopped; chats are kept."
            self.push_screen(
                Ask(question, "Restart", "Go on"), lambda sure: self._restart() if sure else None
            )

    def restart_with(self, config: EngineConfig) -> None:
        """Another engine process in place of the one that runs; the chats stay."""
        self._restart(config)

    def _restart(self, config: EngineConfig | None = None) -> None:
        for session in list(self.state.sessions.values()):
            if session.id not in self.state.pending:
                self.state.cancel(session.id)
        self.state.restarting()
        self.run_worker(self.client.restart(config), group="engine", exclusive=True)

    def _when_ready(self) -> bool:
        if self.replay is not None:
            self.state.notice("Recording", self.state.read_only)
            return False
        if self.state.phase != "ready":
            self.state.notice("Engine", "It is not ready yet.", "warning")
        return self.state.phase == "ready"

    def action_toggle_mode(self) -> None:
        if self._when_ready():
            self.state.toggle_mode()

    def action_toggle_pause(self) -> None:
        if self.replay is not None:
            self.replay.toggle_play()
        elif self._when_ready():
            self.state.toggle_pause()

    def action_step_once(self) -> None:
        self.time.leave()
        if self.replay is not None:
            self.replay.step_once()
        elif self._when_ready():
            self.state.step_once()

    def action_toggle_recording(self) -> None:
        self.recordings.toggle()

    def action_export(self, what: str, suffix: str) -> None:
        """Into the folder in which the app was started, under a new name."""
        if problem := export(self, [what, f"{what}-{strftime('%Y%m%d-%H%M%S')}{suffix}"]):
            self.state.notice("Not exported", problem, "error")

    def action_export_chat(self, suffix: str, every: bool) -> None:
        self.transfer.export_as(suffix, every=every)

    def action_import_chats(self) -> None:
        if problem := self.transfer.bring([]):
            self.state.notice("Not imported", problem, "warning")

    def action_playback_speed(self, by: int) -> None:
        if self.replay is not None:
            self.replay.faster(by)

    def action_look_back(self) -> None:
        self.time.toggle()

    def action_jump(self, what: Landmark, by: int) -> None:
        """In time, to the landmark before or after."""
        self.time.jump(what, by)

    # --- chats -------------------------------------------------------------------------------------

    def action_new_chat(self) -> None:
        if self.replay is not None and not self._when_ready():
            return
        self.state.new_session()
        self.main.fit_panes()

    def action_step_chat(self, step: int) -> None:
        if self.main.inspector.has_panel_focus:
            self.main.dock.step_panel(step)
            return
        if step > 0 and self.main.take_choice():
            return
        self.state.step_focus(step)
        self._show_chat()

    def action_chat_number(self, number: int) -> None:
        self.state.focus_number(number)
        self._show_chat()

    def _show_chat(self) -> None:
        """Show the focused chat; keys that move in time go on doing so."""
        in_time = self.main.focused is self.main.timeline
        self.main.fit_panes()
        if in_time:
            self.main.focus_timeline()

    def action_focus_chat(self, session: str) -> None:
        self.state.focus(session)
        self.main.fit_panes()

    def action_cancel(self) -> None:
        if self.main.close_list():
            return
        if self.time.escape():
            return
        if self.turns.escape() or self.main.dock.leave_panel():
            return
        self.state.cancel(self.state.focused)

    def action_cancel_all(self) -> None:
        for session in list(self.state.sessions):
            self.state.cancel(session)

    def action_rename_chat(self) -> None:
        session = self.state.current

        def renamed(title: str | None) -> None:
            if title is not None:
                self.state.rename(session.id, title)

        self.push_screen(Rename(session.title if session.titled else "", session.title), renamed)

    def action_close_chat(self) -> None:
        """Close the focused chat: into the archive; where nothing is kept, one with content asks first."""
        if self.replay is not None and not self._when_ready():
            return
        self.archive.close()

    def action_list_chats(self) -> None:
        self.archive.show()

    def action_delete_chat(self) -> None:
        self._done("delete", self.archive.delete_current())

    def action_adopt_chat(self) -> None:
        self._done("adopt", self.archive.adopt())

    def _done(self, command: str, problem: str) -> None:
        if problem:
            self.state.notice(f"/{command} not done", problem, "warning")

    # --- view --------------------------------------------------------------------------------------

    def action_cycle_layout(self) -> None:
        self.state.cycle_layout()
        self.main.fit_panes()
        # Two layouts can look the same, with fewer chats than panes or too little room for them.
        name = {"1": "one pane", "2": "two panes", "4": "2×2 panes"}[self.state.layout.name]
        shown = len(self.main.visible_panes)
        missing = "" if shown == int(self.state.layout.name) else f" ({shown} shown)"
        self.flash("Layout", f"{name}{missing}")

    def flash(self, title: str, text: str) -> None:
        """A toast in place of the one before: going round quickly would pile them up."""
        for toast in list(self._notifications):
            if toast.title == title:
                self._unnotify(toast)
        self.notify(text, title=title, timeout=FLASH_S, markup=False)

    def action_toggle_zoom(self) -> None:
        self.state.toggle_zoom()
        self.main.fit_panes()

    def action_cycle_inspector(self) -> None:
        self.main.dock.cycle()

    def action_next_panel(self) -> None:
        self.main.dock.step_panel(1)

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, AllCommands):
            self.push_screen(AllCommands(id="--command-palette"))

    def action_show_help(self) -> None:
        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss(None)
        else:
            self.show_help()

    def show_help(self, topic: str = "") -> str:
        """The help, on where the focus is or on a topic; why not, where there is none on that."""
        first, words, problem = titles_here(self.screen), "", ""
        if topic:
            titles = [section.title for section in all_sections(self.state.keys)]
            title, words, problem = topic_of(topic, titles, COMMANDS)
            first = [title]
        if not problem:
            self.push_screen(HelpScreen(self.state.keys, first, words, here=not topic))
        return problem

    def action_interrupt(self) -> None:
        """Copy what is selected; without a selection, a second press within two seconds quits."""
        if selected := self.main.selected_text():
            self.copy_to_clipboard(selected)
            self.main.unselect()
            return
        now = monotonic()
        if now - self._interrupted_s <= QUIT_TWICE_S:
            self.exit(0)
            return
        self._interrupted_s = now
        self.notify(f"Press {self.state.keys['quit']} again to quit", timeout=QUIT_TWICE_S, markup=False)

    def action_tool(self, name: str, *words: str) -> None:
        """A command of the palette or a key that a slash command does too."""
        run = {"until": self.tools.until, "load": self.tools.load, "ab": self.tools.compare}[name]
        if problem := run(words):
            self.state.notice(f"/{name} not done", problem, "warning")

    def action_search_prompts(self) -> None:
        self.main.search_prompts()

    def action_parameters(self) -> None:
        self.chats.form()

    def action_chat_command(self, name: str, word: str) -> None:
        """A slash command of the focused chat, from the palette."""
        self.chats.do(name, word)

    def copy_to_clipboard(self, text: str, what: str = "") -> None:
        """Through the terminal, wherever that is; the user is told."""
        self._clipboard = text
        self.turns.send_to_clipboard(text, what)

    def action_turn(self, what: str) -> None:
        """Into the messages of the chat, or something with the one that is marked there."""
        self.turns.do(what)

    def on_messages_act(self, event: Messages.Act) -> None:
        self.turns.act(event)

    def action_several(self, what: str) -> None:
        self.several.do(what)

    def action_panel(self, what: str, name: str) -> None:
        """Hide, show, enlarge or move a panel; reset them all."""
        self.main.dock.change_panel(what, name)

    def action_only_events(self, kind: str, session: str) -> None:
        self.main.dock.only_events(kind, session)

    def on_inspector_card_closed(self) -> None:
        self.tools.close_card()

    def on_ab_panel_taken(self, event: AbPanel.Taken) -> None:
        self.tools.take_card(event.how)

    def on_panel_step_chosen(self, event: Panel.StepChosen) -> None:
        """Go back to a step that a panel names."""
        self.time.go(event.step)

    def on_panel_jump_wanted(self, event: Panel.JumpWanted) -> None:
        self.time.jump(event.what, event.by)

    def on_unmount(self) -> None:
        self.looks.end()
        self.tools.quit()

    async def action_quit(self) -> None:
        self.exit(0)
