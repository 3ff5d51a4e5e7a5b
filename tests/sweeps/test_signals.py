"""signals: what ends a sweep in order, and what comes through though C++ or a busy thread is in the way.

Each case is the main thread of a process of its own: a signal that comes late, or a handler that ends the process,
would end the process that runs the tests.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from meltpoint.sweeps.machine import signals
from meltpoint.sweeps.machine.signals import TERMINATED

BEFORE = """
import ctypes, os, signal, sys, threading, time
from meltpoint.sweeps.machine import signals
from meltpoint.sweeps.machine.signals import StopRequest, raise_requested, request_stop, stoppable

def caught(act):
    try:
        act()
    except StopRequest as stop:
        print("request:", stop, stop.status)
        return signals.reason_of(stop)
    except KeyboardInterrupt as stop:
        print("interrupted")
        return signals.reason_of(stop)
    print("nothing was raised")

def send(number):
    caught(lambda: signal.raise_signal(number))

"""


def case(code: str) -> subprocess.CompletedProcess[str]:
    """What a process says and how it ends."""
    words = [sys.executable, "-c", BEFORE + code]
    return subprocess.run(words, capture_output=True, encoding="utf-8", check=False, timeout=60)


@pytest.mark.parametrize("number", signals.STOPPING)
def test_a_signal_is_raised_once_as_a_request_that_says_which(number):
    done = case(f"""
signals.SECOND_AFTER_SECONDS = 60  # the next one is its copy, as a process group's
with stoppable():
    send({number})
    send({number})
    caught(raise_requested)
""")
    raised = f"request: stopped by {number.name} {TERMINATED}\nnothing was raised\nnothing was raised\n"
    assert (done.stdout, done.returncode) == (raised, 0), done.stderr
    assert done.stderr.count("the same command resumes it") == 1


def test_handlers_are_those_from_before_after_it_ended():
    done = case("""
numbers = (*signals.STOPPING, signal.SIGINT)
before = [signal.getsignal(number) for number in numbers]
with stoppable():
    print(signal.getsignal(signal.SIGTERM) in before)
print([signal.getsignal(number) for number in numbers] == before)
""")
    assert done.stdout == "False\nTrue\n", done.stderr


def test_a_thread_may_ask_for_the_end():
    done = case("""
request = StopRequest("the cluster is lost", status=1)
def ask_and_wait():
    threading.Thread(target=request_stop, args=(request,)).start()
    threading.Event().wait(50)
with stoppable():
    print(caught(ask_and_wait) is request)
""")
    assert done.stdout == "request: the cluster is lost 1\nTrue\n", done.stderr


def test_a_request_that_python_swallowed_is_raised_again_when_it_is_asked_for():
    done = case("""
with stoppable():
    signals._Asked.request = StopRequest("here", status=1)  # made, and raised where nobody hears it
    caught(raise_requested)
    caught(raise_requested)
""")
    assert done.stdout == "request: here 1\nnothing was raised\n", done.stderr


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, f"request: stopped by SIGTERM {TERMINATED}")],
)
def test_a_signal_that_came_in_a_finaliser_is_raised_again(number, raised):
    done = case(f"""
class Finalised:
    def __del__(self):
        signal.raise_signal({number})
with stoppable():
    caught(Finalised)  # Python ignores what is raised there
    caught(raise_requested)
    caught(raise_requested)
""")
    assert "Exception ignored" in done.stderr
    assert done.stdout == f"nothing was raised\n{raised}\nnothing was raised\n", done.stderr


def test_a_signal_that_somebody_else_took_is_taken_back():
    done = case("""
with stoppable():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as Tune's `run` does
    raise_requested()
    send(signal.SIGUSR1)
""")
    assert done.stdout == f"request: stopped by SIGUSR1 {TERMINATED}\n", done.stderr


def test_a_second_signal_ends_the_process_at_once():
    done = case("""
with stoppable():
    send(signal.SIGTERM)
    sys.stdout.flush()
    time.sleep(signals.SECOND_AFTER_SECONDS + 0.1)
    send(signal.SIGUSR1)
""")
    assert (done.returncode, done.stdout) == (TERMINATED, f"request: stopped by SIGTERM {TERMINATED}\n"), done.stderr


def test_a_process_that_does_not_come_to_its_end_is_ended():
    done = case("""
signals.LAST_SECONDS = 0.3
with stoppable():
    send(signal.SIGTERM)
    time.sleep(50)
""")
    assert done.returncode == TERMINATED
    assert "finished trials are kept" in done.stderr


def test_sigterm_is_heard_after_cpp_code_took_it_in_another_thread_and_that_threads_children_get_no_notices():
    done = case("""
mask = []
def take():
    with signals.sigterm_kept():
        ctypes.CDLL(None).signal(signal.SIGTERM, None)  # as ray.init does in C++, from its own thread
        mask.extend(signal.pthread_sigmask(signal.SIG_BLOCK, []))
with stoppable():
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    send(signal.SIGTERM)
print(sorted(mask) == sorted(signals.NOTICES))
""")
    assert done.stdout == f"request: stopped by SIGTERM {TERMINATED}\nTrue\n", done.stderr


def test_outside_of_the_main_thread_nothing_is_changed():
    done = case("""
def within():
    with stoppable():
        print(signal.getsignal(signal.SIGTERM) == before)
before = signal.getsignal(signal.SIGTERM)
thread = threading.Thread(target=within)
thread.start()
thread.join()
""")
    assert done.stdout == "True\n", done.stderr
