"""The checks of `doctor`: a sweep's needs of this machine, each with its remedy. Nothing is printed here."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from meltpoint.sweeps.machine import limits
from meltpoint.sweeps.machine.services import STORE, Check, existing, ray_cluster, tracking_store
from meltpoint.sweeps.specification.tracking_uri import check_scheme, check_sign_in, default_uri
from meltpoint.sweeps.storage.files import StoragePath, check_conditional_writes
from meltpoint.sweeps.storage.object_client import QUICK, StoreError
from meltpoint.sweeps.storage.object_store import ObjectPath
from meltpoint.tasks.core.wording import some

__all__ = ["Check", "checks"]

GIB = 1024**3

LEAST_FREE_BYTES = GIB
"""A sweep of 12 cells, 4 trials and 2 seeds stays under 1 GB, including its finalists' checkpoints and its store."""

LEAST_MEMORY_BYTES = 4 * GIB
"""Two workers that train the 6-layer default encoder at 32 × 128 pieces in fp32 (1.4 GiB each, measured), Ray's own
processes (0.7 GiB) and the driver."""


def checks(storage: StoragePath, tracking_uri: str | None, address: str | None) -> list[Check]:
    """Every check, in the order in which you would fix them.

    Nothing is left behind: a missing storage folder is not created, and a store is not migrated.

    Args:
        storage: the folder or object store of sweeps.
        tracking_uri: MLflow's store, or None for the default one in `storage`.
        address: a running Ray cluster (`HOST:PORT`, `ray://HOST:PORT`, `http://HOST:PORT`, `auto`), or None for a
            local one.
    """
    return [
        python(),
        *packages(),
        cores(),
        memory(),
        *accelerators(),
        storage_folder(storage) if isinstance(storage, Path) else object_store(storage),
        mlflow_store(storage, tracking_uri),
        ray_cluster(address),
    ]


def mlflow_store(storage: StoragePath, tracking_uri: str | None) -> Check:
    """Check of the named MLflow store, or the default one."""
    try:
        if tracking_uri:
            check_sign_in(tracking_uri)
            check_scheme(tracking_uri)
        return tracking_store(tracking_uri or default_uri(storage))
    except ValueError as error:
        fault, _, remedy = str(error).removesuffix(".").partition("; ")
        return Check(STORE, False, fault, remedy)


def python() -> Check:
    """Check of this Python against the range that the package declares."""
    version = platform.python_version()
    try:
        wanted = metadata.metadata("meltpoint")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return Check("Python", False, f"{version}; Meltpoint is not installed", "make install, or pip install -e .")
    ok = Requirement(f"python{wanted}").specifier.contains(version, prereleases=True)
    return Check("Python", ok, f"{version} (supported: {wanted})", "" if ok else f"install Python {wanted}")


def packages() -> list[Check]:
    """Checks of every declared dependency, without extras, against its supported range."""
    try:
        wanted = [Requirement(line) for line in metadata.requires("meltpoint") or []]
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH; `python` says so
        return []
    return [package(part) for part in wanted if part.marker is None or part.marker.evaluate({"extra": ""})]


def package(part: Requirement) -> Check:
    """Check that one dependency is installed, in its supported range."""
    supported = f"supported: {part.specifier or 'any'}"
    try:
        version = metadata.version(part.name)
    except metadata.PackageNotFoundError:
        return Check(part.name, False, f"not installed ({supported})", f"make install, or pip install '{part}'")
    ok = part.specifier.contains(version, prereleases=True)
    return Check(part.name, ok, f"{version} ({supported})", "" if ok else f"make install, or pip install '{part}'")


def cores(cgroup: Path = limits.CGROUP) -> Check:
    """Check of the processor's cores: the number that this process may use."""
    usable = limits.cores(cgroup)
    ok = usable >= 1
    remedy = "" if ok else "a trial needs one whole core: raise the container's CPU limit"
    return Check("cores", ok, f"{usable:g} of {os.cpu_count() or 1} usable", remedy)


def memory(cgroup: Path = limits.CGROUP) -> Check:
    """Check of the memory that is free for a sweep."""
    found = limits.memory(cgroup)
    ok = found.free >= LEAST_MEMORY_BYTES
    remedy = "" if ok else f"free some, or run fewer trials at once; a sweep needs {LEAST_MEMORY_BYTES / GIB:.0f} GiB"
    return Check("memory", ok, f"{found.free / GIB:.1f} of {found.total / GIB:.1f} GiB free", remedy)


def accelerators() -> list[Check]:
    """Check bf16 on the processor, and each GPU that torch sees; report a torch that cannot load."""
    try:
        import torch

        from meltpoint.adapters.hardware import bf16_is_native
    except (ImportError, OSError) as error:
        return [Check("accelerators", False, f"torch cannot be loaded ({error})", "make install")]
    found = "native: precision auto trains in bf16" if bf16_is_native("cpu") else "not native: precision auto is fp32"
    simd = torch.backends.cpu.get_cpu_capability()
    gpus = [gpu(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else [no_gpu()]
    return [Check("bf16 on the CPU", True, f"{found} ({simd})"), *gpus]


def gpu(index: int) -> Check:
    """Check of one GPU: its name, memory, and whether it has bf16; torch must have code for it."""
    import torch

    from meltpoint.adapters.hardware import unsupported

    has = torch.cuda.get_device_properties(index)
    bf16 = "bf16" if has.major >= 8 else "no bf16"  # Ampere, compute capability 8.0, is the first with bf16
    if lacking := unsupported(index):
        detail = f"{has.name} is {lacking}, for which torch {torch.__version__} has no code"
        return Check(f"GPU {index}", False, detail, "install a torch wheel for an older CUDA, such as cu126")
    return Check(f"GPU {index}", True, f"{has.name}, {has.total_memory / GIB:.0f} GiB, {bf16}")


def no_gpu(driver: Path = Path("/dev/nvidiactl")) -> Check:
    """Check for a machine where torch sees no GPU: fine, unless the machine has one."""
    import torch

    if not driver.exists():
        return Check("GPU", True, "none; trials train on the CPU")
    detail = f"this machine has one, but torch {torch.__version__} (CUDA {torch.version.cuda or 'none'}) cannot use it"
    detail += "; trials train on the CPU"
    return Check("GPU", False, detail, "install torch's CUDA build for this driver, and check CUDA_VISIBLE_DEVICES")


def data_folder(folder: Path) -> Check:
    """Check that a folder of data can be listed."""
    try:
        found = sum(1 for _ in folder.iterdir())
    except OSError as error:
        return Check("data", False, f"{folder}: {error.strerror}", "name the folder of the data files with --data-dir")
    return Check("data", found > 0, f"{folder}, {some(found, 'entry')}", "" if found else "put the data files there")


def storage_folder(storage: Path) -> Check:
    """Check that a folder can hold the ledger: writable, with free space."""
    name = "storage"
    place = existing(storage)
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        detail = f"{storage} cannot be written: {error.strerror or error} ({place})"
        return Check(name, False, detail, "set --storage to a folder that this user can write")
    free = shutil.disk_usage(place).free
    ok = free >= LEAST_FREE_BYTES
    state = "is writable" if place == storage.absolute() else "does not exist yet and can be created"
    remedy = "" if ok else "free 1 GiB there, or name another folder with --storage"
    return Check(name, ok, f"{storage} {state}, {free / GIB:.1f} GiB free", remedy)


def object_store(storage: ObjectPath) -> Check:
    """Check that an object store can hold the ledger: it answers, is writable, and supports conditional writes."""
    try:
        check_conditional_writes(storage.with_patience(QUICK))
    except (StoreError, ValueError) as error:
        fault, _, remedy = str(error).removesuffix(".").partition("; ")
        return Check("storage", False, fault, remedy)
    return Check("storage", True, f"{storage} is writable, with conditional writes")
