"""What the compiled loops are made of: numbers, draws, small products, threads, and where compiled code is kept."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meltpoint.adapters.cpu.kernels import LANES, compiling, numbers
from meltpoint.adapters.cpu.kernels.dropping import Dropping, draw
from meltpoint.adapters.cpu.kernels.numbers import array, exponential, from_float32, to_float32
from meltpoint.adapters.cpu.kernels.threads import parallel_for
from meltpoint.adapters.cpu.kernels.tile import product, transpose

ROOT = Path(__file__).resolve().parents[3]

# --- numbers ---


@numba.njit
def _copied(source, into):
    for place in range(source.shape[0]):
        into[place] = from_float32(to_float32(source[place]), into)


@numba.njit
def _exponentials(source, into):
    for place in range(source.shape[0]):
        into[place] = exponential(source[place])


@given(st.integers(0, 2**32 - 1))
def test_bf16_is_rounded_as_torch_rounds_it_whatever_the_bits(seed: int):
    given_ = torch.from_numpy(np.random.default_rng(seed).integers(0, 2**32, 64, np.uint32).view(np.float32))
    expected, found = given_.bfloat16(), torch.empty(64, dtype=torch.bfloat16)
    _copied(array(given_), array(found))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    back = torch.empty(64)
    _copied(array(expected), array(back))
    torch.testing.assert_close(back, expected.float(), rtol=0, atol=0, equal_nan=True)


def test_special_numbers_keep_their_meaning_in_bf16():
    given_ = torch.tensor([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, 1e-45])
    found = torch.empty(8, dtype=torch.bfloat16)
    _copied(array(given_), array(found))
    torch.testing.assert_close(found, given_.bfloat16(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit()[4:6], torch.tensor([False, True]))


def test_the_exponential_is_right_to_float32s_last_bits():
    numbers_ = -np.logspace(-8, np.log10(87), 100_000).astype(np.float32)
    found = np.empty_like(numbers_)
    _exponentials(numbers_, found)
    np.testing.assert_allclose(found, np.exp(numbers_.astype(np.float64)), rtol=5e-7)
    ends = np.array([0.0, -1e30, np.nan], np.float32)
    _exponentials(ends, found[:3])
    assert found[0] == 1.0
    assert 0.0 <= found[1] < 1e-37
    assert np.isnan(found[2])


def test_what_the_kernels_cannot_read_is_said():
    with pytest.raises(TypeError, match=r"bf16 and float32, not torch\.float64"):
        array(torch.zeros(2, dtype=torch.float64))


# --- draws ---


def splitmix(seed: int, place: int) -> int:
    """Steele, Lea & Flood 2014, figure 16, in whole numbers: the `place`-th draw of a seed."""
    mask = 2**64 - 1
    state = (seed + (place + 1) * 0x9E3779B97F4A7C15) & mask
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return state ^ (state >> 31)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(1, 40))
def test_draws_are_splitmix64s_from_any_place_on(seed: int, first: int, count: int):
    words = np.empty(count, np.uint64)
    draw(np.uint64(seed), first, words)
    assert words.tolist() == [splitmix(seed, first + place) for place in range(count)]


def test_the_published_first_draws_of_seed_0():
    words = np.empty(3, np.uint64)
    draw(np.uint64(0), 0, words)
    assert [hex(word) for word in words.tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


@given(st.floats(0.01, 0.99), st.integers(0, 2**31))
@settings(max_examples=20)
def test_the_share_that_is_dropped_is_the_ratio_and_the_mean_stays(ratio: float, seed: int):
    torch.manual_seed(seed)
    dropping = Dropping.drawn(ratio)
    words = np.empty(50_000, np.uint64)
    draw(dropping.seed, 0, words)
    kept = (words.view(np.int16) >= dropping.level).mean()
    assert kept == pytest.approx(1 - ratio, abs=5 * (ratio * (1 - ratio) / 200_000) ** 0.5 + 2**-16)
    assert float(dropping.factor) * (1 - round(ratio * 2**16) / 2**16) == pytest.approx(1)


def test_a_ratio_near_1_leaves_something():
    dropping = Dropping.drawn(1 - 1e-9)
    assert dropping.level == 2**15 - 1
    assert float(dropping.factor) == 2**16


def test_the_seed_comes_from_torchs_generator_and_nothing_is_drawn_in_vain():
    torch.manual_seed(3)
    first, before = Dropping.drawn(0.1), torch.get_rng_state()
    assert Dropping.drawn(0.0).seed == 0
    assert torch.equal(torch.get_rng_state(), before)
    second = Dropping.drawn(0.1)
    torch.manual_seed(3)
    assert Dropping.drawn(0.1) == first != second


# --- products ---


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 50), st.booleans())
def test_a_small_product_is_numpys(fours: int, sixteens: int, steps: int, turned: bool):
    rows, columns, rng = 4 * fours, LANES * sixteens, np.random.default_rng(steps)
    left = rng.normal(size=(rows, steps)).astype(np.float32)
    right = rng.normal(size=(steps, columns)).astype(np.float32)
    found = np.full((rows, columns), np.nan, np.float32)
    given_ = np.ascontiguousarray(left.T) if turned else left
    strides = (1, rows) if turned else (steps, 1)
    product(given_.reshape(-1), *strides, right.reshape(-1), found.reshape(-1), rows, columns, steps)
    np.testing.assert_allclose(found, left.astype(np.float64) @ right, rtol=1e-4, atol=1e-4)


@compiling.inlined
def _turned(source, at, step, into, into_at, into_step):
    transpose(source, at, step, into, into_at, into_step)


@given(st.integers(0, 7), st.integers(LANES, 40), st.integers(0, 7), st.integers(LANES, 40))
def test_a_square_is_transposed_where_it_lies(at: int, step: int, into_at: int, into_step: int):
    source = np.arange(at + LANES * step, dtype=np.float32)
    into = np.full(into_at + LANES * into_step, -1, np.float32)
    expected = into.copy()
    expected[into_at:].reshape(LANES, into_step)[:, :LANES] = source[at:].reshape(LANES, step)[:, :LANES].T
    _turned(source, at, step, into, into_at, into_step)
    assert np.array_equal(into, expected)


# --- threads ---


@pytest.mark.usefixtures("threads")
@given(st.integers(1, 100), st.integers(1, 5))
def test_every_row_is_shared_out_once(rows: int, count: int):
    torch.set_num_threads(count)
    seen: list[int] = []
    parallel_for(rows, lambda first, last: seen.extend(range(first, last)))
    assert sorted(seen) == list(range(rows))


@pytest.mark.usefixtures("threads")
def test_what_fails_in_a_thread_is_raised():
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        parallel_for(8, lambda first, last: 1 // (first - first))


# --- what is compiled ---


def test_the_kernels_read_what_they_say():
    assert [array(torch.zeros(1, dtype=dtype)).dtype.name for dtype in numbers.TYPES] == ["uint16", "float32"]


def test_a_change_in_any_of_the_kernels_files_is_compiled_anew_and_so_is_another_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(ROOT / "adapters" / "cpu" / "kernels", tmp_path / "kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "kernels" / "compiling.py"))
    before = compiling.cache_folder()
    assert before.parent == tmp_path / "meltpoint"
    with (tmp_path / "kernels" / "numbers.py").open("a") as file:
        file.write("# changed\n")
    changed = compiling.cache_folder()
    assert changed != before
    assert compiling.cache_folder() == changed
    monkeypatch.setattr(compiling, "processor", lambda: ("x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f"))
    assert compiling.cache_folder() not in (before, changed)


def test_where_no_file_can_be_written_each_process_compiles_for_itself(tmp_path: Path):
    package = tmp_path / "meltpoint"
    shutil.copytree(ROOT / "adapters" / "cpu" / "kernels", package / "adapters" / "cpu" / "kernels")
    for folder in (package, package / "adapters", package / "adapters" / "cpu"):
        (folder / "__init__.py").touch()
    script = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"  # what numba finds on a read-only file system
        "import numpy as np\n"
        "from meltpoint.adapters.cpu.kernels import adamw\n"
        "print(adamw.squares(np.full(3, 2, np.float32)))"
    )
    run = [sys.executable, "-P", "-c", script]
    found = subprocess.run(run, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, encoding="utf-8")
    assert found.stdout.strip() == "12.0", found.stderr


def doubled(number):
    return 2 * number


def compiled_in(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A function, compiled as kernels are, that keeps its code in a folder."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    return compiling.kernel(doubled)


def hits(function) -> int:
    """How often what a folder had was taken."""
    return sum(function.stats.cache_hits.values())


def test_what_was_compiled_is_taken_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = compiled_in(tmp_path, monkeypatch)
    assert (first(21), hits(first)) == (42, 0)
    second = compiled_in(tmp_path, monkeypatch)
    assert (second(21), hits(second)) == (42, 1)


def test_a_full_disk_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(numba.core.caching.IndexDataCacheFile, "_save_data", full)
        assert compiled_in(tmp_path, monkeypatch)(21) == 42
    again = compiled_in(tmp_path, monkeypatch)
    assert (again(21), hits(again)) == (42, 0)
    assert hits(compiled_in(tmp_path, monkeypatch)) == 0
    third = compiled_in(tmp_path, monkeypatch)
    assert (third(21), hits(third)) == (42, 1), "it was kept when there was room"


@pytest.mark.parametrize("kind", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("damage", [b"", b"not what numba wrote", None], ids=["empty", "other", "cut"])
def test_a_damaged_file_is_compiled_anew_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, damage: bytes | None
):
    compiled_in(tmp_path, monkeypatch)(21)
    (path,) = tmp_path.rglob(kind)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if damage is None else damage)
    again = compiled_in(tmp_path, monkeypatch)
    assert (again(21), hits(again)) == (42, 0)
    third = compiled_in(tmp_path, monkeypatch)
    assert (third(21), hits(third)) == (42, 1)


def test_a_version_that_nobody_uses_is_forgotten_when_another_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache, own = tmp_path / "meltpoint", compiling.cache_folder()
    long_ago = time.time() - (compiling.KEPT_DAYS + 1) * 24 * 3600
    for name, used in (("kernels-old", long_ago), ("kernels-lately", None), ("other", long_ago), (own.name, long_ago)):
        (cache / name / "inside").mkdir(parents=True)
        os.utime(cache / name, None if used is None else (used, used))
    compiling.forget_unused()
    assert {folder.name for folder in cache.iterdir()} == {"kernels-lately", "other", own.name}
    compiling.mark_used()
    assert own.stat().st_mtime > long_ago + 24 * 3600


BITS_OF_A_KERNEL = """
import numpy as np
from meltpoint.adapters.cpu.kernels import residual_norm

rng, lines, dim = np.random.default_rng(0), 40, 64
states, residual, gradient = (rng.standard_normal(lines * dim).astype(np.float32) for _ in range(3))
weight, bias = (rng.standard_normal(dim).astype(np.float32) for _ in range(2))
sums, normed, by_states, by_residual = (np.zeros(lines * dim, np.float32) for _ in range(4))
moments, by_weight, by_bias = np.zeros(2 * lines, np.float32), np.zeros(dim, np.float32), np.zeros(dim, np.float32)
dropping = np.uint64(5), np.int16(-26215), np.float32(1 / 0.9)
residual_norm.forward(
    states, residual, weight, bias, np.float32(1e-12), *dropping, 0, lines, sums, moments, normed
)
residual_norm.backward(
    gradient, sums, moments, weight, *dropping, 0, 1, by_states, by_residual, by_weight, by_bias
)
print(sum(residual_norm.backward.stats.cache_hits.values()))
print(b"".join(array.tobytes() for array in (normed, by_states, by_residual, by_weight, by_bias)).hex())
"""


@pytest.mark.slow
def test_a_process_that_compiles_a_kernel_gets_the_bits_of_one_that_finds_it_compiled(tmp_path: Path):
    """Their trials stand in one table, and a table made anew on the same machine is to be the same."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", BITS_OF_A_KERNEL]
    outputs = [subprocess.run(run, env=env, capture_output=True, encoding="utf-8", check=True).stdout for _ in range(2)]
    (compiled, cold), (found, warm) = (output.split() for output in outputs)
    assert (compiled, found) == ("0", "1")
    assert cold == warm


AHEAD = """
from meltpoint.adapters.cpu.kernels import adamw, attention, dropping, gelu, mixing, residual_norm, warming

halves = warming.compile_ahead()
from meltpoint.adapters import encoders
warming.wait(halves)
encoders.load(encoders.resolve("minilm", "sentence_classification"))
warming.warm_up()
modules = adamw, attention, dropping, gelu, mixing, residual_norm
every = [one for module in modules for one in vars(module).values()]
print(len(halves), sum(sum(one.stats.cache_misses.values()) for one in every if hasattr(one, "stats")))
"""


@pytest.mark.slow
def test_what_the_installation_compiles_is_all_that_a_sweep_needs_and_counts_as_used_by_it(tmp_path: Path):
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    env["XDG_CACHE_HOME"] = str(tmp_path)
    for words in (["-m", "meltpoint.adapters.ops"], ["-c", AHEAD]):
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, encoding="utf-8", check=True)
        (folder,) = (tmp_path / "meltpoint").glob("kernels-*")
        used = folder.stat().st_mtime
        os.utime(folder, (0, 0))
    assert done.stdout.split() == ["0", "0"], "processes that compile, kernels compiled after them"
    assert used > 0, "the sweep marked it"
