"""The app: the engine's client on one side, the state in the middle, the screen on the other."""

from collections.abc import Sequence
from time import monotonic, strftime

from textual import events
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter

from engine.client import Client
from tui_infer.archive import ChatArchive
from tui_infer.assistance import AppAssistance
from tui_infer.chat_commands import ChatCommands
from tui_infer.chat_transfer import ChatTransfer
from tui_infer.commands import AllCommands, TuiCommands
from tui_infer.config import Settings
from tui_infer.config_sources import load_config
from tui_infer.drafts import Drafts
from tui_infer.engine_control import EngineControl
from tui_infer.frames import Frames
from tui_infer.gpu_watch import GpuWatch
from tui_infer.help_topics import topic_of
from tui_infer.keymap import KeyNames, check_keymap
from tui_infer.keys import app_bindings
from tui_infer.landmarks import Landmark
from tui_infer.looks import Looks
from tui_infer.model_switch import ModelSwitch
from tui_infer.navigation import Navigation
from tui_infer.recording.client import ReplayClient
from tui_infer.recording.commands import export
from tui_infer.recording.control import RecordControl
from tui_infer.recording.playback import ReplayControl
from tui_infer.recording.writer import RecordingWriter
from tui_infer.sanitize import sanitize_paste
from tui_infer.screens.help import HelpScreen, all_sections, titles_here
from tui_infer.screens.main import MainScreen
from tui_infer.several import Several
from tui_infer.slash import COMMANDS
from tui_infer.state import AppState
from tui_infer.store.keeper import Keeper
from tui_infer.store.store import Store
from tui_infer.terminal_input import TerminalDriver
from tui_infer.time_travel import TimeTravel
from tui_infer.toasts import Toasts
from tui_infer.tools import Tools
from tui_infer.turn_acts import TurnActs
from tui_infer.typed_ahead import has_priority, taken_in
from tui_infer.widgets.chat.messages import Messages
from tui_infer.widgets.inspector.ab import AbPanel
from tui_infer.widgets.inspector.panel import Panel

QUIT_TWICE_S = 2.0


class TuiInferApp(App[int], inherit_bindings=False):
    """Owns the state, the client, and all that keys and commands do: an action here is a line that says who
    does it. Events are applied as they come; ``Frames`` brings the screen up to date.
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
        self.time = TimeTravel(self)
        self.engine = EngineControl(self)
        self.gpu = GpuWatch(self)
        self.toasts = Toasts(self)
        self.tools = Tools(self)
        self.several = Several(self)
        self.turns = TurnActs(self)
        self.transfer = ChatTransfer(self)
        self.models = ModelSwitch(self)
        self.chats = ChatCommands(self)
        self.navigation = Navigation(self)
        self.drafts = Drafts(self)
        self._interrupted_s = float("-inf")
        self.looks = Looks(self, theme or self.settings.theme)
        self.frames = Frames(self)
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
                await taken_in(self)  # in "/seek -50" the minus is the prompt's
            if self.replay.takes(event):
                return
        if isinstance(event, events.Key) and not event.is_forwarded and has_priority(self.screen, event.key):
            await taken_in(self)
        await super().on_event(event)

    # --- start -------------------------------------------------------------------------------------

    def get_driver_class(self) -> type[Driver]:
        """Textual's choice, with the terminal's input read by our own parser."""
        chosen = super().get_driver_class()
        return TerminalDriver if chosen is LinuxDriver else chosen

    def get_default_screen(self) -> MainScreen:
        return MainScreen(self.state, inspector=self.archive.inspector(), assistance=AppAssistance(self))

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
        self.frames.begin()
        self.gpu.begin()
        self.theme_changed_signal.subscribe(self, lambda _: self.frames.redraw())
        self.looks.watch()
        if self._record is not None:
            self.recordings.begin(self._record)
        self.archive.begin()
        await self.client.start()
        self.frames.wake()

    # --- the engine --------------------------------------------------------------------------------

    def action_choose_model(self) -> None:
        if problem := self.models.command([]):
            self.state.notice("Models", problem, "warning")

    def action_restart_engine(self) -> None:
        self.engine.ask_restart()

    def action_toggle_mode(self) -> None:
        self.engine.toggle_mode()

    def action_toggle_pause(self) -> None:
        self.engine.toggle_pause()

    def action_step_once(self) -> None:
        self.engine.step_once()

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
        self.navigation.new()

    def action_step_chat(self, step: int) -> None:
        self.navigation.step(step)

    def action_chat_number(self, number: int) -> None:
        self.navigation.to_number(number)

    def action_focus_chat(self, session: str) -> None:
        self.navigation.to(session)

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
        self.chats.rename([])

    def action_close_chat(self) -> None:
        """Close the focused chat: into the archive; where nothing is kept, one with content asks first."""
        if self.replay is not None and not self.engine.when_ready():
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
        self.navigation.cycle_layout()

    def action_toggle_zoom(self) -> None:
        self.navigation.toggle_zoom()

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
        if self.keeper is not None and self.keeper.problem:
            self.state.notice(
                "Quitting now loses what is not saved",
                f"{self.keeper.problem} Help that, or write them elsewhere: /export chat FILE.json all.",
                "error",
            )

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
