"""Meltpoint: hyperparameter search for adapting pretrained encoders.

```python
import meltpoint as mp

first = mp.sweep(name="first", encoder="minilm", mode=["feature_extraction", "fine_tuning"], task="reviews.yaml")
first.table()                                   # also mp.load_sweep("runs/first"), at any time
first.best("minilm.fine_tuning.reviews")
```

Importing it imports nothing else; each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meltpoint.reports.loaded_sweep import LoadedSweep
    from meltpoint.reports.python_api import SweepFailedError, load_model, load_sweep, plan, sweep, tune

__version__ = "0.2.0"
__all__ = ["LoadedSweep", "SweepFailedError", "__version__", "load_model", "load_sweep", "plan", "sweep", "tune"]


def __getattr__(name: str) -> Any:
    """A function or class of the Python interface, loaded on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'meltpoint' has no attribute '{name}'; it has {', '.join(__all__)}")
    from meltpoint.reports import python_api

    return getattr(python_api, name)


def __dir__() -> list[str]:
    """The names of the Python interface."""
    return __all__
