"""The checkpoints of one run: written by all members, committed by one, found again."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from sparkdl.checkpoint.fencing import Attempts
from sparkdl.checkpoint.manifest import MANIFEST, SHARD, Digest, Manifest, Name, UnknownFormat
from sparkdl.checkpoint.reader import Reader, damage
from sparkdl.errors import CheckpointDamaged, InvalidInput
from sparkdl.io.files import Buffer, Folder, absolute
from sparkdl.io.threads import in_background
from sparkdl.telemetry.clock import Clock


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run. Copies of one object, pickled ones too, are the same writer.

    Attributes:
        directory: a local path or a ``pyarrow.fs`` URI of their own, such as ``<runDir>/checkpoints``. Not shown, for a
            URI may hold credentials.
        run: the run's identity; what another run wrote is refused by name.
        keep: how many committed checkpoints to keep, at least 1; the newest pinned one is kept besides.
        writer: who announces attempts; a random id.

    Raises:
        InvalidInput: ``keep`` is less than 1, ``run`` is empty, or pyarrow knows no such filesystem.
    """

    directory: str = field(repr=False)
    run: str
    keep: int = 2
    writer: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise InvalidInput(f"keep is {self.keep}; expected at least 1 checkpoint to keep.")
        if not self.run:
            raise InvalidInput("run is empty; expected the run's identity, so that no other run reads its checkpoints.")
        object.__setattr__(self, "directory", absolute(self.directory))

    @cached_property
    def folder(self) -> Folder:
        """The directory, looked up once in each process."""
        return Folder.of(self.directory)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: a filesystem is looked up anew where the copy arrives."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Set the fields."""
        self.__dict__.update(state)

    @property
    def attempts(self) -> Attempts:
        """The attempts that were announced."""
        return Attempts(self.folder, self.run, self.writer)

    def next_attempt(self) -> int:
        """The number of the next attempt: greater than of any that began, was asked to stop or left a checkpoint."""
        begun = [*self.attempts.known(), *(name.attempt for name in self.names())]
        return max(begun, default=-1) + 1

    def fence(self, attempt: int) -> None:
        """Announce an attempt, before anything of it starts: older ones may no longer commit.

        Again for the same attempt it does nothing.

        Raises:
            Fenced: a newer attempt, or the same by another writer, has been announced.
            InvalidInput: the directory belongs to another run.
        """
        self.attempts.announce(attempt)

    def ask_to_stop(self, attempt: int) -> None:
        """Ask the members of an attempt to save and to stop, from the driver.

        A small file says so, for the directory is what driver and members all see, also where no member can reach the
        driver or the driver a member. It is of this attempt alone; later ones go on.

        Raises:
            OSError: it cannot be written.
        """
        self.attempts.ask_to_stop(attempt)

    def asked_to_stop(self, attempt: int) -> bool:
        """Whether ``ask_to_stop`` was called for this attempt, by whatever process.

        Raises:
            OSError: the filesystem cannot be reached.
        """
        return self.attempts.asked_to_stop(attempt)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def name(self, clock: Clock, attempt: int) -> str:
        """The name of the checkpoint at this time of the run."""
        return str(Name(attempt, clock.epoch, clock.step))

    def write(self, name: str, shard: str, *data: Buffer) -> Future[Digest]:
        """Write a shard in a thread of its own; members write theirs at the same time.

        Args:
            name: the checkpoint's, as ``name`` gives it.
            shard: letters, digits, ``.``, ``_`` and ``-``; no other member's.
            data: the bytes, whole or in pieces, which must not change until the future is done.

        Returns:
            The digest for ``commit``, once the shard is safe on the disk. The future raises OSError where it could not
            be written; the checkpoint is then not committed, and those before it stay as they are.

        Raises:
            InvalidInput: such a name or shard cannot be. The future raises it where the checkpoint is committed.
        """
        _parse(name)
        if not SHARD.fullmatch(shard) or shard == MANIFEST or shard.endswith(".tmp"):
            raise InvalidInput(
                f"a shard cannot be named {shard!r}; expected letters, digits, '.', '_' and '-', and neither "
                f"{MANIFEST} nor *.tmp."
            )
        return in_background(lambda: self._write(name, shard, data), "sparkdl-checkpoint")

    def _write(self, name: str, shard: str, data: Sequence[Buffer]) -> Digest:
        self._check_new(name)
        digest = Digest.of(shard, *data)
        try:
            self.folder.write(f"{name}/{shard}", *data)
        except OSError as error:
            raise OSError(
                error.errno,
                f"shard {shard} ({digest.size} bytes) of checkpoint {self.folder.at(name)} cannot be written: {error}. "
                "The checkpoints before it are as they were; make room, or take another runDir",
            ) from error
        return digest

    def commit(
        self,
        name: str,
        digests: Sequence[Digest],
        clock: Clock,
        *,
        world_size: int,
        pinned: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a checkpoint exist, on rank 0 once all shards are written; then prune older ones.

        Checkpoints are committed in order of time: what is older and not committed by now is abandoned, and pruned. A
        failure to prune is a warning.

        Args:
            name: the checkpoint's.
            digests: what ``write`` gave for each shard, from all members.
            clock: how far the run has come; the one that the name was made from.
            world_size: members of the gang.
            pinned: keep it, while it is the newest pinned one, whatever ``keep`` says.
            extra: anything else to find in the manifest, as JSON: tuples come back as lists, NaN as NaN.

        Raises:
            Fenced: a newer attempt has begun, or this one was not announced by this writer. Where it began at the very
                moment of the commit, the checkpoint exists all the same, and nothing is pruned.
            CheckpointDamaged: a shard is not there in its size, as where members do not see the same directory.
            InvalidInput: the checkpoint is committed already, a shard is named twice or none is given, the name is not
                the clock's, or ``extra`` is not JSON.
        """
        own = _parse(name)
        shards = {digest.shard: digest for digest in sorted(digests, key=lambda digest: digest.shard)}
        if not shards or len(shards) < len(digests):
            named = ", ".join(digest.shard for digest in digests) or "none"
            raise InvalidInput(f"checkpoint {name} was given the shards {named}; expected each once, and at least one.")
        if (own.epoch, own.step) != (clock.epoch, clock.step):
            raise InvalidInput(f"checkpoint {name} is not of {clock}; expected the clock that its name was made from.")
        kept = Clock(**clock.state_dict())
        manifest = Manifest(name, self.run, own.attempt, kept, world_size, shards, pinned, dict(extra or {}))
        for _ in self._commit(own, manifest):
            continue

    def _commit(self, own: Name, manifest: Manifest) -> Iterator[str]:
        """The steps of a commit, one by one: between any two, another writer may do anything."""
        packed = manifest.to_bytes()
        reader = Reader(Folder(self.folder.system, self.folder.at(manifest.name)), manifest)
        self._check_new(manifest.name)
        self.attempts.check(own.attempt)
        reader.check_presence()
        yield "checked"
        reader.folder.write(MANIFEST, packed)
        yield "committed"
        self.attempts.check(own.attempt)
        yield "checked again"
        self._prune(own)

    def _check_new(self, name: str) -> None:
        if self.folder.exists(f"{name}/{MANIFEST}"):
            raise InvalidInput(
                f"checkpoint {self.folder.at(name)} is committed already; take next_attempt() for a new attempt."
            )

    def _prune(self, own: Name) -> None:
        """Delete what a commit has made superfluous; the commit stands whatever becomes of that.

        That is what is older than ``own``, in order of time, and is not among the ``keep`` newest whole ones nor the
        newest pinned one.
        """
        whole, pins = 0, 0
        try:
            names = [name for name in reversed(self.names()) if name <= own]
        except OSError as error:
            warnings.warn(f"nothing in {self.folder.path} is pruned: {error}", RuntimeWarning, stacklevel=2)
            return
        for name in names:
            try:
                reader = self.open(str(name))
                reader.check_presence()
                pin = reader.manifest.pinned
                kept = name == own or whole < self.keep or (pin and not pins)
                whole, pins = whole + 1, pins + pin
            except (InvalidInput, UnknownFormat):  # of another run, or of a newer sparkdl: not ours to delete
                continue
            except CheckpointDamaged:
                # Never committed, or damaged: of no use behind a whole one.
                kept = False
            except OSError as error:
                warnings.warn(f"{self.folder.at(str(name))} is not pruned: {error}", RuntimeWarning, stacklevel=2)
                continue
            if not kept:
                self._remove(str(name))

    def _remove(self, name: str) -> None:
        try:
            self.folder.delete(f"{name}/{MANIFEST}")  # first: what is half deleted is no checkpoint
            self.folder.delete(name)
        except FileNotFoundError:
            return  # another writer was quicker
        except OSError as error:
            warnings.warn(
                f"checkpoint {self.folder.at(name)} is superfluous and cannot be deleted: {error}. Delete it by hand.",
                RuntimeWarning,
                stacklevel=2,
            )

    # ---- reading -----------------------------------------------------------------------------------------------------

    def latest(self, *, verify: bool = True, before: str | None = None) -> tuple[str, Reader] | None:
        """The newest checkpoint that is as it was committed, by attempt, epoch and step; None where there is none.

        One that is not is skipped with a warning that says what is wrong with it.

        Args:
            verify: read every shard and check its hash; else only that it is there in its size.
            before: look only at older ones than this.

        Raises:
            InvalidInput: what is in the directory belongs to another run.
            OSError: the filesystem cannot be reached.
        """
        end = None if before is None else _parse(before)
        for name in reversed(self.names()):
            if end is not None and name >= end:
                continue
            try:
                reader = self.open(str(name))
                reader.check_presence()
                if verify:
                    reader.verify()
                return str(name), reader
            except CheckpointDamaged as found:
                warnings.warn(
                    f"{found.message} The one before it is taken, if there is one.", RuntimeWarning, stacklevel=2
                )
        return None

    def epoch(self) -> int:
        """The epochs that are over in the newest committed checkpoint, whatever state it is in; 0 where there is none.

        It is for showing how far a run is: nothing is read, and nothing is warned of.
        """
        committed = (name for name in reversed(self.names()) if self.folder.exists(f"{name}/{MANIFEST}"))
        return next((name.epoch for name in committed), 0)

    def open(self, name: str) -> Reader:
        """A committed checkpoint by its name; its shards are checked when they are read.

        Raises:
            CheckpointDamaged: it was never committed, or its manifest is damaged or of another format.
            InvalidInput: it belongs to another run.
        """
        folder = Folder(self.folder.system, self.folder.at(str(_parse(name))))
        try:
            manifest = Manifest.from_bytes(folder.read(MANIFEST))
        except FileNotFoundError as error:
            raise damage(folder, "it has no manifest: whoever wrote it did not finish") from error
        except CheckpointDamaged as found:
            raise type(found)(damage(folder, found.message).message) from found
        self.attempts.check_run(manifest.run)
        if manifest.name != name:
            raise damage(folder, f"its manifest is that of {manifest.name}")
        return Reader(folder, manifest)

    def names(self) -> list[Name]:
        """What is in the directory, in order of time, committed or not."""
        return sorted(name for name in map(Name.parse, self.folder.folders()) if name is not None)


def _parse(name: str) -> Name:
    found = Name.parse(name)
    if found is None:
        raise InvalidInput(f"{name!r} is not a checkpoint's name; expected one like {Name(2, 3, 123)}, of name().")
    return found
