"""The checkpoints of one run: written by all workers, committed by rank 0, restored by later attempts."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from sparkdl.checkpoint.fencing import Attempts
from sparkdl.checkpoint.manifest import MANIFEST, SHARD, CheckpointName, Digest, Manifest
from sparkdl.checkpoint.reader import Reader, damage
from sparkdl.data.clock import Clock
from sparkdl.errors import CheckpointDamaged, InvalidInput
from sparkdl.io.fields import CheckedFields, Count, NonNegative
from sparkdl.io.files import Buffer, Folder, absolute
from sparkdl.io.threads import in_background

NEXT = "sparkdl resumes from the checkpoint before it, if there is one."


@dataclass(frozen=True)
class Checkpoints(CheckedFields):
    """The checkpoints of one run. Copies and pickled copies of one object are the same writer.

    Attributes:
        directory: a local path or ``pyarrow.fs`` URI of their own, such as ``<runDir>/checkpoints``. Hidden in
            ``repr``, since a URI may hold credentials.
        run: the run's identity; checkpoints of other runs raise.
        keep: number of committed checkpoints to keep, at least 1, besides the newest pinned one.
        writer: the id under which this object announces attempts; default: random.
        began: unix seconds at which the run would have begun without pauses between its fits; default: now.

    Raises:
        InvalidInput: ``keep`` is below 1, ``run`` is empty, or pyarrow does not know the filesystem.
    """

    directory: str = field(repr=False)
    run: str
    keep: Count = 2
    writer: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: NonNegative = field(default_factory=time.time)

    def _check(self) -> None:
        if not self.run:
            raise InvalidInput("run is empty; expected the run's identity, so that no other run reads its checkpoints.")
        object.__setattr__(self, "directory", absolute(self.directory))

    @cached_property
    def folder(self) -> Folder:
        """The directory, opened once per process."""
        return Folder.of(self.directory)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields alone: each process opens the filesystem itself."""
        return {field_.name: getattr(self, field_.name) for field_ in fields(self)}

    @property
    def attempts(self) -> Attempts:
        """The announced attempts."""
        return Attempts(self.folder, self.run, self.writer)

    def next_attempt(self) -> int:
        """The next attempt's number: greater than any that started, was asked to stop or wrote a checkpoint."""
        numbers = [*self.attempts.announced("json|stop"), *(name.attempt for name in self.names())]
        return max(numbers, default=-1) + 1

    def fence(self, attempt: int) -> None:
        """Announce an attempt before it starts, so that older attempts can no longer commit; idempotent.

        Raises:
            Fenced: a newer attempt exists, or another writer announced this one.
            InvalidInput: the directory belongs to another run.
        """
        self.attempts.announce(attempt)

    def name(self, clock: Clock, attempt: int) -> str:
        """The name of an attempt's checkpoint at ``clock``."""
        return str(CheckpointName(attempt, clock.epoch, clock.step))

    def write(self, name: str, shard: str, *data: Buffer) -> Future[Digest]:
        """Write a shard in a thread of its own; workers write in parallel.

        Args:
            name: the checkpoint's, from ``name``.
            shard: letters, digits, ``.``, ``_`` and ``-``; unique over all workers.
            data: the bytes, in one or several chunks; they must not change until the future is done.

        Returns:
            The digest for ``commit``, once the shard is durable. The future raises OSError if the write fails, and
            InvalidInput if the checkpoint is committed already.
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
                "Free disk space, or take another runDir",
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
        """Commit a checkpoint on rank 0 once all shards are written, then prune older ones.

        Older checkpoints that are not committed by now are abandoned and pruned. If pruning fails, it warns.

        Args:
            name: the checkpoint's, made from ``clock``.
            digests: the results of ``write`` for every shard of all workers.
            clock: epoch, step and samples of the run.
            world_size: workers of the gang.
            pinned: keep it while it is the newest pinned one, regardless of ``keep``.
            extra: JSON entries of the manifest besides ``seconds``, those of the run; tuples become lists.

        Raises:
            Fenced: a newer attempt has started, or this writer did not announce this one. If it started during the
                commit, the checkpoint exists nevertheless, and nothing is pruned.
            CheckpointDamaged: a shard is missing or has another size, as when workers do not share the directory.
            InvalidInput: the checkpoint exists already, a digest is missing or double, or name or ``extra`` is invalid.
        """
        parsed = _parse(name)
        shards = {digest.shard: digest for digest in sorted(digests, key=lambda digest: digest.shard)}
        if not shards or len(shards) < len(digests):
            names = ", ".join(digest.shard for digest in digests) or "none"
            raise InvalidInput(f"checkpoint {name} has the shards {names}; expected at least one, and each once.")
        if (parsed.epoch, parsed.step) != (clock.epoch, clock.step):
            raise InvalidInput(f"checkpoint {name} does not match {clock}; expected the clock of its name.")
        clock = Clock(**clock.state_dict())
        more = {"seconds": max(0.0, time.time() - self.began), **(extra or {})}
        manifest = Manifest(name, self.run, parsed.attempt, clock, world_size, shards, pinned, more)
        for _ in self._commit(parsed, manifest):
            continue

    def _commit(self, newest: CheckpointName, manifest: Manifest) -> Iterator[str]:
        packed = manifest.to_bytes()
        reader = Reader(Folder(self.folder.system, self.folder.at(manifest.name)), manifest)
        self._check_new(manifest.name)
        self.attempts.check(newest.attempt)
        reader.check_presence()
        yield "checked"
        reader.folder.write(MANIFEST, packed)
        yield "committed"
        self.attempts.check(newest.attempt)
        yield "checked again"
        self._prune(newest)

    def prune(self) -> None:
        """Delete all checkpoints but the newest intact one, once no attempt runs; warn if that fails."""
        if (newest := self.latest(verify=False)) is not None:
            replace(self, keep=1)._prune(_parse(newest[0]))

    def _check_new(self, name: str) -> None:
        if self.folder.exists(f"{name}/{MANIFEST}"):
            raise InvalidInput(f"checkpoint {self.folder.at(name)} exists already; start another by next_attempt().")

    def _prune(self, newest: CheckpointName) -> None:
        complete = pins = 0
        names: list[CheckpointName] = []
        with _warning(self.folder.path):
            names = [name for name in reversed(self.names()) if name <= newest]
        for name in names:
            with _warning(self.folder.at(str(name))):
                try:
                    pin = self._complete(str(name)).manifest.pinned
                    keep = name == newest or complete < self.keep or (pin and not pins)
                    complete, pins = complete + 1, pins + pin
                except InvalidInput:  # of another run or another version of sparkdl
                    continue
                except CheckpointDamaged:  # never committed, or damaged, and a newer complete one exists
                    keep = False
                if not keep:
                    with suppress(FileNotFoundError):  # another writer deleted it
                        self.folder.delete(f"{name}/{MANIFEST}")  # first, so that a partial checkpoint has no manifest
                        self.folder.delete(str(name))

    def latest(self, *, verify: bool = True, before: str | None = None) -> tuple[str, Reader] | None:
        """The newest intact checkpoint, by attempt, epoch and step; None if there is none.

        A damaged checkpoint is skipped with a warning that names the damage. ``verify`` reads every shard and checks
        its hash; else only presence and size are checked. ``before`` considers only checkpoints older than this one.
        Raises InvalidInput if the directory belongs to another run or another version of sparkdl.
        """
        end = None if before is None else _parse(before)
        for name in reversed(self.names()):
            if end is not None and name >= end:
                continue
            try:
                reader = self._complete(str(name))
                if verify:
                    reader.verify()
                return str(name), reader
            except CheckpointDamaged as error:
                warnings.warn(f"{error.message} {NEXT}", RuntimeWarning, stacklevel=2)
        return None

    def epoch(self) -> int:
        """Completed epochs of the newest committed checkpoint, intact or not; 0 if there is none. Only lists files."""
        committed = (name for name in reversed(self.names()) if self.folder.exists(f"{name}/{MANIFEST}"))
        return next((name.epoch for name in committed), 0)

    def world_size(self) -> int | None:
        """Workers, or shards, of the newest checkpoint with an intact manifest, of any run; None if there is none."""
        for name in reversed(self.names()):
            with suppress(CheckpointDamaged, InvalidInput):  # ``latest`` reports them
                return self._manifest(str(name))[1].world_size
        return None

    def extra(self) -> Mapping[str, Any]:
        """The ``extra`` of the newest checkpoint with an intact manifest, of any run; empty if there is none."""
        for name in reversed(self.names()):
            with suppress(CheckpointDamaged, InvalidInput):  # ``latest`` reports them
                return self._manifest(str(name))[1].extra
        return {}

    def open(self, name: str) -> Reader:
        """Open a committed checkpoint; its shards are verified when read.

        Raises:
            CheckpointDamaged: it is not committed, or its manifest is damaged.
            InvalidInput: it belongs to another run, or another version of sparkdl wrote it.
        """
        folder, manifest = self._manifest(name)
        self.attempts.check_run(manifest.run)
        if manifest.name != name:
            raise damage(folder, f"it has the manifest of {manifest.name}")
        return Reader(folder, manifest)

    def _manifest(self, name: str) -> tuple[Folder, Manifest]:
        folder = Folder(self.folder.system, self.folder.at(str(_parse(name))))
        try:
            return folder, Manifest.from_bytes(folder.read(MANIFEST))
        except FileNotFoundError as error:
            raise damage(folder, "it has no manifest: its writer did not finish") from error
        except InvalidInput as error:
            raise InvalidInput(f"checkpoint {folder.path} cannot be used: {error.message}") from error
        except CheckpointDamaged as error:
            raise damage(folder, error.message) from error

    def _complete(self, name: str) -> Reader:
        reader = self.open(name)
        reader.check_presence()
        return reader

    def names(self) -> list[CheckpointName]:
        """All checkpoints in the directory, committed or not, in order of time."""
        return sorted(name for name in map(CheckpointName.parse, self.folder.folders()) if name is not None)


@contextmanager
def _warning(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        warnings.warn(f"{place} cannot be pruned: {error}. Delete it by hand.", RuntimeWarning, stacklevel=4)


def _parse(name: str) -> CheckpointName:
    parsed = CheckpointName.parse(name)
    if parsed is None:
        example = CheckpointName(2, 3, 123)
        raise InvalidInput(f"{name!r} is not a checkpoint's name; expected one from name(), like {example}.")
    return parsed
