"""The door: the console command and `python launch.py` are the same thing, and the help is quick."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).parent / "meltpoint"
PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **PLAIN}
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=60, cwd=cwd, env=environment, check=False
    )


@pytest.mark.parametrize("words", [("--help",), ("sweep", "--help"), ("doctor", "--help")])
def test_the_console_command_and_the_checkout_give_the_same_help(words: tuple[str, ...]) -> None:
    installed = run(str(COMMAND), *words)
    checkout = run(sys.executable, "launch.py", *words)
    assert installed.returncode == checkout.returncode == 0, installed.stderr + checkout.stderr
    assert installed.stdout.replace("launch.py", "meltpoint") == checkout.stdout.replace("launch.py", "meltpoint")


def test_the_help_names_every_command_of_the_contract() -> None:
    text = run(str(COMMAND), "--help").stdout
    commands = (
        "sweep", "plan", "demo", "status", "export", "train", "report", "ensemble", "analyse", "new-task", "features",
        "list", "doctor", "ui", "cache",
    )  # fmt: skip
    assert [command for command in commands if command not in text] == []


def test_the_checkouts_door_works_from_another_folder(tmp_path: Path) -> None:
    assert run(sys.executable, str(ROOT / "launch.py"), "--help", cwd=tmp_path).returncode == 0


def test_an_unknown_command_is_bad_usage_without_a_traceback() -> None:
    done = run(str(COMMAND), "swep")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_without_an_installation_the_door_says_how_to_install_in_one_line() -> None:
    done = run(sys.executable, "-S", "-E", "launch.py", "--help")  # -S: as if nothing were installed
    assert done.returncode != 0
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "make install" in done.stderr


ASCII = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("words", [("--help",), ("list", "modes")])
def test_a_locale_without_the_symbols_ends_no_command_and_a_pipe_gets_utf_8(words: tuple[str, ...]) -> None:
    done = subprocess.run([str(COMMAND), *words], capture_output=True, timeout=60, env=ASCII, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.decode("utf-8").isascii()


def test_a_terminal_that_lacks_a_symbol_shows_a_question_mark() -> None:
    reader, terminal = os.openpty()
    done = subprocess.run([str(COMMAND), "list", "modes"], stdout=terminal, timeout=60, env=ASCII, check=False)
    os.close(terminal)
    shown = os.read(reader, 10_000).decode("ascii")
    os.close(reader)
    assert done.returncode == 0
    assert "feature_extraction" in shown
    assert "?" in shown


def test_the_help_answers_at_once() -> None:
    # The aim is 1.5 s; twice that is allowed here, because tests share their cores.
    fastest = min(_seconds_of_help() for _ in range(3))
    assert fastest < 3.0


def _seconds_of_help() -> float:
    start = time.perf_counter()
    assert run(str(COMMAND), "--help").returncode == 0
    return time.perf_counter() - start
