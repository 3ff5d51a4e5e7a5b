"""Addresses of Ray clusters, from `--address` and RAY_ADDRESS, and whether a cluster answers. Imports no Ray."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from meltpoint.sweeps.machine.services import TIMEOUT_SECONDS, Check

RAY = "Ray"

VARIABLE = "RAY_ADDRESS"

SUBMIT = "run the sweep on a node of the cluster with --address HOST:6379, or submit it there with `ray job submit`"

TOKEN_REMEDY = (
    "export RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH=FILE with the cluster's token (~/.ray/auth_token of its head)"
)

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""A client's first bytes of HTTP/2 (RFC 9113, section 3.4), which gRPC uses: the preface and empty settings."""

FRAME_HEAD_BYTES, SETTINGS_FRAME = 9, 4


def cluster_address(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """The `HOST:PORT` that a driver joins for `--address`.

    Args:
        address: `HOST:PORT`, or `auto`: RAY_ADDRESS, or the cluster that `ray start` last started on this machine.
        environment: the environment variables (RAY_ADDRESS, RAY_TMPDIR).

    Raises:
        ValueError: no cluster is running for `auto`, or a driver cannot join the address; one line.
    """
    asked = f"--address {address}"
    if address == "auto":
        named = environment.get(VARIABLE, "")
        address = named or _last_started(environment)
        asked = f"--address auto ({VARIABLE}={named})" if named else "--address auto"
    if not address:
        raise ValueError(f"{asked}: no cluster is running here; start one (ray start --head), or leave --address out.")
    if "://" in address:
        raise ValueError(f"{asked}: a sweep cannot join a cluster from outside; {SUBMIT}.")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{asked}: not the address of a cluster; write HOST:PORT, such as 10.0.0.1:6379.")
    return address


def _last_started(environment: Mapping[str, str]) -> str:
    """The address that the last `ray start` on this machine recorded; empty if there is none."""
    note = Path(environment.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    return note.read_text(encoding="utf-8").strip() if note.is_file() else ""


def unused_variable(environment: Mapping[str, str] = os.environ) -> str:
    """One line if RAY_ADDRESS is set, for a sweep without `--address`; empty otherwise."""
    if not (named := environment.get(VARIABLE)):
        return ""
    return f"{VARIABLE}={named} is set but ignored: a sweep starts its own cluster; --address auto joins that one."


def join_fault(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """The reason why no cluster can be joined at `HOST:PORT`, found in seconds; empty if one answers.

    Ray itself tries for minutes. A head's port speaks gRPC; a server with any other answer is not a head.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_SECONDS) as connection:
            if environment.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:  # it answers only after a handshake
                return ""
            connection.sendall(HELLO)
            head = connection.makefile("rb").read(FRAME_HEAD_BYTES)
    except TimeoutError:
        return f"no answer in {TIMEOUT_SECONDS:g} s"
    except OSError as error:
        return str(error) or type(error).__name__
    is_grpc = len(head) == FRAME_HEAD_BYTES and head[3] == SETTINGS_FRAME
    return "" if is_grpc else "the server there is not Ray"


def token_state(environment: Mapping[str, str] = os.environ) -> str:
    """The state of this process's token in a few words, without the token itself."""
    mode = environment.get("RAY_AUTH_MODE")
    if (mode or "").lower() != "token":
        return f"RAY_AUTH_MODE is {mode} here" if mode else "RAY_AUTH_MODE is not set here"
    place = environment.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
    if environment.get("RAY_AUTH_TOKEN"):
        return "the one in RAY_AUTH_TOKEN is not the cluster's"
    return f"the one in {place} is not the cluster's" if Path(place).is_file() else f"there is none in {place}"


def ray_cluster(address: str | None, environment: Mapping[str, str] = os.environ) -> Check:
    """Check that Ray is installed, and that the cluster at `address` is reachable.

    Args:
        address: `HOST:PORT`, `auto`, or None for a local cluster.
        environment: the environment variables (RAY_ADDRESS, RAY_TMPDIR).
    """
    version = metadata.version("ray")
    if address in {None, "local"}:
        unused = unused_variable(environment)
        own = f"Ray {version}; a sweep starts its own cluster here and stops it"
        return Check(RAY, True, f"{own}. {unused}".removesuffix(".") if unused else own)
    assert address is not None
    try:
        target = cluster_address(address, environment)
    except ValueError as error:
        fault, _, remedy = str(error).removesuffix(".").partition("; ")
        return Check(RAY, False, fault, remedy)
    fault = join_fault(target, environment)
    if fault:
        remedy = "start it there (ray start --head --port 6379), open that port, or leave --address out"
        return Check(RAY, False, f"{target} does not answer ({fault})", remedy)
    return Check(RAY, True, f"{target} answers; Ray here is {version}")
