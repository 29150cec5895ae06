"""What the GPU tests measured, as files: one JSON a subject, added to by each test."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from engine.bench.header import header


def write(name: str, values: dict[str, Any]) -> None:
    """Merge ``values`` into ``$TUI_INFER_RESULTS/name.json``; without that variable nothing is kept."""
    folder = os.environ.get("TUI_INFER_RESULTS")
    if not folder:
        return
    path = Path(folder) / f"{name}.json"
    found = json.loads(path.read_text()) if path.is_file() else {"header": _header(), "results": {}}
    for key, value in values.items():
        known = found["results"].get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        found["results"][key] = {**known, **value} if both else value
    path.write_text(json.dumps(found, indent=2) + "\n")


def _header() -> dict[str, Any]:
    return {**header(), "command": "python -m pytest -m gpu tests/gpu", "python": sys.version.split()[0]}
