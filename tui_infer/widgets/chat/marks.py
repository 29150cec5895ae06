"""The mark of a chat's state, and the theme variable that gives its colour."""

from tui_infer.session import SessionStatus

MARKS: dict[SessionStatus, tuple[str, str]] = {
    "idle": ("○", "text-muted"),
    "queued": ("◌", "warning"),
    "prefill": ("◐", "warning"),
    "streaming": ("●", "success"),
    "cancelled": ("■", "warning"),
    "error": ("✗", "error"),
}
