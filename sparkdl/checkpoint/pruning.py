"""Which checkpoints go when a newer one has come."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from sparkdl.checkpoint.manifest import MANIFEST, Name, UnknownFormat
from sparkdl.errors import CheckpointDamaged, InvalidInput
from sparkdl.io.files import Folder

if TYPE_CHECKING:
    from sparkdl.checkpoint.store import Checkpoints


def prune(checkpoints: Checkpoints, own: Name) -> None:
    """Delete what a commit has made superfluous; the commit stands whatever becomes of that.

    That is what is older than ``own``, in order of time, and is not among the ``keep`` newest whole ones nor the newest
    pinned one.
    """
    whole, pins = 0, 0
    try:
        names = [name for name in reversed(checkpoints.names()) if name <= own]
    except OSError as error:
        warnings.warn(f"nothing in {checkpoints.folder.path} is pruned: {error}", RuntimeWarning, stacklevel=2)
        return
    for name in names:
        try:
            reader = checkpoints.open(str(name))
            reader.check_presence()
            pin = reader.manifest.pinned
            kept = name == own or whole < checkpoints.keep or (pin and not pins)
            whole, pins = whole + 1, pins + pin
        except (InvalidInput, UnknownFormat):  # of another run, or of a newer sparkdl: not ours to delete
            continue
        except CheckpointDamaged:
            # Never committed, or damaged: of no use behind a whole one.
            kept = False
        except OSError as error:
            warnings.warn(f"{checkpoints.folder.at(str(name))} is not pruned: {error}", RuntimeWarning, stacklevel=2)
            continue
        if not kept:
            _remove(checkpoints.folder, str(name))


def _remove(folder: Folder, name: str) -> None:
    try:
        folder.delete(f"{name}/{MANIFEST}")  # first: what is half deleted is no checkpoint
        folder.delete(name)
    except FileNotFoundError:
        return  # another writer was quicker
    except OSError as error:
        warnings.warn(
            f"checkpoint {folder.at(name)} is superfluous and cannot be deleted: {error}. Delete it by hand.",
            RuntimeWarning,
            stacklevel=2,
        )
