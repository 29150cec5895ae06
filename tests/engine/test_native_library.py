"""How the C library is compiled, kept and loaded, with sources that take no time to compile."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.native import library
from tui_infer.config_sources import load_config

MISSING = library.native_missing()
needs_native = pytest.mark.skipif(bool(MISSING), reason=MISSING or "it is there")
SOURCE = """
void forward(void *model, void *value) {}
long space_bytes(void *model, void *value) { return 0; }
const char *products(void) { return "tiny"; }
"""
LOADS = """
from pathlib import Path
from engine.native import library
library.SOURCES = Path({sources!r})
print(library.compiles_first(), library.native_missing(), library.native_products())
"""


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The cache's folder; the sources are a few lines and the processor is fit."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "step.c").write_text(SOURCE)
    monkeypatch.setattr(library, "SOURCES", sources)
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("TUI_INFER_NATIVE", raising=False)
    if library._against():
        pytest.skip(library._against())
    library._loaded.cache_clear()
    yield tmp_path / "cache" / "native"
    library._loaded.cache_clear()


def compiler(monkeypatch, path: Path, body: str) -> Path:
    """A shell script that ``CC`` names."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    return path


def reason() -> str:
    library._loaded.cache_clear()
    return library.native_missing()


def replace(path: Path, content: bytes) -> None:
    """Write another file of that name: the old one may be mapped into this process."""
    path.unlink()
    path.write_bytes(content)


# --- what is kept ----------------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize("damage", ["truncated", "zeroed", "empty"])
def test_a_damaged_library_is_made_anew_and_never_loaded(small, damage):
    assert reason() == ""
    (made,) = small.iterdir()
    whole = made.read_bytes()
    half = len(whole) // 2
    replace(made, {"truncated": whole[:half], "zeroed": bytes(half) + whole[half:], "empty": b""}[damage])
    script = LOADS.format(sources=str(library.SOURCES))
    for compiles in (True, False):  # a process of its own: a damaged library would end it
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stdout.split() == [str(compiles), "tiny"], done.stderr
    (again,) = small.iterdir()
    assert library._name(library._key(library._compiler()), again) == again.name


@needs_native
def test_a_library_that_does_not_load_is_made_anew_once(small):
    key = library._key(library._compiler())
    small.mkdir(parents=True)
    rubbish = small / "rubbish"
    rubbish.write_text("no library")
    rubbish.rename(small / library._name(key, rubbish))
    assert not library.compiles_first()
    assert reason() == ""
    (made,) = small.iterdir()
    assert made.read_bytes().startswith(b"\x7fELF")


@needs_native
def test_a_library_that_lacks_a_function_is_not_kept(small):
    (library.SOURCES / "step.c").write_text("void forward(void) {}\n")
    assert "space_bytes" in reason()
    assert list(small.iterdir()) == []


def test_rubbish_of_a_compiler_that_is_content_is_not_kept(small, monkeypatch, tmp_path):
    compiler(
        monkeypatch,
        tmp_path / "cc",
        'for word; do case $word in *.o|*.so) echo rubbish >"$word";; esac; done',
    )
    assert reason().startswith("the C code does not load: ")
    assert list(small.iterdir()) == []


@needs_native
def test_the_newest_libraries_stay_and_folders_of_killed_starts_go(small):
    small.mkdir(parents=True)
    for age in range(1, 7):
        old = small / f"{age}.so"
        old.touch()
        os.utime(old, (time.time() - 100 * age,) * 2)
    for name, age in (("tmpold", 2 * library.DAY_S), ("tmpnew", 0), ("other", 2 * library.DAY_S)):
        (small / name).mkdir()
        (small / name / "step.o").touch()
        os.utime(small / name, (time.time() - age,) * 2)
    assert reason() == ""
    left = {path.name for path in small.iterdir()}
    made = library._kept(library._key(library._compiler()))
    assert left == {made.name, "1.so", "2.so", "3.so", "tmpnew", "other"}


# --- the compiler ----------------------------------------------------------------------------------


def test_what_a_compiler_says_need_not_be_utf_8(small, monkeypatch, tmp_path):
    path = compiler(monkeypatch, tmp_path / "cc", r"printf 'error: \377\376 is wrong\n' >&2; exit 1")
    assert reason() == f"{path} failed: error: \ufffd\ufffd is wrong"


def test_a_compiler_that_fails_in_silence_is_told_by_its_status(small, monkeypatch, tmp_path):
    path = compiler(monkeypatch, tmp_path / "cc", "exit 1")
    assert reason() == f"{path} failed: it ended with status 1 and said nothing"
    compiler(monkeypatch, tmp_path / "cc", "exit 0")
    assert reason() == f"{path} failed: it ended with status 0 and made nothing"


@needs_native
def test_cc_may_hold_options_and_a_compiler_behind_another(small, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "gcc -m64" if library.shutil.which("gcc") else "cc -m64")
    assert library._compiler()[1:] == ["-m64"]
    assert reason() == ""
    before = compiler(monkeypatch, tmp_path / "before", f'echo "$1" >>{tmp_path}/asked; exec "$@"')
    monkeypatch.setenv("CC", f"{before} cc")
    assert reason() == ""
    assert (tmp_path / "asked").read_text().split() == ["cc", "cc"]


def test_cc_may_be_a_path_with_a_blank(small, monkeypatch, tmp_path):
    path = compiler(monkeypatch, tmp_path / "my cc", "exit 1")
    assert library._compiler() == [str(path)]
    monkeypatch.setenv("CC", f"'{path}' -m64")
    assert library._compiler() == [str(path), "-m64"]


def test_a_wish_for_a_compiler_that_is_not_there_is_no_wish_for_another(small, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "/nonexistent -m64")
    assert reason() == "CC names '/nonexistent', which is not there"
    assert not library.compiles_first()
    monkeypatch.setenv("CC", str(tmp_path))
    assert reason() == f"CC names {str(tmp_path)!r}, which cannot be run"
    monkeypatch.setenv("CC", "gcc 'unended")
    assert reason() == 'CC is "gcc \'unended", which cannot be read: No closing quotation'


def test_what_a_slow_compiler_started_ends_with_it(small, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "TIMEOUT_S", 1)
    path = compiler(monkeypatch, tmp_path / "cc", f"sleep 600 & echo $! >{tmp_path}/child; wait")
    assert reason() == f"{path} was not done after 1 seconds"
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    for _ in range(1000):  # until whoever adopted it has seen its end
        if not child.exists() or child.read_text().rpartition(")")[2].split()[0] in "ZX":
            break
        time.sleep(0.01)
    else:
        pytest.fail("it runs on")
    assert list(small.iterdir()) == []


# --- folders and switches --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a file", "not to be searched", "not to be written to"])
def test_a_cache_folder_that_cannot_be_used_is_a_reason(small, kind):
    small.parent.mkdir()
    if kind == "a file":
        small.touch()
    else:
        small.mkdir(mode=0 if kind == "not to be searched" else stat.S_IRUSR | stat.S_IXUSR)
        if os.access(small, os.W_OK):
            small.chmod(0o755)
            pytest.skip("this user may do everything")
    try:
        library.compiles_first()
        assert reason().startswith(f"the C code cannot be built in {small}: ")
    finally:
        small.chmod(0o755)


def test_nothing_is_raised_where_the_cache_may_not_be_looked_at(small, monkeypatch):
    def refuse(*given, **named):
        raise PermissionError(13, "Permission denied")

    for name in ("_kept", "_key"):
        with monkeypatch.context() as patch:
            patch.setattr(library, name, refuse)
            library._loaded.cache_clear()
            assert not library.compiles_first()
            assert "Permission denied" in reason()


def test_a_compiler_that_goes_away_is_a_reason(small, monkeypatch):
    monkeypatch.setattr(library, "_compiler", lambda: ["/nonexistent/cc"])
    assert library.compiles_first()
    assert reason().startswith("/nonexistent/cc did not run: ")


def test_a_switch_that_is_neither_yes_nor_no_is_a_reason(small, monkeypatch):
    monkeypatch.setenv("TUI_INFER_NATIVE", "Banana")
    assert reason() == "TUI_INFER_NATIVE is 'banana', which is neither yes nor no"
    assert not library.compiles_first()


@pytest.mark.parametrize("word", [*filter(None, library.YES), *library.NO, " OFF "])
def test_the_program_lets_the_switch_through_as_the_engine_reads_it(small, monkeypatch, tmp_path, word):
    config = load_config(tmp_path / "none.toml", {"TUI_INFER_NATIVE": word})
    assert config.origins == {}
    monkeypatch.setenv("TUI_INFER_NATIVE", word)
    off = "TUI_INFER_NATIVE switches it off"
    assert library._against() == (off if word.strip().lower() in library.NO else "")


def test_the_program_refuses_a_switch_that_is_neither_yes_nor_no(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none.toml", {"TUI_INFER_NATIVE": "banana"})
    assert caught.value.message == "TUI_INFER_NATIVE='banana': write true or false."
    with pytest.raises(ConfigError, match="TUI_INFER_NATIVE"):
        load_config(tmp_path / "none.toml", {"TUI_INFER_NATIV": "0"})
