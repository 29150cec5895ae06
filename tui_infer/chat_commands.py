"""Commands about the focused chat: its parameters, system prompt, title, place; and the looks of the app.

Methods that a slash command runs return why they cannot, or an empty string.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tui_infer.commands import Command
from tui_infer.locations import config_file
from tui_infer.pane_layout import LAYOUTS
from tui_infer.parameters import changes, sampling_of, set_system, take, take_as_usual, texts_of, usual
from tui_infer.presets import Sampling, over, words_of
from tui_infer.sanitize import one_line
from tui_infer.screens.ask import Ask, Rename
from tui_infer.screens.parameters import Chosen, ParametersForm
from tui_infer.session import SessionState
from tui_infer.set_params import changed
from tui_infer.slash import raw_of

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

NONE = ("none", "off")
_SETTINGS = "app.chat_command('settings', '')"
AGAIN = "The conversation is read again with it at the next prompt"


class ChatCommands:
    """What a slash command, a key or the palette does to the focused chat."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app

    @property
    def _chat(self) -> SessionState:
        return self._app.state.current

    def _say(self, title: str, text: str) -> None:
        self._app.state.notice(title, text)

    # --- parameters --------------------------------------------------------------------------------

    def system(self, words: Sequence[str]) -> str:
        """``/system TEXT`` sets the system prompt, ``none`` takes it away; alone it is told."""
        chat = self._chat
        if not words:
            self._say(f"System prompt of {chat.letter}", chat.system or "There is none.")
            return ""
        text = raw_of(words)
        again = set_system(chat, "" if text.lower() in NONE else text)
        self._app.state.announce("sessions", chat.id)
        self._say(f"System prompt of {chat.letter}", self._system_words(chat, again))
        return ""

    def _system_words(self, chat: SessionState, again: bool) -> str:
        words = one_line(chat.system, 200) if chat.system else "It is taken away."
        if not again:
            return words
        return f"{words} · {AGAIN}{', after the answer under way' if chat.busy else ''}."

    def set(self, words: Sequence[str]) -> str:
        """``/set NAME VALUE …``; alone it lists what the chat has."""
        chat = self._chat
        if not words:
            now = texts_of(chat.params)
            self._say(
                f"Parameters of {chat.letter}", " · ".join(f"{name} {text}" for name, text in now.items())
            )
            return ""
        params = changed(chat.params, words)
        if isinstance(params, str):
            return params
        before, now = texts_of(chat.params), texts_of(params)
        take(self._app.state, [chat], Sampling(params, chat.system))
        told = [f"{name} {now[name]}, was {before[name]}" for name in now if now[name] != before[name]]
        when = " From the next prompt on." if chat.busy else ""
        self._say(
            f"Parameters of {chat.letter}", "; ".join(told) + f".{when}" if told else "They were so already."
        )
        return ""

    def preset(self, words: Sequence[str]) -> str:
        """``/preset NAME`` takes the parameters of a preset; alone it lists them."""
        presets = self._app.settings.presets
        if not words:
            known = "  ".join(f"{name}: {words_of(preset)}." for name, preset in presets.items())
            self._say("Presets", known or "There are none. [presets.NAME] tables in config.toml make some.")
            return ""
        name = raw_of(words)
        if name not in presets:
            there = (
                f"There are {', '.join(presets)}." if presets else "config.toml has no [presets.NAME] table."
            )
            return f"“{one_line(name, 40)}” is no preset. {there}"
        chat = self._chat
        take(self._app.state, [chat], over(presets[name], sampling_of(chat)))
        self._say(f"Preset {name}", f"Chat {chat.letter} has {words_of(presets[name])}.")
        return ""

    def form(self) -> None:
        """The parameters of the focused chat as a form."""
        app, chat = self._app, self._chat
        app.main.store_drafts()

        def chosen(answer: Chosen | None) -> None:
            if answer is not None:
                self._take(chat, answer)

        presets = app.settings.presets
        app.push_screen(ParametersForm(chat, usual(app.state), presets), chosen)

    def _take(self, chat: SessionState, answer: Chosen) -> None:
        state = self._app.state
        if answer.whose == "new":
            told = " · ".join(changes([usual(state)], answer.sampling)) or "as before"
            take_as_usual(state, answer.sampling)
            self._say(
                "Parameters of new chats", f"{told}. Until the app ends; config.toml keeps them for ever."
            )
            return
        chats = list(state.sessions.values()) if answer.whose == "all" else [chat]
        chats = [one for one in chats if one.id in state.sessions]
        told = " · ".join(changes(map(sampling_of, chats), answer.sampling))
        take(state, chats, answer.sampling)
        whose = f"chat {chat.letter}" if answer.whose == "this" else f"all {len(chats)} chats"
        self._say(
            f"Parameters of {whose}", f"{told}, from the next prompt on." if told else "Nothing was changed."
        )

    # --- chats -------------------------------------------------------------------------------------

    def new(self, words: Sequence[str]) -> str:
        """``/new [TITLE]``."""
        self._app.navigation.new()
        if words:
            self._app.state.rename(self._app.state.focused, raw_of(words))
        return ""

    def rename(self, words: Sequence[str]) -> str:
        """``/rename TITLE``; alone it asks."""
        state, chat = self._app.state, self._chat
        if words:
            state.rename(chat.id, raw_of(words))
            return ""

        def renamed(title: str | None) -> None:
            if title is not None:
                state.rename(chat.id, title)

        self._app.push_screen(Rename(chat.title if chat.titled else "", chat.title), renamed)
        return ""

    def chat(self, words: Sequence[str]) -> str:
        """``/chat LETTER`` goes to a chat."""
        letters = self._app.state.letters
        wanted = raw_of(words).upper()
        if wanted not in letters:
            return f"It takes the letter of a chat: {', '.join(letters)}."
        self._app.navigation.to(letters[wanted])
        return ""

    def clear(self, words: Sequence[str]) -> str:
        """``/clear`` puts an empty chat in the place of this one, with its parameters."""
        app, chat = self._app, self._chat
        if words:
            return "It takes nothing."
        if why := app.state.read_only:
            return why
        if not chat.turns:
            return "This chat is empty already."
        if self._kept:
            self._clear(chat)
            return ""
        count = sum(turn.role == "user" for turn in chat.turns)
        lost = f"{count} prompt{'s' if count != 1 else ''} and what was answered are lost."
        question = f"Empty chat {chat.letter}, “{chat.title}”? {lost}"
        app.push_screen(
            Ask(question, "Empty it", "Keep it"), lambda sure: self._clear(chat) if sure else None
        )
        return ""

    @property
    def _kept(self) -> bool:
        """Whether a chat that is closed stays in the store."""
        return self._app.keeper is not None

    def _clear(self, chat: SessionState) -> None:
        state = self._app.state
        if chat.id not in state.sessions:
            return
        self._app.main.forget(chat.id)
        state.start_over(chat.id)
        self._app.main.fit_panes()
        kept = "What was said stays among the closed chats." if self._kept else "Its parameters are kept."
        self._say(f"Chat {chat.letter} is empty", kept)

    # --- the app -----------------------------------------------------------------------------------

    def theme(self, words: Sequence[str]) -> str:
        """``/theme NAME``; alone it tells what there is."""
        name, names = raw_of(words), self._app.theme_names
        if not words:
            self._say(f"Theme: {self._app.theme}", f"There are {', '.join(names)}.")
        elif name not in names:
            return f"“{one_line(name, 40)}” is no theme. There are {', '.join(names)}."
        else:
            self._app.action_use_theme(name)
        return ""

    def layout(self, words: Sequence[str]) -> str:
        """``/layout 1|2|4``."""
        name = raw_of(words)
        if name not in LAYOUTS:
            return f"It takes {', '.join(LAYOUTS)}: how many chats are shown."
        self._app.state.layout.zoomed = False
        self._app.state.layout.name = name
        self._app.state.announce("sessions")
        self._app.main.fit_panes()
        return ""

    def bench(self, words: Sequence[str]) -> str:
        """``/bench`` tells how to measure; ``/bench ab`` runs eager against graph here."""
        if [word.lower() for word in words] == ["ab"]:
            return self._app.tools.compare([])
        if words:
            return "It takes ab, or nothing."
        status = self._app.state.status
        model = f" --model {one_line(status.model)}" if status is not None else ""
        self._say(
            "Measuring",
            f"Here, over what streams: /ab. Alone on the machine, with this app closed: "
            f"tui-infer bench decode{model}; also prefill, throughput, launch, profile.",
        )
        return ""

    def settings(self, words: Sequence[str]) -> str:
        """Where the settings are, keys among them, and what prints them."""
        more = (
            "[keys] in it binds keys by id."
            if config_file().is_file()
            else "tui-infer config --init writes it."
        )
        self._say(
            "Settings",
            f"{config_file()}, read at the start. {more} tui-infer config prints what holds, "
            "tui-infer config --keys the ids of keys.",
        )
        return ""

    def quit(self, words: Sequence[str]) -> str:
        """``/quit``."""
        if words:
            return "It takes nothing."
        self._app.exit(0)
        return ""

    # --- the palette -------------------------------------------------------------------------------

    @property
    def commands(self) -> Iterator[Command]:
        """What has no key of its own."""
        for name, preset in self._app.settings.presets.items():
            yield Command(f"Preset: {name}", words_of(preset), f"app.chat_command('preset', {name!r})")
        yield Command("Clear this chat", "/clear", "app.chat_command('clear', '')")
        yield Command("System prompt: show", "/system TEXT sets it", "app.chat_command('system', '')")
        yield Command("Parameters: list", "/set NAME VALUE changes them", "app.chat_command('set', '')")
        yield Command("Settings: where the config file is", "tui-infer config", _SETTINGS)
        yield Command("Settings: rebind keys, in the config file", "tui-infer config --keys", _SETTINGS)
        yield Command("How to measure this machine", "/bench", "app.chat_command('bench', '')")

    def do(self, name: str, word: str) -> None:
        """An entry of the palette."""
        run = {
            "preset": self.preset,
            "clear": self.clear,
            "system": self.system,
            "set": self.set,
            "settings": self.settings,
        }.get(name, self.bench)
        if problem := run([word] if word else []):
            self._app.state.notice(f"/{name} not done", problem, "warning")
