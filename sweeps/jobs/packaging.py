"""Archives of what a job takes along: Meltpoint as it is here or as a wheel, and files that its command names.

Equal contents give an equal archive, byte for byte, so that Ray sends it once. An archive has `meltpoint/` at its top:
unpacked, it is a folder on Python's path. Wheels go the same way, since Ray takes two wheels of one name for the same.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import meltpoint
from meltpoint.tasks.core.wording import some

IMAGE, WHEEL, TREE = "image", "wheel", "tree"
ENVIRONMENTS = (IMAGE, WHEEL, TREE)

LEFT_OUT_AT_THE_TOP = {"build", "dist", "runs", "mlruns", "mlflow.db", "shared"}
"""What a checkout makes or keeps beside the code."""

LEFT_OUT = {"__pycache__", "node_modules"}

LARGEST_FILE, LARGEST_ARCHIVE = 10 * 10**6, 200 * 10**6
"""Bytes. Ray keeps archives in the memory of the cluster's head, and refuses one above 500 MB."""


def find_wheel(environment: str, folder: Path) -> Path | None:
    """The wheel of `--environment`: a file that it names, or for `wheel` the only one in `dist/`; None otherwise.

    Args:
        environment: a word of `ENVIRONMENTS`, or a path that ends with `.whl`.
        folder: where `dist/` is looked for.

    Raises:
        ValueError: another word, no wheel or several, or one that cannot run from a folder.
    """
    if environment in (IMAGE, TREE):
        return None
    if environment == WHEEL:
        found = sorted((folder / "dist").glob("meltpoint-*.whl"))
        if len(found) != 1:
            raise ValueError(
                f"--environment wheel: {folder / 'dist'} has {some(len(found), 'wheel')} of meltpoint; make one with "
                "`python -m build --wheel`, or name it: --environment FILE.whl."
            )
        return _checked(found[0])
    if environment.endswith(".whl"):
        return _checked(Path(environment))
    raise ValueError(f"--environment {environment}: write {', '.join(ENVIRONMENTS)}, or the path of a wheel.")


def _checked(wheel: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except FileNotFoundError:
        raise ValueError(f"--environment {wheel}: there is no such file.") from None
    except (OSError, zipfile.BadZipFile):
        raise ValueError(f"--environment {wheel} is no wheel that can be read; build it again.") from None
    if "meltpoint/launch.py" not in names:
        raise ValueError(f"--environment {wheel}: holds no meltpoint; name a wheel of it.")
    return wheel


def package_root() -> Path:
    """The folder of the package as it is imported here: a checkout, or an installed one."""
    return Path(meltpoint.__path__[0])


def tree_files(root: Path) -> Iterator[Path]:
    """The files of a package's folder that belong to a job.

    Left out are hidden files, links, what is built or kept beside the code, and Python environments.
    """
    for here, folders, files in os.walk(root):
        folder = Path(here)
        left_out = LEFT_OUT | LEFT_OUT_AT_THE_TOP if folder == root else LEFT_OUT
        if folder != root and "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if _is_kept(folder / name, left_out))
        yield from (folder / name for name in sorted(files) if _is_kept(folder / name, left_out))


def _is_kept(path: Path, left_out: set[str]) -> bool:
    is_made = path.name in left_out or path.name.endswith((".egg-info", ".pyc"))
    is_plain = not path.is_symlink() and (path.is_file() or path.is_dir())  # a pipe would never end
    return is_plain and not is_made and not path.name.startswith(".")


def large_files(root: Path) -> list[str]:
    """One line for each file of a tree that is left out because of its size."""
    sizes = ((path, path.stat().st_size) for path in tree_files(root))
    return [f"{path} is left out: {size / 10**6:.0f} MB" for path, size in sizes if size > LARGEST_FILE]


def write_archive(target: Path, tree: Path | None, wheel: Path | None, files: Mapping[str, Path]) -> None:
    """Write the archive that a job takes along.

    Args:
        target: the archive to write.
        tree: a package's folder to take along, without its large files, or None.
        wheel: a wheel to take along, or None.
        files: path in the archive → file to take along.

    Raises:
        ValueError: the archive is too large, or a file's name is no text.
    """
    with zipfile.ZipFile(target, "w") as archive:
        for path in tree_files(tree) if tree is not None else ():
            if path.stat().st_size <= LARGEST_FILE:
                _add(archive, f"meltpoint/{path.relative_to(tree or path).as_posix()}", path.read_bytes())
        for name, content in _unpacked(wheel) if wheel is not None else ():
            _add(archive, name, content)
        for name, path in sorted(files.items()):
            _add(archive, name, path.read_bytes())
    size = target.stat().st_size
    if size > LARGEST_ARCHIVE:
        raise ValueError(
            f"{size / 10**6:.0f} MB are too much to send along; move data out of the folder of the package, or use "
            "--environment image."
        )


def _unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each file in a wheel, by name."""
    with zipfile.ZipFile(wheel) as source:
        for name in sorted(source.namelist()):
            if not name.endswith("/"):
                yield name, source.read(name)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file with a fixed time and mode, so that equal contents give equal archives."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} cannot be sent along: its name is no valid text; rename it.") from None
    info = zipfile.ZipInfo(name)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    archive.writestr(info, content)
