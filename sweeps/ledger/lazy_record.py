"""A trial's record that keeps the values that tables and searches read, and loads the rest from its file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic_core import from_json, to_json

from meltpoint.sweeps.ledger.records import CELL, FACTS, TrialRecord

SHARED = (
    "encoder", "mode", "task", "variant", "role", "seed", "head", "status", "metric", "error", "answered_by",
    "data_fingerprint", "documents_fingerprint", "encoder_fingerprint", "code_version", "cause", "attempts",
    "driver_attempt", "test_fingerprint", "trained_together", "suggested_by", "trained_parameters", "peak_memory_kind",
    "energy_source", "energy_share", "gpu_share",
)  # fmt: skip
"""Attributes of a record whose values many records share."""
SETTING_NAMES = "setting_names"
COMMON = (*SHARED, SETTING_NAMES)
"""The names of the values that `shared_values` returns."""


class OwnValues(NamedTuple):
    """A record's own values: attributes by name, and the setting's values as JSON."""

    id: str
    number: int
    dev: float | None
    best_epoch: int | None
    mlflow_run_id: str | None
    started_at: float
    seconds: float
    seconds_before: float
    test: dict[str, float] | None
    peak_memory_bytes: int | None
    energy_joules: float | None
    epoch_count: int
    last_epoch: int
    setting_values: bytes


OWN = OwnValues._fields[:-1]
"""A record's own attributes, all of them valid JSON values."""

_shared, _own = attrgetter(*SHARED), attrgetter(*OWN)


class CommonValues:
    """Values that many records share: an attribute for each name in `COMMON`, and the cell's facts.

    Args:
        values: as returned by `shared_values`.
        folder: the folder of the records' files.
        read: reads one file.
    """

    def __init__(self, values: Sequence[Any], folder: Path, read: Callable[[Path], TrialRecord]) -> None:
        known = dict(zip(COMMON, values, strict=True))
        self.__dict__.update(known)
        self.cell_facts = tuple(known[name] for name in (*CELL, *FACTS, "code_version"))
        self.setting_names: Sequence[str] = known[SETTING_NAMES]
        self.folder, self.read = folder, read


def shared_values(record: TrialRecord) -> tuple[Any, ...]:
    """The values of `SHARED`, then the names of the setting's values."""
    common = record._common if isinstance(record, LazyRecord) else None
    names = common.setting_names if isinstance(common, CommonValues) else record.setting
    return (*_shared(record), tuple(names))


def own_values(record: TrialRecord) -> OwnValues:
    """The values of `OWN`, then the setting's values as JSON."""
    own = record._own if isinstance(record, LazyRecord) else None
    if isinstance(own, OwnValues):
        return own
    return OwnValues._make((*_own(record), to_json(list(record.setting.values()))))


def own_values_of(values: Iterable[Sequence[Any]]) -> list[OwnValues]:
    """The own values of many records, given in field order."""
    return list(map(partial(tuple.__new__, OwnValues), values))


class LazyRecord(TrialRecord, defer_build=True):  # pydantic never validates one
    """A record from the ledger's index. Copying, comparing or writing it reads its file first.

    It holds its own values and a reference to the shared ones, because a driver keeps ten thousand of these records.
    After its file has been read, both attributes refer to the full record.
    """

    __slots__ = ("_common", "_own")
    _common: CommonValues | TrialRecord
    _own: OwnValues | TrialRecord

    @classmethod
    def list_of(cls, common: Sequence[CommonValues], own: Sequence[OwnValues]) -> list[LazyRecord]:
        """Build records from index entries, whose values were validated when their files were read.

        Each step is a loop in C over all records, because a hundred thousand are built at once.

        Args:
            common: the shared values of each record.
            own: the own values of each record.
        """
        records = [_new(cls) for _ in own]
        for setter, values in ((_set_common, common), (_set_own, own)):
            deque(map(setter, records, values), maxlen=0)
        return records

    def __getattr__(self, name: str) -> Any:
        """Load a field that is not in memory yet."""
        if name not in TrialRecord.model_fields:
            raise AttributeError(name)
        common, own = self._common, self._own
        if name == "setting" and isinstance(common, CommonValues) and isinstance(own, OwnValues):
            setting = dict(zip(common.setting_names, from_json(own.setting_values), strict=True))
            return self.__dict__.setdefault(name, setting)
        whole = self.whole()
        _set_common(self, whole)
        _set_own(self, whole)
        return getattr(whole, name)

    def whole(self) -> TrialRecord:
        """The record with every field, from its file now or from the last time it was read."""
        common = self._common
        if isinstance(common, TrialRecord):
            return common
        return common.read(common.folder / f"{self.id}.json")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A changed copy of the full record."""
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
        """Pickle the full record for another process."""
        return self.whole().__reduce__()


_new = object.__new__
_set_common, _set_own = LazyRecord._common.__set__, LazyRecord._own.__set__  # type: ignore[union-attr]
for _place, _names in (("_common", (*SHARED, "cell_facts")), ("_own", OWN)):
    for _name in _names:  # after the class, because pydantic would take names in the class body for fields
        setattr(LazyRecord, _name, property(attrgetter(f"{_place}.{_name}")))
