"""A trial's record that holds what tables and searches read of it, and reads its file for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json, to_json

from meltpoint.sweeps.ledger.records import TrialRecord

SHARED = (
    "encoder", "mode", "task", "variant", "role", "seed", "head", "status", "metric", "error", "answered_by",
    "data_fingerprint", "documents_fingerprint", "encoder_fingerprint", "code_version", "cause", "attempts",
    "driver_attempt", "test_fingerprint", "trained_together",
)  # fmt: skip
"""Fields whose values many records have in common."""
OWN = ("id", "number", "dev", "best_epoch", "mlflow_run_id", "started_at", "seconds", "test")
"""Fields of one record's own, all of them JSON as they are."""
COUNT, SETTING = "_epoch_count", "_setting_json"
READ, PATH = "_read", "_path"


def shared_values(record: TrialRecord) -> list[Any]:
    """The values of `SHARED`."""
    return [getattr(record, name) for name in SHARED]


def own_values(record: TrialRecord) -> list[Any]:
    """The values of `OWN`, then the number of epochs, and the setting as JSON."""
    values = [getattr(record, name) for name in OWN]
    return [*values, record.epoch_count, to_json(record.setting).decode()]


class LazyRecord(TrialRecord):
    """A record from the ledger's index. Every way to copy, compare or write it reads its file first."""

    @classmethod
    def of(
        cls, shared: Mapping[str, Any], own: list[Any], path: Path, read: Callable[[Path], TrialRecord]
    ) -> LazyRecord:  # fmt: skip
        """A record of an entry of the index, whose values were validated when its file was read.

        Args:
            own: as from `own_values`.
            path: the record's file.
            read: reads it.
        """
        record = cls.__new__(cls)
        values = dict(shared)
        values.update(zip((*OWN, COUNT, SETTING), own, strict=True))
        values[PATH], values[READ] = path, read
        object.__setattr__(record, "__dict__", values)  # and not what only pydantic's own methods need: see below
        return record

    def __getattr__(self, name: str) -> Any:
        """A field that is not there yet."""
        if name == "setting" and SETTING in self.__dict__:
            self.__dict__["setting"] = from_json(self.__dict__.pop(SETTING))
        elif name in type(self).model_fields and PATH in self.__dict__:
            self._fill()
        else:
            raise AttributeError(name)
        return self.__dict__[name]

    def _fill(self) -> None:
        whole = self.whole()
        self.__dict__.clear()
        self.__dict__.update(whole.__dict__)

    def whole(self) -> TrialRecord:
        """The record with every field, as its file has it now."""
        if PATH not in self.__dict__:
            return TrialRecord.model_construct(set(self.__dict__), **self.__dict__)
        record: TrialRecord = self.__dict__[READ](self.__dict__[PATH])
        return record

    @property
    def epoch_count(self) -> int:
        """The number of epochs, without reading them."""
        count: int | None = self.__dict__.get(COUNT)
        return len(self.epochs) if count is None else count

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A whole record, changed."""
        return self.whole().model_copy(update=update, deep=deep)  # type: ignore[return-value]

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Every field."""
        return self.whole().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """Every field, as JSON."""
        return self.whole().model_dump_json(**options)

    def __eq__(self, other: object) -> bool:
        return self.whole() == (other.whole() if isinstance(other, LazyRecord) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.whole())

    def __copy__(self) -> Any:
        return self.whole()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        return self.whole().model_copy(deep=True)

    def __reduce__(self) -> Any:
        """Another process gets a whole record."""
        return self.whole().__reduce__()
