"""Files that commands write: refused before any work if they cannot be, and never half-written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcflow.errors import InputError


def check_outputs(*targets: Path | None, inputs: tuple[Path | None, ...] = ()) -> None:
    """Refuse targets that cannot be written, or would overwrite each other or an input.

    Raises
    ------
    InputError
        Naming the target and the cure.
    """
    taken = {path.resolve() for path in inputs if path is not None}
    for target in targets:
        if target is None:
            continue
        folder = target.parent
        if target.exists() and not target.is_file() and not target.is_dir():
            raise InputError("is not a regular file; give another", where=str(target))
        if target.is_dir():
            raise InputError("is a folder; give a file", where=str(target))
        if not folder.is_dir():
            raise InputError(f"cannot be written: there is no folder {folder}", where=str(target))
        if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
            raise InputError("cannot be written: permission denied", where=str(target))
        if target.resolve() in taken:
            raise InputError(
                "is already an input or another output of this command; give another file", where=str(target)
            )
        taken.add(target.resolve())


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write to, which takes the target's place when all went well.

    Raises
    ------
    InputError
        If the target cannot be written.
    """
    temporary = target.with_name(f".{target.stem}.tmp{target.suffix}")
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(target)) from None
    finally:
        if temporary.parent.is_dir():
            temporary.unlink(missing_ok=True)
