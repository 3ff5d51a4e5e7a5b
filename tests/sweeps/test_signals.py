"""signals: what ends a sweep in order, and what comes through though C++ or a busy thread is in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from meltpoint.sweeps.machine import signals
from meltpoint.sweeps.machine.signals import TERMINATED, StopRequest, raise_requested, request_stop, stoppable


@pytest.mark.parametrize("number", signals.STOPPING)
def test_a_signal_is_raised_once_as_a_request_that_says_which(number, capfd):
    with stoppable():
        with pytest.raises(StopRequest, match=f"stopped by {signal.Signals(number).name}") as told:
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # its copy, as a process group's
        raise_requested()
    assert told.value.status == TERMINATED
    assert capfd.readouterr().err.count("the same command goes on") == 1


def test_handlers_are_those_from_before_after_it_ended():
    before = [signal.getsignal(number) for number in (*signals.STOPPING, signal.SIGINT)]
    with stoppable():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (*signals.STOPPING, signal.SIGINT)] == before


def test_a_thread_may_ask_for_the_end():
    request = StopRequest("the cluster is lost", status=1)

    def ask_and_wait() -> None:
        threading.Thread(target=request_stop, args=(request,)).start()
        threading.Event().wait(60)

    with stoppable(), pytest.raises(StopRequest, match="the cluster is lost") as told:
        ask_and_wait()
    assert told.value is request


def test_a_request_that_python_swallowed_is_raised_again_when_it_is_asked_for():
    with stoppable():
        signals._Asked.request = StopRequest("here", status=1)  # made, and raised where nobody hears it
        with pytest.raises(StopRequest, match="here"):
            raise_requested()
        raise_requested()


def test_a_signal_that_somebody_else_took_is_taken_back():
    with stoppable():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as Tune's `run` does
        raise_requested()
        with pytest.raises(StopRequest, match="SIGUSR1"):
            os.kill(os.getpid(), signal.SIGUSR1)


SECOND = """
import os, signal, time
from meltpoint.sweeps.machine import signals
with signals.stoppable():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        time.sleep(signals.SECOND_AFTER_SECONDS + 0.1)
        os.kill(os.getpid(), signal.SIGUSR1)
        print("goes on")
"""


def test_a_second_signal_ends_the_process_at_once():
    done = subprocess.run([sys.executable, "-c", SECOND], capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (TERMINATED, "")


LAST = """
import os, signal, time
from meltpoint.sweeps.machine import signals
signals.LAST_SECONDS = 0.3
with signals.stoppable():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        time.sleep(60)
"""


def test_a_process_that_does_not_come_to_its_end_is_ended():
    done = subprocess.run([sys.executable, "-c", LAST], capture_output=True, encoding="utf-8", check=False, timeout=30)
    assert done.returncode == TERMINATED
    assert "what finished is kept" in done.stderr


TAKEN = """
import ctypes, os, signal, threading
from meltpoint.sweeps.machine import signals
def take():
    with signals.sigterm_kept():
        ctypes.CDLL(None).signal(signal.SIGTERM, None)  # as ray.init does in C++, from its own thread
        mask.extend(signal.pthread_sigmask(signal.SIG_BLOCK, []))
mask = []
with signals.stoppable():
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except signals.StopRequest:
        print("in order", sorted(mask) == sorted(signals.NOTICES))
"""


def test_sigterm_is_heard_after_cpp_code_took_it_in_another_thread_and_that_threads_children_get_no_notices():
    done = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, encoding="utf-8", check=False)
    assert done.stdout == "in order True\n", done.stderr


def test_outside_of_the_main_thread_nothing_is_changed():
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def within() -> None:
        with stoppable():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=within)
    thread.start()
    thread.join()
    assert found == [before]
