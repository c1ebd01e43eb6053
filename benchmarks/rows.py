"""Rows of long benchmarks, kept as they are finished, so that a run that was ended goes on."""

import json
from collections.abc import Callable
from pathlib import Path


def kept(path: Path, key: Callable[[dict], tuple]) -> dict:
    """Return the finished rows by ``key``; the last of each counts."""
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # an empty line, or half of one from a run that was killed
            continue
        rows[key(row)] = row
    return rows


def keep(path: Path, row: dict) -> None:
    """Append a row in one piece, on a line of its own whatever the last run left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("\n" + json.dumps(row))
