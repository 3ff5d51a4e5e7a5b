"""A trial's record that holds what tables and searches read of it, and reads its file for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json, to_json

from meltpoint.sweeps.ledger.records import TrialRecord

SHARED = (
    "encoder", "mode", "task", "variant", "role", "seed", "head", "status", "metric", "error", "answered_by",
    "data_fingerprint", "documents_fingerprint", "encoder_fingerprint", "code_version", "cause", "attempts",
    "driver_attempt", "test_fingerprint", "trained_together", "suggested_by", "trained_parameters", "peak_memory_kind",
    "energy_source", "energy_share",
)  # fmt: skip
"""Fields whose values many records have in common."""
OWN = (
    "id", "number", "dev", "best_epoch", "mlflow_run_id", "started_at", "seconds", "seconds_before", "test",
    "peak_memory_bytes", "energy_joules",
)  # fmt: skip
"""Fields of one record's own, all of them JSON as they are."""
GPU_SHARE = "_gpu_share"
COMMON = (*SHARED, GPU_SHARE)
"""Names of what `shared_values` gives."""
COUNT, LAST, SETTING = "_epoch_count", "_last_epoch", "_setting_json"
ENTRY = (*OWN, COUNT, LAST, SETTING)
"""Names of what `own_values` gives."""
READ, FOLDER = "_read", "_folder"
CELL_FACTS = "_cell_facts"
PART = "_part"
"""The key of a light record's values in common, under which other records have the same mapping."""

_shared, _own = attrgetter(*SHARED, "gpu_share"), attrgetter(*OWN)


def shared_values(record: TrialRecord) -> tuple[Any, ...]:
    """The values of `SHARED`, then the share of a GPU."""
    values: tuple[Any, ...] = _shared(record)
    return values


def own_values(record: TrialRecord) -> list[Any]:
    """The values of `OWN`, then the number of epochs, the last one's number, and the setting as bytes of JSON."""
    raw = record.__dict__.get(SETTING)
    setting = to_json(record.setting) if raw is None else raw
    return [*_own(record), record.epoch_count, record.last_epoch, setting]


def shared_part(values: Iterable[Any], folder: Path, read: Callable[[Path], TrialRecord]) -> dict[str, Any]:
    """The part of records that they have in common, for `LazyRecord.of`.

    Args:
        values: as from `shared_values`.
        folder: where the records' files are.
        read: reads one.
    """
    return {**dict(zip(COMMON, values, strict=True)), FOLDER: folder, READ: read}


class LazyRecord(TrialRecord):
    """A record from the ledger's index. Every way to copy, compare or write it reads its file first.

    It holds its own values and a reference to those that it has in common with others: a driver keeps one for each of
    ten thousand trials.
    """

    @classmethod
    def of(cls, shared: dict[str, Any], own: Iterable[Any]) -> LazyRecord:
        """A record of an entry of the index, whose values were validated when its file was read.

        Args:
            shared: as from `shared_part`; a hundred thousand records may have one mapping.
            own: as from `own_values`.
        """
        record = cls.__new__(cls)
        values = dict(zip(ENTRY, own, strict=True))
        values[PART] = shared
        object.__setattr__(record, "__dict__", values)  # and not what only pydantic's own methods need: see below
        return record

    def __getattr__(self, name: str) -> Any:
        """A field that is not there yet."""
        if name == "setting" and SETTING in self.__dict__:
            self.__dict__["setting"] = from_json(self.__dict__.pop(SETTING))
        elif name in type(self).model_fields and PART in self.__dict__:
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
        part = self.__dict__.get(PART)
        if part is None:
            return TrialRecord.model_construct(set(self.__dict__), **self.__dict__)
        record: TrialRecord = part[READ](part[FOLDER] / f"{self.id}.json")
        return record

    @property
    def cell_facts(self) -> tuple[str, ...]:
        """As every record's; records with a part in common have it in common, too."""
        part = self.__dict__.get(PART)
        if part is None:
            return super().cell_facts
        if CELL_FACTS not in part:
            part[CELL_FACTS] = super().cell_facts
        known: tuple[str, ...] = part[CELL_FACTS]
        return known

    @property
    def epoch_count(self) -> int:
        """The number of epochs, without reading them."""
        count: int | None = self.__dict__.get(COUNT)
        return len(self.epochs) if count is None else count

    @property
    def last_epoch(self) -> int:
        """The number of the last epoch, without reading them."""
        last: int | None = self.__dict__.get(LAST)
        return self._number_of_last() if last is None else last

    @property
    def gpu_share(self) -> float | None:
        """The share of a GPU, without reading the file."""
        part = self.__dict__.get(PART)
        share: float | None = self._share_of_hardware() if part is None else part[GPU_SHARE]
        return share

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


def _in_common(name: str) -> property:
    """A field of `SHARED`: from the part in common, or from the record itself once its file was read."""

    def read(record: LazyRecord) -> Any:
        known = record.__dict__
        return known[PART][name] if PART in known else known[name]

    return property(read)


for _name in SHARED:  # after the class, since pydantic takes what a class's body names for fields
    setattr(LazyRecord, _name, _in_common(_name))
