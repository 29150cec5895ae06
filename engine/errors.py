"""One family of errors: a title, what happened, and the way out.

The same object becomes a line on stderr, a JSON object, or a banner in the app.
"""


class EngineError(Exception):
    """Anything the user can be told about.

    Args:
        message: what is wrong, naming the offending value.
        hint: what to do about it; empty when the message already says so.
    """

    title = "engine error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ConfigError(EngineError, ValueError):
    """A setting has a value that cannot work."""

    title = "bad setting"


class RequestError(EngineError, ValueError):
    """A request that can never be served: too long, empty, or with parameters out of range."""

    title = "bad request"


class ModelError(EngineError):
    """The model cannot be found, fetched, read or supported."""

    title = "model not loaded"


class OutOfMemory(EngineError):
    """Weights, graphs or the KV cache do not fit."""

    title = "not enough memory"


class DeviceError(EngineError):
    """The device failed in the middle of a step; every request of the engine ends."""

    title = "device failed"
