"""A section of the report: a table for the eye, and the numbers behind it for JSON."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass
class Section:
    """One table.

    Attributes
    ----------
    key, title : str
        Name in the JSON file, and headline.
    header : tuple of str
        Column heads; the first column is text, the others are figures.
    rows : list of list of str
    numbers : dict
        The same figures in full precision.
    notes : list of str
        Printed below the table.
    """

    key: str
    title: str
    header: tuple[str, ...]
    rows: list[list[str]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Print it."""
        console.print(Text(self.title, "bold"))
        table = Table(box=SIMPLE_HEAD)
        for i, head in enumerate(self.header):
            table.add_column(head, justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        if self.rows:
            console.print(table)
        for note in self.notes:
            console.print(Text(f"  {note}", "dim"))
        console.print()


def against(value: float, aim: float, at_most: bool = False) -> str:
    """``met`` or ``missed``."""
    return "met" if (value <= aim if at_most else value >= aim) else "missed"


def cpu_name() -> str:
    """Name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
