"""The app's keys, each with an id by which it can be bound to another key.

None of them is a control code that a terminal cannot tell from another key (ctrl+i, m, h, [), none is the
prefix of a multiplexer (ctrl+b, a, s, q, z), and none is taken by editing in the prompt.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from textual.binding import BindingType


class Key(NamedTuple):
    """A key of the app. ``group`` is its heading on the help screen; an empty one is not listed there."""

    id: str
    keys: str
    action: str
    label: str
    group: str


HELP = Key("help", "f1", "app.show_help", "this help", "App")
KEYS = [
    Key("new", "ctrl+n", "app.new_chat", "new chat", "Chats"),
    Key("next", "tab", "app.step_chat(1)", "next chat", "Chats"),
    Key("previous", "shift+tab", "app.step_chat(-1)", "previous chat", "Chats"),
    *[Key(f"chat-{n}", f"alt+{n}", f"app.chat_number({n})", f"chat {n}", "") for n in range(1, 10)],
    Key("rename", "alt+r", "app.rename_chat", "rename the chat", "Chats"),
    Key("search", "ctrl+r", "app.search_prompts", "search earlier prompts", "Chats"),
    Key("parameters", "alt+p", "app.parameters", "temperature, seed, all parameters; system prompt", "Chats"),
    Key("chats", "ctrl+f", "app.list_chats", "all chats, search in them", "Chats"),
    Key("close", "ctrl+g", "app.close_chat", "close the chat, archive it", "Chats"),
    Key("all", "alt+a", "app.several('all')", "send to all shown chats, or to one", "Chats"),
    Key("compare", "alt+c", "app.several('open')", "compare answers side by side", "Chats"),
    Key("messages", "ctrl+l", "app.turn('messages')", "to the chat's messages, Esc back", "Chats"),
    Key("cancel", "escape", "app.cancel", "stop the answer, keep its text", "Chats"),
    Key("mode", "f2", "app.toggle_mode", "CUDA graph or eager steps", "Engine"),
    Key("pause", "f3", "app.toggle_pause", "pause or resume the engine", "Engine"),
    Key("step", "f4", "app.step_once", "pause and run one step", "Engine"),
    Key("past", "f9", "app.look_back", "look back in time, and return to now", "Engine"),
    Key("until", "f10", "app.tool('until')", "run until something happens", "Engine"),
    Key("model", "alt+m", "app.choose_model", "another model", "Engine"),
    Key("restart", "f7", "app.restart_engine", "restart the engine", "Engine"),
    Key("layout", "f5", "app.cycle_layout", "one pane, two, 2×2", "View"),
    Key("zoom", "f8", "app.toggle_zoom", "zoom the pane", "View"),
    Key("inspector", "f6", "app.cycle_inspector", "inspector: side, full, hidden", "View"),
    Key("panel", "ctrl+o", "app.next_panel", "to the inspector's next panel, Esc back", "View"),
    Key("theme", "ctrl+t", "app.next_theme", "next theme", "View"),
    HELP,
]

PALETTE = Key("palette", "ctrl+p", "app.command_palette", "all commands", "App")
QUIT = Key("quit", "ctrl+c", "app.interrupt", "copy the selection; twice quits", "App")

# What every panel of the inspector takes while one has the focus.
PANEL_KEYS = [
    Key("panel-enlarge", "z", "enlarge", "enlarge it, or back", "Panels"),
    Key("panel-hide", "x", "hide", "hide it", "Panels"),
    Key("panel-all", "u", "reset", "show all", "Panels"),
    Key("panel-up", "shift+up", "move(-1)", "move it up", "Panels"),
    Key("panel-down", "shift+down", "move(1)", "move it down", "Panels"),
]

# What the list of all chats takes beside arrows, Enter and Esc.
CHATS_KEYS = [
    Key("chats-archive", "ctrl+g", "archive", "archive it, or take it back", "List of chats"),
    Key("chats-rename", "alt+r", "rename", "rename it", "List of chats"),
    Key("chats-delete", "ctrl+d,delete", "delete", "delete it for good", "List of chats"),
]

# What the messages of a chat take while one of them is marked.
MESSAGE_KEYS = [
    Key("message-before", "up,k", "move(-1)", "the message before", "Messages"),
    Key("message-after", "down,j", "move(1)", "the message after", "Messages"),
    Key("message-first", "home", "go('first')", "the first", "Messages"),
    Key("message-last", "end", "go('last')", "the last", "Messages"),
    Key("message-page-up", "pageup", "page(-1)", "scroll up", "Messages"),
    Key("message-page-down", "pagedown", "page(1)", "scroll down", "Messages"),
    Key("message-copy", "c", "act('copy')", "copy it, or the chosen lines", "Messages"),
    Key("message-code", "b", "act('code')", "copy a block of code; again: the next", "Messages"),
    Key("message-lines", "v", "lines", "choose lines of it", "Messages"),
    Key("message-extend-up", "shift+up", "extend(-1)", "one line more, upwards", "Messages"),
    Key("message-extend-down", "shift+down", "extend(1)", "one line more, downwards", "Messages"),
    Key("message-quote", "q", "act('quote')", "quote it in the prompt", "Messages"),
    Key("message-edit", "e", "act('edit')", "edit the prompt, and ask again", "Messages"),
    Key("message-again", "r", "act('again')", "answer again, same seed", "Messages"),
    Key("message-new", "n", "act('new')", "answer again, new seed", "Messages"),
    Key("message-branch", "f", "act('branch')", "branch the chat here", "Messages"),
    Key("message-on", "o", "act('go_on')", "let the answer go on", "Messages"),
    Key("message-earlier", "left", "act('earlier')", "the version before", "Messages"),
    Key("message-later", "right", "act('later')", "the version after", "Messages"),
]

# What the prompt and the transcript take for themselves: fixed, for the help screen.
PROMPT_KEYS = [
    ("Enter", "send"),
    ("^j", "new line (or Shift/Alt+Enter)"),
    ("↑ ↓", "earlier prompts; the last queued first"),
    ("/ Tab", "commands, completed"),
    ("@name", "a file's text, in the prompt"),
    ("^w ^u ^k", "delete a word, to start, to end"),
    ("^/ ^y", "undo, redo"),
    ("PgUp PgDn", "scroll (or the wheel)"),
    ("Alt+↑ ↓", "scroll by one row"),
    ("^Home ^End", "start, end and follow"),
    ("Alt+1…9", "go to chat 1…9"),
]

# What the columns of a comparison take.
COMPARE_KEYS = [
    Key("compare-next", "right,tab,l", "column(1)", "next column (or 1…8)", "Comparing"),
    Key("compare-previous", "left,shift+tab,h", "column(-1)", "column before", "Comparing"),
    Key("compare-take", "enter,t", "take", "go on with it, close the others", "Comparing"),
    Key("compare-keep", "k,alt+c", "keep", "back, they go on as chats", "Comparing"),
    Key("compare-stop", "escape", "stop", "stop the answers; else back, all are kept", "Comparing"),
    Key(
        "compare-difference",
        "d",
        "difference(1)",
        "next difference; in the first, the next one's",
        "Comparing",
    ),
    Key("compare-back", "u", "difference(-1)", "difference before", "Comparing"),
    Key("compare-marks", "m", "marks", "marks on or off", "Comparing"),
    Key("compare-copy", "c", "copy", "copy this answer", "Comparing"),
    Key("compare-new", "n", "new", "compare something else", "Comparing"),
]

# What the timeline takes while the past is looked at, beside the number of a step.
PAST_KEYS = [
    Key("past-back", "left", "move(-1)", "one step back", "Looking back"),
    Key("past-on", "right", "move(1)", "one ahead", "Looking back"),
    Key("past-back-10", "shift+left", "move(-10)", "ten steps back", "Looking back"),
    Key("past-on-10", "shift+right", "move(10)", "ten ahead", "Looking back"),
    Key("past-back-100", "pageup", "move(-100)", "a hundred steps back", "Looking back"),
    Key("past-on-100", "pagedown", "move(100)", "a hundred ahead", "Looking back"),
    Key("past-oldest", "home", "oldest", "the oldest step kept", "Looking back"),
    Key("past-newest", "end", "newest", "the newest", "Looking back"),
]

# What the timeline and the Step panel take.
JUMP_KEYS = [
    Key("jump-eager-back", "left_square_bracket", "jump('eager', -1)", "eager step before", "Looking back"),
    Key("jump-eager-on", "right_square_bracket", "jump('eager', 1)", "next eager step", "Looking back"),
    Key("jump-change-back", "left_curly_bracket", "jump('change', -1)", "change before", "Looking back"),
    Key("jump-change-on", "right_curly_bracket", "jump('change', 1)", "next change", "Looking back"),
]

# What is fixed there, for the help screen; ids stand for their keys.
PAST_HELP = [
    ("412 Enter", "go to step 412 (or click the line)"),
    ("past Esc", "return to now"),
]


def bindings() -> "list[BindingType]":
    """The keys of the main screen, as Textual wants them.

    With priority they act in the app's turn, before a later key is given to any prompt: else what is typed
    right after a change of the focus would go to the chat before.
    """
    return _with_priority(KEYS)


def app_bindings() -> "list[BindingType]":
    """The keys that work on every screen."""
    return _with_priority([PALETTE, QUIT, HELP])


def bindings_of(keys: list[Key], *, priority: bool = False) -> "list[BindingType]":
    """The keys of a widget or a screen, which act while it has the focus."""
    from textual.binding import Binding  # the settings know keys without Textual

    return [
        Binding(key.keys, key.action, key.label, show=False, id=key.id, priority=priority) for key in keys
    ]


def _with_priority(keys: list[Key]) -> "list[BindingType]":
    from textual.binding import Binding

    return [Binding(key.keys, key.action, key.label, show=False, id=key.id, priority=True) for key in keys]
