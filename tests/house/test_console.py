"""The door: the console command and `python launch.py` are the same thing, and the help is quick."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

from meltpoint.reports import analyses
from meltpoint.sweeps.machine.terminal import Screen, complain, print_json, tell
from meltpoint.tests.house.architecture import modules

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).parent / "meltpoint"
PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **PLAIN}
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=60, cwd=cwd, env=environment, check=False
    )


@pytest.mark.parametrize("words", [("--help",), ("sweep", "--help"), ("doctor", "--help")])
def test_the_console_command_and_the_checkout_give_the_same_help_in_any_folder(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    installed = run(str(COMMAND), *words)
    checkout = run(sys.executable, str(ROOT / "launch.py"), *words, cwd=tmp_path)
    assert installed.returncode == checkout.returncode == 0, installed.stderr + checkout.stderr
    assert installed.stdout.replace("launch.py", "meltpoint") == checkout.stdout.replace("launch.py", "meltpoint")


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


PRINTERS = {"sweeps/machine/terminal.py"}
"""The module that prints. Beside it, programs that only developers run, and one whose output another process reads."""
OTHERS = {"launch.py", "tasks/core/locked.py"}
BY_HAND = ("print", "Console", "typer.echo", "sys.stdout.write", "sys.stderr.write")


def test_all_that_commands_print_goes_through_one_module() -> None:
    found = {}
    for name, path in modules().items():
        place = path.relative_to(ROOT).as_posix()
        if name.startswith("benchmarks") or place in PRINTERS | OTHERS:
            continue
        calls = [
            node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
        ]
        if by_hand := [call for call in map(ast.unparse, calls) if call in BY_HAND]:
            found[place] = by_hand
    assert found == {}


CONTROLS = "a\x1b]0;title\x07b\x9b31mc\u202edc\u2066e\u2028f\rg\x7fh"


def test_no_control_character_of_a_text_reaches_the_terminal_and_json_keeps_its_value(capsys) -> None:
    names = {"name": CONTROLS, "second": ["x\ny"]}
    tell(CONTROLS + "\nforged")
    complain(CONTROLS)
    print_json(names)
    file = io.StringIO()
    screen = Screen(file=file, force_terminal=True, width=200, color_system="truecolor")
    table = Table(title=CONTROLS)
    table.add_column("[red]head[/red]")
    table.add_row(f"[bold]{CONTROLS}")
    for shown in (f"[red]{CONTROLS} :smile:", Text(CONTROLS, style="red"), table):
        screen.print(shown)
    with Live(Text(CONTROLS), console=screen, auto_refresh=False) as live:
        live.update(Text(CONTROLS), refresh=True)
    said = capsys.readouterr()
    assert len(said.out.splitlines()[0]) > 0
    assert json.loads(said.out.partition("\n")[2]) == names
    drawn = file.getvalue()
    assert "[red]" in drawn
    assert "[bold]" in drawn
    assert ":smile:" in drawn
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)  # colours and moves, which rich adds
    for text in (said.out, said.err, plain.replace("\r", "")):
        assert re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text) == []
    assert "\nforged" not in said.out


def test_the_help_of_a_command_has_its_own_defaults_and_every_analysis() -> None:
    tune, analyse = (" ".join(run(str(COMMAND), word, "--help").stdout.split()) for word in ("tune", "analyse"))
    tune, analyse = (" ".join(text.replace("│", " ").split()) for text in (tune, analyse))
    assert "auto (default)" in tune
    assert "finals included" in tune
    assert "Default: 16" not in tune
    assert f"{', '.join(analyses.names())}." in analyse


def test_the_help_answers_at_once() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert run(str(COMMAND), "--help").returncode == 0
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 3.0, "the aim is 1.5 s; twice that, because tests share their cores"


MESSAGES = """
import sys
from meltpoint.sweeps.machine.terminal import Screen
for number in range(3):
    Screen(stderr=True).print("a line " * 20_000)
open(sys.argv[1], "x").close()
"""


@pytest.fixture
def closed() -> Iterator[int]:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_program_whose_messages_nobody_reads_goes_on(closed: int, tmp_path: Path) -> None:
    """A notebook's kernel that restarts leaves such a pipe to its sweep."""
    mark = tmp_path / "ended"
    found = subprocess.run([sys.executable, "-c", MESSAGES, str(mark)], stderr=closed, timeout=60, check=False)
    assert (found.returncode, mark.exists()) == (0, True)


HUNG_UP = """
import os, sys
from meltpoint.sweeps.machine.signals import say_now
from meltpoint.sweeps.machine.terminal import Screen, tell
sys.stdin.readline()
Screen(stderr=True).print("a line")
with Screen(stderr=True) as screen:
    screen.print("a line")
tell("a line", err=True)
say_now("a line")
open(sys.argv[1], "x").close()
"""


def test_a_program_goes_on_after_its_terminal_has_gone(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    reading, writing = os.openpty()
    command = [sys.executable, "-c", HUNG_UP, str(mark)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=writing) as found:
        os.close(writing)
        os.close(reading)
        found.communicate(b"\n", timeout=60)
    assert (found.returncode, mark.exists()) == (0, True)


def test_a_table_that_nobody_reads_to_its_end_is_no_failure(closed: int) -> None:
    command = [str(COMMAND), "list", "tasks"]
    found = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
