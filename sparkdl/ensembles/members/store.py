"""Store of finished members in the run's directory; stored members are never trained again.

    <runDir>/ensemble.json             configuration and row fingerprint of the members
    <runDir>/visible-<token>           present while members train: a task verifies by it that it sees the driver's
                                       directory, and that no later driver has taken over
    <runDir>/members/member-00005      weights, history and report of a member, written by its task
    <runDir>/members/model-00005/      saved model of a driver fit, see ``saved_models.py``

Every write is atomic. Two tasks that train the same member write bit-identical files. Loading unpickles nothing and
runs no code: see ``sparkdl.io.serialization`` and ``saved_models.py``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.ml import Model

from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.ensembles.members.saved_models import load_model, save_model
from sparkdl.errors import Fenced, InvalidInput
from sparkdl.io.files import Folder, join
from sparkdl.io.serialization import pack_pieces, unpack_state
from sparkdl.ml.run import differences

_ENSEMBLE = "ensemble.json"
_MEMBERS = "members"
_FORMAT = 2
_ADVICE = ". If the query returns other rows or another order each time, write its result to a table, or set idCol"


@dataclass(frozen=True)
class MemberStore(SharedDirectory):
    """Store of an ensemble's finished members in the run's directory."""

    @cached_property
    def _members(self) -> Folder:
        return Folder(self.folder.system, self.folder.at(_MEMBERS))

    def begin(self, configuration: Mapping[str, Any], more: Callable[[Any], Mapping[str, Any]] = lambda _: {}) -> None:
        """Write the configuration and the token, on the driver; ``withdraw`` deletes the token.

        Args:
            configuration: JSON values by name: everything that the members depend on, and the rows' fingerprint.
            more: further values, from the stored configuration, or from None without one.

        Raises:
            InvalidInput: the stored members have another configuration; the message names the differences.
        """
        names = [*self._members.sizes(""), *self._members.folders()]
        stored = self._configuration(names)
        current = json.loads(json.dumps({**configuration, **more(stored)}))
        if clauses := "; ".join(differences(stored or current, current)):
            assert stored is not None
            clauses += _ADVICE if stored.get("rows") != current.get("rows") else ""
            raise InvalidInput(
                f"{self.folder.path} has the members of another ensemble; these settings differ: {clauses}. Set "
                "another runDir, or restore these settings to continue."
            )
        if stored != current:
            text = json.dumps({"format": _FORMAT, "configuration": current}, indent=2) + "\n"
            self.folder.write(_ENSEMBLE, text.encode())
        for name in names:  # left by interrupted saves
            if name.endswith((".tmp", ".old")):
                self._members.delete(name)
        self.take_over()

    def read(self, index: int) -> dict[str, Any] | None:
        """State of a member that a task wrote; None if it is missing, or, with a warning, if it is damaged."""
        name = _name("member", index)
        try:
            packed = unpack_state(self._members.read(name))  # verifies a checksum
            if not isinstance(packed, dict) or packed.get("member") != index:
                raise InvalidInput("the file is not the state of this member.")
            state: dict[str, Any] = packed["state"]
        except FileNotFoundError:
            return None
        except InvalidInput as error:
            _warn_damaged(index, self._members.at(name), error)
            return None
        return state

    def write(self, index: int, state: Mapping[str, Any]) -> None:
        """Store a member's state from a task; raises the errors of ``check_writable``."""
        self.check_writable()
        self._members.write(_name("member", index), *pack_pieces({"member": index, "state": dict(state)}))

    def check_writable(self) -> None:
        """Check whether a task can store members.

        Raises:
            InvalidInput: this host sees another directory than the driver.
            Fenced: a later driver has taken over.
        """
        if self.folder.exists(_ENSEMBLE) and not self.sees():
            raise Fenced(
                f"another fit has begun to store members in {self.folder.path}. When it ends, call fit again to train "
                "only the missing members. If this host does not see the driver's directory, set runDir to one that "
                "all hosts share."
            )
        self.check("finished members")

    def load(self, index: int, modules: Sequence[str] = ()) -> tuple[Model, float] | None:
        """Model and seconds of a driver fit; None if they are missing, or, with a warning, if they are damaged.

        ``modules`` are those that the model may name, as in ``Saveable.load``.
        """
        name = _name("model", index)
        try:
            return load_model(join(self._models, name), modules)
        except FileNotFoundError:
            return None
        except Exception as error:  # Spark's own errors, and any error from a damaged file
            _warn_damaged(index, self._members.at(name), error)
            return None

    def save(self, index: int, model: Model, seconds: float) -> bool:
        """Store the model of a driver fit and return True; if it cannot be saved, warn and return False."""
        try:
            save_model(self._models, _name("model", index), model, seconds)
        except Exception as error:  # from Spark or the model's own code; the trained model is still used
            warnings.warn(
                f"member {index} is not stored; the next fit would train it again: {_reason(error)}", stacklevel=2
            )
            return False
        return True

    @property
    def _models(self) -> str:
        return join(self.directory, _MEMBERS)  # a URI, which Spark reads too

    def _configuration(self, names: list[str]) -> dict[str, Any] | None:
        path = self.folder.at(_ENSEMBLE)
        try:
            fields = self.folder.read_json(_ENSEMBLE, "Set another runDir, or delete this one.", format=int)
        except FileNotFoundError:
            if any(name.startswith(("member-", "model-")) for name in names):
                raise InvalidInput(
                    f"{self._members.path} has members, but {path}, which describes them, is missing; set another "
                    "runDir, or delete them."
                ) from None
            return None
        version, configuration = fields["format"], fields.get("configuration")
        if version != _FORMAT or not isinstance(configuration, dict):
            raise InvalidInput(f"{path} has the format {version!r}; expected {_FORMAT}. Set another runDir.")
        return configuration


def _name(kind: str, index: int) -> str:
    return f"{kind}-{index:05d}"


def _reason(error: Exception) -> str:
    return " ".join([f"{type(error).__name__}:", *str(error).strip().splitlines()[:2]])


def _warn_damaged(index: int, path: str, error: Exception) -> None:
    warnings.warn(
        f"the stored member {index}, {path}, cannot be used; fit trains it again: {_reason(error)}", stacklevel=3
    )
