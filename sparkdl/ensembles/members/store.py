"""Store of finished members in the run's directory; stored members are never trained again.

    <runDir>/ensemble.json             configuration and row fingerprint of the members
    <runDir>/visible-<token>           present while members train: a task verifies by it that it sees the driver's
                                       directory, and that no later driver has taken over
    <runDir>/members/member-00005      weights, history and report of a member, written by its task
    <runDir>/members/model-00005/      saved model of a driver fit, see ``sparkdl.ml.trials.saved_models``

Every write is atomic. Two tasks that train the same member write bit-identical files. Loading unpickles nothing and
runs no code: see ``sparkdl.io.serialization`` and ``sparkdl.ml.trials.saved_models``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pyspark.ml import Model

from sparkdl.errors import InvalidInput
from sparkdl.io.files import Folder, join
from sparkdl.io.serialization import pack_pieces, unpack_state
from sparkdl.ml.trials.configured_directory import ConfiguredDirectory
from sparkdl.ml.trials.saved_models import load_model, save_model


@dataclass(frozen=True)
class MemberStore(ConfiguredDirectory):
    """Store of an ensemble's finished members in the run's directory."""

    title: ClassVar[str] = "ensemble"
    content: ClassVar[str] = "members"
    version: ClassVar[int] = 2

    @cached_property
    def _members(self) -> Folder:
        return Folder(self.folder.system, self.folder.at(self.content))

    def begin(self, configuration: Mapping[str, Any], more: Callable[[Any], Mapping[str, Any]] = lambda _: {}) -> None:
        """``configure`` for the stored members; also delete what interrupted saves left."""
        names = [*self._members.sizes(""), *self._members.folders()]
        self.configure(configuration, [name for name in names if name.startswith(("member-", "model-"))], more)
        for name in names:  # left by interrupted saves
            if name.endswith((".tmp", ".old")):
                self._members.delete(name)

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
        return join(self.directory, self.content)  # a URI, which Spark reads too


def _name(kind: str, index: int) -> str:
    return f"{kind}-{index:05d}"


def _reason(error: Exception) -> str:
    return " ".join([f"{type(error).__name__}:", *str(error).strip().splitlines()[:2]])


def _warn_damaged(index: int, path: str, error: Exception) -> None:
    warnings.warn(
        f"the stored member {index}, {path}, cannot be used; fit trains it again: {_reason(error)}", stacklevel=3
    )
