"""The dialog that chooses a model: what is on this machine, whether it fits, and any other by its name."""

from collections.abc import Callable

from rich.cells import cell_len, set_cell_size
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from engine.models.memory import size_text
from engine.models.shapes import NOTE
from tui_infer.model_catalog import KIND_WORDS, LocalModel
from tui_infer.model_memory import Fit, Room, fit
from tui_infer.sanitize import one_line
from tui_infer.screens.dialog import Dialog

Find = Callable[[], tuple[list[LocalModel], Room]]

TITLE, PARAMETERS, DTYPE, DISK, MEMORY = 31, 7, 6, 10, 12  # cells
RUNS, OTHER, TYPED = "● ", "○ ", "+ "
BOX, FRAME = 78, 5  # cells: of the dialog, and of its border, padding and scroll bar
ROUND = 15  # rows of the dialog and round it beside the list
LOW = 18  # rows of a terminal from which all of it is shown


class ModelPicker(Dialog[str | None]):
    """Gives what ``--model`` takes; None where Esc changed nothing. ``find`` is called on a thread."""

    CSS_PATH = "models.tcss"
    BINDINGS = [
        Binding("escape", "cancel", "cancel", show=False),
        Binding("up", "move(-1)", "up", show=False, priority=True),
        Binding("down", "move(1)", "down", show=False, priority=True),
        Binding("pageup", "move(-8)", "page up", show=False, priority=True),
        Binding("pagedown", "move(8)", "page down", show=False, priority=True),
    ]

    def __init__(self, find: Find, current: str, active: int) -> None:
        super().__init__()
        self._find = find
        self._current = current
        self._active = active
        self._models: list[LocalModel] = []
        self._room = Room(None, "")
        self._shown: list[LocalModel | None] = []  # by option; None for what was typed

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static("Which model?", id="title", markup=False)
            yield Input(placeholder="filter, or a folder, a .gguf file, owner/name of the hub", id="filter")
            yield Static(Content(self._heading()), id="heading")
            yield OptionList(id="models", markup=False)
            yield Static("Looking what is here…", id="detail", markup=False)
            yield Static("", id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).cursor_blink = False
        self.query_one(Input).focus()
        stops = f" · {self._active} under way are stopped" if self._active else ""
        self.query_one("#keys", Static).update(
            Content(f"↑↓ choose · Enter loads it, the chats stay{stops} · Esc")
        )
        self.run_worker(self._look, thread=True)

    def _look(self) -> None:
        models, room = self._find()
        self.app.call_from_thread(self._take, models, room)

    def _take(self, models: list[LocalModel], room: Room) -> None:
        self._models, self._room = models, room
        self._write()

    # --- what is shown -----------------------------------------------------------------------------

    @property
    def _typed(self) -> str:
        return self.query_one(Input).value.strip()

    def _write(self) -> None:
        """The models that the filter leaves, and what was typed as a name of its own."""
        typed = self._typed
        words = typed.casefold().split()
        left = [model for model in self._models if all(word in model.words for word in words)]
        real = sorted((m for m in left if m.kind != "shape"), key=lambda m: m.model != self._current)
        shapes = [model for model in left if model.kind == "shape"]
        options = self.query_one(OptionList)
        options.clear_options()
        self._shown = []
        for model in real:
            self._add(options, model)
        if shapes:
            options.add_option(Option(Content(f"── {NOTE}"), disabled=True))
            self._shown.append(None)
        for model in shapes:
            self._add(options, model)
        if typed and typed not in {model.model for model in left}:
            options.add_option(Option(Content(f"{TYPED}load {one_line(typed, 60)}")))
            self._shown.append(None)
        options.styles.height = max(3, min(options.option_count, self.app.size.height - ROUND))
        options.highlighted = next(
            (n for n in range(options.option_count) if not options.get_option_at_index(n).disabled), None
        )
        self._tell()

    def _add(self, options: OptionList, model: LocalModel) -> None:
        options.add_option(Option(Content(self._row(model))))
        self._shown.append(model)

    def _heading(self) -> str:
        return self._cells("model", "params", "format", "disk", "memory")

    def _cells(self, title: str, parameters: str, dtype: str, disk: str, memory: str) -> str:
        """The columns, as many as there is room for."""
        room = min(BOX, self.app.size.width * 98 // 100) - FRAME - len(OTHER)
        few = room < TITLE + PARAMETERS + DTYPE + DISK + MEMORY + 4
        rest = [(parameters, -PARAMETERS), (memory, MEMORY)]
        if not few:
            rest[1:1] = [(dtype, DTYPE), (disk, -DISK)]
        name = room - sum(abs(width) + 1 for _, width in rest)
        return _cells((title, max(4, name)), *rest)

    def _row(self, model: LocalModel) -> str:
        facts, needs = model.facts, fit(model.facts, self._room)
        return (RUNS if model.model == self._current else OTHER) + self._cells(
            one_line(model.title, 80),
            _count(facts.parameters),
            facts.dtype,
            size_text(facts.disk_bytes) if facts.disk_bytes is not None else "",
            "cannot run" if facts.problem else _verdict(needs),
        )

    def _tell(self) -> None:
        """What the highlighted row means, with numbers."""
        model = self._chosen()
        detail = self.query_one("#detail", Static)
        if model is None:
            text = "What it needs is seen when it is looked for; a model of the hub is downloaded."
            if not self._typed:
                text = (
                    "There is no model here: type a folder, a file or a name of the hub."
                    if self._models
                    else ""
                )
            detail.update(Content(text))
            return
        facts = model.facts
        about = [
            KIND_WORDS[model.kind],
            facts.architecture,
            f"{facts.context:,} tokens" if facts.context else "",
        ]
        where = model.path if model.kind != "shape" else None
        if model.kind == "known" and model.path is None:
            about.append("is downloaded first")
        words = " · ".join(one_line(word, 60) for word in about if word)
        needs = facts.problem or fit(facts, self._room).words()
        place = f"\n{one_line(str(where), 300)}" if where is not None else ""
        detail.update(Content(f"{one_line(needs, 300)}\n{words}{place}"))

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < LOW, "-low")
        self.query_one("#heading", Static).update(Content(self._heading()))
        highlighted = self.query_one(OptionList).highlighted
        self._write()
        self.query_one(OptionList).highlighted = highlighted

    # --- what is done ------------------------------------------------------------------------------

    def _chosen(self) -> LocalModel | None:
        highlighted = self.query_one(OptionList).highlighted
        return (
            self._shown[highlighted] if highlighted is not None and highlighted < len(self._shown) else None
        )

    def on_input_changed(self) -> None:
        self._write()

    def on_option_list_option_highlighted(self) -> None:
        self._tell()

    def on_option_list_option_selected(self) -> None:
        self._choose()

    def on_input_submitted(self) -> None:
        self._choose()

    def _choose(self) -> None:
        model = self._chosen()
        if model is not None or self._typed:
            self.dismiss(model.model if model is not None else self._typed)

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        for _ in range(abs(by)):
            before = options.highlighted
            if by > 0 and before is not None and before + 1 >= options.option_count:
                break
            if by < 0 and not before:
                break
            options.action_cursor_down() if by > 0 else options.action_cursor_up()

    def action_cancel(self) -> None:
        self.dismiss(None)


def _cells(*columns: tuple[str, int]) -> str:
    """Texts in columns of so many cells; a negative width puts them to the right."""
    parts = []
    for text, width in columns:
        room = abs(width)
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1).rstrip() + "…"
        pad = " " * (room - cell_len(text))
        parts.append(pad + text if width < 0 else text + pad)
    return " ".join(parts).rstrip()


def _count(number: int | None) -> str:
    """``135M``, ``1.5B``."""
    if number is None:
        return ""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _verdict(needs: Fit) -> str:
    if needs.fits is None:
        return "unknown"
    return "fits" if needs.fits else "does not fit"
