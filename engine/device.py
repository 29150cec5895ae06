"""What hardware the engine runs on and which number format suits it."""

from dataclasses import dataclass

import torch

from engine.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device with the facts that status and panels show; ``uuid`` finds the card in NVML."""

    device: torch.device
    name: str
    uuid: str | None


def find_device(wanted: str) -> DeviceInfo:
    """Resolve ``auto``, ``cpu``, ``cuda[:N]`` or ``mps``.

    Raises:
        ConfigError: the device is not there.
    """
    if wanted == "auto":
        wanted = (
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    device = torch.device(wanted)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index or 0
        if index >= count:
            raise ConfigError(
                f"device={wanted!r} is not there: torch sees {count} CUDA device{'s' if count != 1 else ''}.",
                "Use --device cpu, or install a CUDA build of torch and check the driver.",
            )
        properties = torch.cuda.get_device_properties(index)
        return DeviceInfo(torch.device("cuda", index), properties.name, f"GPU-{properties.uuid}")
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError("device='mps' is not there.", "Use --device cpu.")
        return DeviceInfo(device, "Apple GPU", None)
    return DeviceInfo(device, cpu_name(), None)


def find_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 where the hardware multiplies it, else float32 (float16 on MPS)."""
    if wanted != "auto":
        return _DTYPES[wanted]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if device.type == "mps":
        return torch.float16
    return torch.bfloat16 if cpu_has_bf16() else torch.float32


def cpu_has_bf16() -> bool:
    """True where the processor has bfloat16 matrix instructions (AVX512-BF16, AMX or Arm BF16)."""
    capabilities = torch.backends.cpu.get_cpu_capability()
    return capabilities != "DEFAULT" and bool(cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"})


def cpu_flags() -> frozenset[str]:
    """What the processor can do, by the system's names for it; empty where the system does not say."""
    return frozenset(_cpuinfo("flags", "Features").split())


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    import platform

    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(*keys: str) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in keys:
                    return value.strip()
    except OSError:
        return ""
    return ""


def available_memory() -> int:
    """Bytes of main memory that can be taken without swapping, container limits included."""
    available = 2**62
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
    except OSError:
        import os

        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    for limit, used in _CGROUP_FILES:
        try:
            with open(limit, encoding="ascii") as a, open(used, encoding="ascii") as b:
                available = min(available, max(0, int(a.read()) - int(b.read())))
        except (OSError, ValueError):
            continue
    return available


_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def shared_memory(device: torch.device) -> int | None:
    """Bytes of shared memory that a program can have on a card; None where torch does not say."""
    found = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", None)
    return None if found is None else int(found)
