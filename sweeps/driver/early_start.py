"""The first thing that `meltpoint sweep` does: what is quickly refused is, and Ray starts beside all that follows."""

from __future__ import annotations

from rich.console import Console

from meltpoint.adapters.families.short_names import encoder_word
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.specification.early_checks import check_spec
from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.storage.files import storage_folder
from meltpoint.tasks import get
from meltpoint.tasks.core.wording import some


def head_start(spec: SweepSpec, resources: Resources, console: Console) -> Cluster:
    """A cluster that starts already, except where the sweep has nothing left to train.

    It says so before anything that takes seconds is imported or started.

    Raises:
        ValueError: an unknown word, an encoder's folder without an encoder, a storage that cannot be written; one line
            with the remedy.
    """
    check_spec(spec)
    first = spec.products()[0]
    cluster = Cluster(resources.address, encoder=(encoder_word(first.encoders[0]), get(first.tasks[0]).kind))
    storage = storage_folder(resources.storage)
    if resources.tracking_uri is None:
        default_uri(storage)  # it refuses an object store
    ledger = Ledger(storage / spec.name)
    if not _is_done(ledger):
        cells = sum(len(block.keys()) for block in spec.products())
        line = f"{spec.name}: opening {some(cells, 'cell')}; torch, Ray and MLflow start, which takes some seconds."
        for said in filter(None, (line, cluster.unused)):
            console.print(said, highlight=False, markup=False, soft_wrap=True)
        cluster.begin()
    return cluster


def _is_done(ledger: Ledger) -> bool:
    """True if nothing is left to train; where a file is damaged, whoever drives the sweep sets it aside or names it."""
    try:
        return ledger.specification.exists() and summarise(ledger).state == "done"
    except ValueError:
        return False
