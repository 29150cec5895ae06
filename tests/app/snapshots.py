"""Pictures of screens that are kept, and compared cell by cell: text, colours, weight and place.

``UPDATE_SNAPSHOTS=1 pytest tests/app/test_snapshots.py`` writes them anew; they are compressed SVG files that
a browser opens. What a picture is made of counts, not how the library writes its markup.
"""

import gzip
import os
import re
from html import unescape
from pathlib import Path

from tui_infer.app import TuiInferApp

KEPT = Path(__file__).parent / "snapshots"

_RULE = re.compile(r"\.[\w-]+-(r\d+) \{ ([^}]*) \}")
_TEXT = re.compile(r'<text class="[\w-]+-(r\d+)" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>')
_RECT = re.compile(r'<rect fill="([^"]+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"')

Cell = tuple[float, float, str, str]  # y, x, text or width, style


def drawn(svg: str) -> list[Cell]:
    """Every run of text and of background of a screenshot, in the order of the screen."""
    rules = dict(_RULE.findall(svg))
    texts = [
        (float(y), float(x), unescape(text).replace("\u00a0", " "), rules.get(rule, ""))
        for rule, x, y, text in _TEXT.findall(svg)
    ]
    grounds = [(float(y), float(x), width, color) for color, x, y, width in _RECT.findall(svg)]
    return sorted(texts) + sorted(grounds)


def compare(app: TuiInferApp, name: str, failed: Path) -> None:
    """The screen is as it was kept under ``name``; else it is written to ``failed`` and the test fails."""
    svg = app.export_screenshot(title="tui-infer")
    kept = KEPT / f"{name}.svgz"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        KEPT.mkdir(exist_ok=True)
        if not kept.exists() or drawn(read(kept)) != drawn(svg):
            kept.write_bytes(gzip.compress(svg.encode(), 9, mtime=0))
        return
    assert kept.exists(), f"no picture is kept for {name}: UPDATE_SNAPSHOTS=1 writes it"
    was, now = drawn(read(kept)), drawn(svg)
    if was == now:
        return
    failed.mkdir(parents=True, exist_ok=True)
    (failed / f"{name}.svg").write_text(svg)
    lost = [cell for cell in was if cell not in now][:8]
    new = [cell for cell in now if cell not in was][:8]
    raise AssertionError(f"{name} looks different ({failed / name}.svg):\nwas {lost}\nis  {new}")


def read(kept: Path) -> str:
    return gzip.decompress(kept.read_bytes()).decode()
