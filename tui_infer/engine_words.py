"""What an engine computes with, in words: few for the title, sentences for panels and notices. Plain data."""

from engine.records import EngineStatus

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_BY_TORCH = "computed by torch, since "
_NO_COMPILER = "no C compiler"
# How reasons of ``engine.native.library`` begin, or what is in them, that speak of the installation.
_BEGIN = ("CC ", "the C code cannot be built", "the C code does not load", "TUI_INFER_NATIVE is ")
_WITHIN = (" failed: ", " did not run: ", " was not done after ")


def place(status: EngineStatus) -> str:
    """Device, and the numbers that most weights are kept in: ``cpu int4``, ``cuda:0 bf16``."""
    return f"{status.device} {status.weights or SHORT.get(status.dtype, status.dtype)}"


def computed_by(status: EngineStatus) -> str:
    """``C`` or ``torch`` where weights are packed on a CPU, else the attention's back end."""
    if status.attention == "native":
        return "C"
    return "torch" if status.weights else status.attention


def about_weights(status: EngineStatus) -> str:
    """The sentence about the weights' bits and what computes with them; empty where there is none."""
    return next((note for note in status.notes if note.startswith("Weights")), "")


def slow_for(status: EngineStatus) -> str:
    """Why torch computes although C could, and what mends it; empty where nothing does.

    A processor or a model that the C code does not fit is nothing that a user can mend.
    """
    _, _, reason = about_weights(status).partition(_BY_TORCH)
    words = f"{reason[:1].upper()}{reason[1:].rstrip('.')}: torch computes, slower."
    if reason.startswith(_NO_COMPILER):
        return f"{words} Install gcc, or let CC name a compiler."
    return words if reason.startswith(_BEGIN) or any(part in reason for part in _WITHIN) else ""
