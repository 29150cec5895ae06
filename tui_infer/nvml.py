"""What the GPU says of itself, through NVML (package nvidia-ml-py, module pynvml). Never raises."""

import importlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

HISTORY_READINGS = 120
REOPEN_AFTER_READS = 15
NO_GPU = "no NVIDIA GPU in use"
KEPT = ("utilisation", "memory_used", "power", "temperature", "sm_clock", "memory_clock")

# Errors of a call that will not get better while the process lives.
_PERMANENT = {"NotSupported", "NoPermission", "FunctionNotFound"}

_FIELD_REASONS = {
    "NotSupported": "not supported here",
    "NoPermission": "no permission",
    "FunctionNotFound": "driver too old",
    "GpuIsLost": "GPU is lost",
    "Timeout": "timed out",
}

_OPEN_REASONS = {
    "LibraryNotFound": "NVML library not found: no NVIDIA driver on this machine",
    "DriverNotLoaded": "NVIDIA driver is not loaded",
    "LibRmVersionMismatch": "NVML library and kernel driver differ in version; reboot or reload the driver",
    "NoPermission": "no permission to talk to the NVIDIA driver",
    "GpuIsLost": "GPU is lost: it fell off the bus or needs a reset",
    "NotFound": "NVML lists no GPU with this UUID",
    "InvalidArgument": "NVML lists no GPU with this UUID",
}


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at the card. A field is None when it is not to be had; ``missing`` says why.

    Bytes, watts, degrees Celsius, megahertz, percent from 0 to 100. ``reason`` is set when there are
    no numbers at all. ``past`` holds the readings up to this one of each field in ``KEPT``, oldest first.
    """

    reason: str = "no reading yet"
    name: str | None = None
    utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: int | None = None
    temperature_limit: int | None = None
    sm_clock: int | None = None
    sm_clock_max: int | None = None
    memory_clock: int | None = None
    memory_clock_max: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    past: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def available(self) -> bool:
        """True when at least one number is there."""
        return not self.reason


class GpuMonitor:
    """Reads one card, found by UUID so that CUDA_VISIBLE_DEVICES cannot point at another.

    ``read`` takes a few milliseconds of driver time: call it in a thread, once or twice a second.
    It is not for two threads at once.
    """

    def __init__(self, uuid: str | None, module: Any = None) -> None:
        """``uuid`` as torch or NVML print it; None without a CUDA device. ``module`` replaces pynvml."""
        self._uuid = uuid
        self._nvml = module
        self._handle: Any = None
        self._parent: Any = None
        self._initialized = False
        self._reason = ""
        self._reads_until_reopen = 0
        self._never: dict[str, str] = {}
        self._past: dict[str, deque[float]] = {name: deque(maxlen=HISTORY_READINGS) for name in KEPT}

    def read(self) -> GpuReading:
        """The card now; fields that cannot be read are None and named in ``missing``."""
        if self._uuid is None:
            return GpuReading(reason=NO_GPU)
        if self._handle is None:
            if self._reads_until_reopen > 0:
                self._reads_until_reopen -= 1
                return GpuReading(reason=self._reason)
            self._reason = self._open(self._uuid)
            if self._reason:
                self._reads_until_reopen = REOPEN_AFTER_READS
                return GpuReading(reason=self._reason)
        return self._read_fields()

    def close(self) -> None:
        """Let go of the driver."""
        if self._initialized:
            self._initialized = False
            _attempt(self._nvml.nvmlShutdown)
        self._handle = self._parent = None

    # --- opening -------------------------------------------------------------------------------

    def _open(self, uuid: str) -> str:
        """Find the card; the reason when that fails, else an empty string."""
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except Exception as error:
                return f"nvidia-ml-py cannot be imported: {error}"
        if not self._initialized:
            failure = _attempt(self._nvml.nvmlInit)[1]
            if failure:
                return _open_reason(failure)
            self._initialized = True
        failure = ""
        for name in _uuid_spellings(uuid):
            handle, failure = _attempt(partial(self._nvml.nvmlDeviceGetHandleByUUID, name))
            if not failure:
                self._handle = handle
                if name.startswith("MIG-"):
                    # Power, temperature and clocks belong to the card, not to its slice.
                    of_slice = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle
                    self._parent = _attempt(partial(of_slice, handle))[0]
                return ""
        reason = _open_reason(failure)
        return f"{reason} ({uuid})" if "UUID" in reason else reason

    # --- reading -------------------------------------------------------------------------------

    def _read_fields(self) -> GpuReading:
        nvml, slice_, card = self._nvml, self._handle, self._parent or self._handle
        missing: dict[str, str] = {}

        def get(name: str, call: Callable[[], Any]) -> Any:
            if name in self._never:
                missing[name] = self._never[name]
                return None
            value, error = _attempt(call)
            if error:
                reason = _FIELD_REASONS.get(error, error)
                if self._parent is not None and error == "NotSupported":
                    reason = "not supported on a MIG slice"
                missing[name] = reason
                if error in _PERMANENT:
                    self._never[name] = reason
                if error == "GpuIsLost":
                    self._reason = _OPEN_REASONS[error]
            return value

        name = get("name", lambda: nvml.nvmlDeviceGetName(slice_))
        rates = get("utilisation", lambda: float(nvml.nvmlDeviceGetUtilizationRates(slice_).gpu))
        memory = get("memory", lambda: _memory(nvml, slice_))
        reading = GpuReading(
            reason="",
            name=name.decode(errors="replace") if isinstance(name, bytes) else name,
            utilisation=rates,
            memory_used=memory[0] if memory else None,
            memory_total=memory[1] if memory else None,
            power=get("power", lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000),
            power_limit=get("power_limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1000),
            temperature=get(
                "temperature", lambda: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)
            ),
            temperature_limit=get(
                "temperature_limit",
                lambda: nvml.nvmlDeviceGetTemperatureThreshold(
                    card, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
                ),
            ),
            sm_clock=get("sm_clock", lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            sm_clock_max=get(
                "sm_clock_max", lambda: nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM)
            ),
            memory_clock=get("memory_clock", lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM)),
            memory_clock_max=get(
                "memory_clock_max", lambda: nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_MEM)
            ),
            missing=missing,
        )
        if "lost" in self._reason:
            self._handle = self._parent = None
            self._reads_until_reopen = REOPEN_AFTER_READS
            return GpuReading(reason=self._reason)
        return replace(reading, past=self._remember(reading))

    def _remember(self, reading: GpuReading) -> dict[str, tuple[float, ...]]:
        for name, past in self._past.items():
            value = getattr(reading, name)
            if value is not None:
                past.append(float(value))
        return {name: tuple(past) for name, past in self._past.items()}


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """``(used, total)`` bytes, as nvidia-smi counts them."""
    # The first version of the call counts what the driver keeps for itself as used; drivers before
    # R510 have no other.
    version = getattr(nvml, "nvmlMemory_v2", None)
    info: Any = None
    if version is not None:
        info = _attempt(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version))[0]
    if info is None:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(info.used), int(info.total)


def _attempt(call: Callable[[], Any]) -> tuple[Any, str]:
    """``(value, "")``, or ``(None, error name)`` such as ``NotSupported``."""
    try:
        return call(), ""
    except Exception as error:  # ctypes and old drivers raise more than NVMLError; a panel must not care
        name = type(error).__name__
        return None, name.removeprefix("NVMLError_") if name.startswith("NVMLError_") else str(error) or name


def _open_reason(error: str) -> str:
    return _OPEN_REASONS.get(error, f"NVML: {error}")


def _uuid_spellings(uuid: str) -> list[str]:
    """NVML wants a prefix that torch leaves out, and torch does not tell a slice from a card."""
    if uuid.startswith(("GPU-", "MIG-")):
        return [uuid]
    return [f"GPU-{uuid}", f"MIG-{uuid}"]
