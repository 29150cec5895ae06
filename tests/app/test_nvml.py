"""The GPU monitor never raises: each field is a number or a reason, and so is the whole card."""

from types import SimpleNamespace
from typing import Any

import pytest

from tui_infer import nvml
from tui_infer.nvml import NO_GPU, REOPEN_AFTER_READS, GpuMonitor, GpuReading

GIB = 1024**3


def nvml_error(name: str) -> Exception:
    return type(f"NVMLError_{name}", (Exception,), {})("told by the driver")


class FakeNvml:
    """Answers as pynvml does; ``failing`` maps a function's name to the error that it raises."""

    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    nvmlMemory_v2 = 0x02000028
    old_driver = False

    def __init__(self, known: tuple[str, ...] = ("GPU-abc",), **failing: str) -> None:
        self.known = known
        self.failing = failing
        self.calls: list[str] = []

    def _call(self, name: str, value: Any) -> Any:
        self.calls.append(name)
        if name in self.failing:
            raise nvml_error(self.failing[name])
        return value

    def nvmlInit(self) -> None:
        self._call("nvmlInit", None)

    def nvmlShutdown(self) -> None:
        self._call("nvmlShutdown", None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.known:
            raise nvml_error("NotFound")
        return self._call("nvmlDeviceGetHandleByUUID", f"handle of {uuid}")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return f"card of {handle}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return self._call("nvmlDeviceGetName", "NVIDIA H200")

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return self._call("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=63, memory=20))

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        if version is not None and self.old_driver:
            raise nvml_error("FunctionNotFound")
        used = 18 * GIB if version else 19 * GIB
        return self._call("nvmlDeviceGetMemoryInfo", SimpleNamespace(used=used, total=140 * GIB, free=0))

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        assert handle.startswith("card") or "MIG" not in handle
        return self._call("nvmlDeviceGetPowerUsage", 412_300)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return self._call("nvmlDeviceGetEnforcedPowerLimit", 700_000)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return self._call("nvmlDeviceGetTemperature", 54)

    def nvmlDeviceGetTemperatureThreshold(self, handle: str, threshold: int) -> int:
        return self._call("nvmlDeviceGetTemperatureThreshold", 87)

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return self._call("nvmlDeviceGetClockInfo", 1980 if clock == self.NVML_CLOCK_SM else 3201)

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        return self._call("nvmlDeviceGetMaxClockInfo", 1980 if clock == self.NVML_CLOCK_SM else 3201)


def test_a_reading_has_every_field_in_its_unit() -> None:
    reading = GpuMonitor("GPU-abc", FakeNvml()).read()
    assert reading.available
    assert not reading.missing
    assert reading == GpuReading(
        reason="",
        name="NVIDIA H200",
        utilisation=63.0,
        memory_used=18 * GIB,
        memory_total=140 * GIB,
        power=412.3,
        power_limit=700.0,
        temperature=54,
        temperature_limit=87,
        sm_clock=1980,
        sm_clock_max=1980,
        memory_clock=3201,
        memory_clock_max=3201,
        past={
            "utilisation": (63.0,),
            "memory_used": (18.0 * GIB,),
            "power": (412.3,),
            "temperature": (54.0,),
            "sm_clock": (1980.0,),
            "memory_clock": (3201.0,),
        },
    )


@pytest.mark.parametrize("uuid", ["GPU-abc", "abc"])
def test_the_card_is_found_by_uuid_as_nvml_or_torch_write_it(uuid: str) -> None:
    assert GpuMonitor(uuid, FakeNvml(known=("GPU-zzz", "GPU-abc"))).read().name == "NVIDIA H200"


def test_a_card_that_nvml_does_not_list_is_named_in_the_reason() -> None:
    reading = GpuMonitor("GPU-other", FakeNvml()).read()
    assert not reading.available
    assert reading.reason == "NVML lists no GPU with this UUID (GPU-other)"


def test_without_a_cuda_device_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(nvml.importlib, "import_module", refuse)
    assert GpuMonitor(None).read() == GpuReading(reason=NO_GPU)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'pynvml'")

    monkeypatch.setattr(nvml.importlib, "import_module", missing)
    reason = GpuMonitor("GPU-abc").read().reason
    assert reason == "nvidia-ml-py cannot be imported: No module named 'pynvml'"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("LibraryNotFound", "NVML library not found"),
        ("DriverNotLoaded", "driver is not loaded"),
        ("LibRmVersionMismatch", "differ in version"),
        ("NoPermission", "no permission"),
        ("Unknown", "NVML: Unknown"),
    ],
)
def test_a_driver_that_cannot_be_opened_gives_one_line(error: str, words: str) -> None:
    reason = GpuMonitor("GPU-abc", FakeNvml(nvmlInit=error)).read().reason
    assert words in reason
    assert "\n" not in reason


def test_the_real_library_gives_a_reason_or_numbers_and_never_raises() -> None:
    reading = GpuMonitor("GPU-00000000-0000-0000-0000-000000000000").read()
    assert not reading.available
    assert reading.reason


def test_a_field_that_is_not_supported_is_none_with_its_reason_and_the_others_stay() -> None:
    fake = FakeNvml(nvmlDeviceGetMemoryInfo="NotSupported", nvmlDeviceGetPowerUsage="NoPermission")
    reading = GpuMonitor("GPU-abc", fake).read()
    assert reading.available
    assert (reading.memory_used, reading.memory_total, reading.power) == (None, None, None)
    assert reading.missing == {"memory": "not supported here", "power": "no permission"}
    assert reading.utilisation == 63.0


def test_what_is_not_supported_is_not_asked_again() -> None:
    fake = FakeNvml(nvmlDeviceGetMemoryInfo="NotSupported", nvmlDeviceGetTemperature="Timeout")
    monitor = GpuMonitor("GPU-abc", fake)
    monitor.read()
    reading = monitor.read()
    assert fake.calls.count("nvmlDeviceGetMemoryInfo") == 2  # both versions of the call, once
    assert fake.calls.count("nvmlDeviceGetTemperature") == 2
    assert reading.missing == {"memory": "not supported here", "temperature": "timed out"}


def test_memory_is_counted_without_what_the_driver_keeps_where_it_can_tell() -> None:
    fake = FakeNvml()
    assert GpuMonitor("GPU-abc", fake).read().memory_used == 18 * GIB
    fake.old_driver = True
    assert GpuMonitor("GPU-abc", fake).read().memory_used == 19 * GIB


def test_a_mig_slice_reads_power_from_its_card_and_says_what_it_cannot_know() -> None:
    fake = FakeNvml(known=("MIG-abc",), nvmlDeviceGetUtilizationRates="NotSupported")
    reading = GpuMonitor("abc", fake).read()
    assert reading.power == 412.3
    assert reading.missing == {"utilisation": "not supported on a MIG slice"}


def test_a_failed_start_is_tried_again_but_not_at_every_read() -> None:
    fake = FakeNvml(nvmlInit="DriverNotLoaded")
    monitor = GpuMonitor("GPU-abc", fake)
    for _ in range(REOPEN_AFTER_READS + 1):
        assert "not loaded" in monitor.read().reason
    assert fake.calls.count("nvmlInit") == 1
    fake.failing.clear()
    assert monitor.read().available


def test_a_lost_card_gives_its_reason_and_comes_back() -> None:
    fake = FakeNvml()
    monitor = GpuMonitor("GPU-abc", fake)
    assert monitor.read().available
    fake.failing["nvmlDeviceGetUtilizationRates"] = "GpuIsLost"
    for _ in range(REOPEN_AFTER_READS):
        assert "lost" in monitor.read().reason
    fake.failing.clear()
    readings = [monitor.read() for _ in range(3)]
    assert readings[-1].available


def test_an_exception_that_is_not_nvmls_is_a_reason_too() -> None:
    class Broken(FakeNvml):
        def nvmlDeviceGetName(self, handle: str) -> str:
            raise OSError("ctypes went wrong")

    reading = GpuMonitor("GPU-abc", Broken()).read()
    assert reading.name is None
    assert reading.missing == {"name": "ctypes went wrong"}


def test_every_number_keeps_a_bounded_past() -> None:
    monitor = GpuMonitor("GPU-abc", FakeNvml())
    for _ in range(nvml.HISTORY_READINGS + 5):
        reading = monitor.read()
    assert set(reading.past) == set(nvml.KEPT)
    assert {len(past) for past in reading.past.values()} == {nvml.HISTORY_READINGS}
    assert reading.past["power"] == (412.3,) * nvml.HISTORY_READINGS


def test_a_field_that_cannot_be_read_has_no_past_and_the_others_do() -> None:
    reading = GpuMonitor("GPU-abc", FakeNvml(nvmlDeviceGetPowerUsage="NotSupported")).read()
    assert reading.past["power"] == ()
    assert reading.past["temperature"] == (54.0,)


def test_close_lets_go_once_and_may_be_called_again() -> None:
    fake = FakeNvml()
    monitor = GpuMonitor("GPU-abc", fake)
    monitor.close()
    monitor.read()
    monitor.close()
    monitor.close()
    assert fake.calls.count("nvmlShutdown") == 1


async def test_a_switch_and_a_pause_keep_the_past_of_the_card(monkeypatch) -> None:
    from engine.records import ModeChanged, Ready
    from tests.app.driving import running
    from tests.app.scripted import ON_A_CARD, ScriptedClient, engine_status
    from tests.waiting import wait_until

    made: list[str | None] = []

    class Monitor(GpuMonitor):
        def __init__(self, uuid: str | None) -> None:
            super().__init__(uuid)
            if uuid is not None:
                made.append(uuid)

    monkeypatch.setattr("tui_infer.gpu_watch.GpuMonitor", Monitor)
    async with running(ScriptedClient("ok", graphs=True)) as (app, pilot):
        app.state.apply(Ready(status=engine_status(**{**ON_A_CARD, "device_uuid": "GPU-1"})))
        await wait_until(lambda: made == ["GPU-1"])
        for mode in ("eager", "graph", "eager"):
            app.state.apply(ModeChanged(mode=mode))
            await pilot.pause(0.1)
        assert made == ["GPU-1"], "the same card goes on being read"
        app.state.apply(Ready(status=engine_status(**{**ON_A_CARD, "device_uuid": "GPU-2"})))
        await wait_until(lambda: made == ["GPU-1", "GPU-2"])
