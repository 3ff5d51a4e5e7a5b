"""The checks of a cluster's nodes against the driver: facts in, one line a check out, with the node that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from meltpoint.sweeps.machine.node_facts import NodeFacts
from meltpoint.sweeps.machine.services import Check
from meltpoint.tasks.core.wording import some

GIB = 1024**3
LEAST_FREE_BYTES = GIB // 4
"""Less than that on the storage's disk does not hold the weights of a few trials."""

MOST_SKEW_SECONDS = 5.0
"""Clocks that differ by more put a trial's epochs before its beginning, in the ledger and in MLflow."""

NODES, VERSIONS, CODE, PACKAGES, STORAGE, INPUTS, FOLDERS, CLOCKS, DISK, GPUS, HUB = (
    "nodes", "Ray and Python", "code on the nodes", "packages on the nodes", "storage on the nodes",
    "data on the nodes", "folders on the nodes", "clocks", "disk on the nodes", "GPUs", "hub from the nodes",
)  # fmt: skip

MAY_DIFFER = frozenset({NODES, PACKAGES, CLOCKS, DISK, HUB})
"""Checks that a sweep only says something about: a node that did not answer is checked by its workers."""


@dataclass(frozen=True)
class Answers:
    """The answers of a cluster's nodes.

    Attributes:
        here: the driver's own facts.
        facts: node → its facts.
        silent: node → why it has none.
        span: node → (when it was asked, when its answer was there), in seconds since 1970 by the driver's clock.
        unread: nodes whose files in the probe's folder the driver did not see.
        wanted: data's or encoder's word → fingerprint; empty where no sweep asks.
        inputs: node → word → fingerprint, or what is wrong; without nodes that were too slow.
        gpus: node → its GPUs in words, of nodes that have some.
    """

    here: NodeFacts
    facts: Mapping[str, NodeFacts]
    silent: Mapping[str, str] = field(default_factory=dict)
    span: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    wanted: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)


def judged(answers: Answers) -> list[Check]:
    """Every check of a cluster's nodes, in the order in which a person would put things right."""
    checks = [
        nodes(answers), versions(answers), code(answers), packages(answers), storage(answers), disk(answers),
        clocks(answers), gpus(answers),
    ]  # fmt: skip
    if answers.wanted:
        checks.insert(5, inputs(answers))
    if answers.here["folders"]:
        checks.insert(5, folders(answers))
    if answers.here["hub"]:
        checks.append(hub(answers))
    return checks


def nodes(answers: Answers) -> Check:
    """The nodes that answered."""
    count = some(len(answers.facts) + len(answers.silent), "node")
    if answers.silent:
        faults = "; ".join(f"{node}: {why}" for node, why in answers.silent.items())
        remedy = "look at that node (its load, its firewall, its installation of Meltpoint), or take it out"
        return Check(NODES, False, f"of {count}, {len(answers.silent)} did not answer: {faults}", remedy)
    return Check(NODES, True, f"{count}: {', '.join(answers.facts)}")


def versions(answers: Answers) -> Check:
    """Ray and Python, which have to be the same to the patch level."""
    here = (answers.here["ray"], answers.here["python"])
    wrong = _wrong(answers, lambda facts: _differ("Ray and Python", here, (facts["ray"], facts["python"])))
    return _check(VERSIONS, wrong, f"Ray {here[0]}, Python {here[1]} everywhere", "install the driver's there")


def code(answers: Answers) -> Check:
    """Meltpoint's code, by which trials are told apart."""
    here = answers.here["code"]
    wrong = _wrong(answers, lambda facts: "" if facts["code"] == here else f"has {facts['code']}, the driver {here}")
    remedy = "bring every node to the driver's code, or submit the sweep with `ray job submit --working-dir`"
    return _check(CODE, wrong, f"{here} everywhere", remedy)


def packages(answers: Answers) -> Check:
    """The packages that numbers depend on."""
    here = answers.here["packages"]

    def fault(facts: NodeFacts) -> str:
        names = sorted(here.keys() | facts["packages"].keys())
        pairs = [(name, facts["packages"].get(name, "none"), here.get(name, "none")) for name in names]
        return "; ".join(f"{name} {there} (the driver: {own})" for name, there, own in pairs if there != own)

    remedy = "install the driver's versions there (pip install -c constraints.txt), or numbers depend on the node"
    return _check(PACKAGES, _wrong(answers, fault), "the same everywhere", remedy)


def storage(answers: Answers) -> Check:
    """The sweep's storage: each node reads what the driver wrote, and the driver what each node wrote."""
    wrong = _wrong(answers, lambda facts: facts["storage"])
    wrong |= {node: "the driver does not see what it writes" for node in sorted(answers.unread) if node not in wrong}
    remedy = "name with --storage a folder that all nodes mount under one path, and may write"
    if any("no way to the storage" in fault for fault in wrong.values()):
        remedy = "start Ray there with the environment variables of the store and its package"
    return _check(STORAGE, wrong, "read and written from every node", remedy)


def inputs(answers: Answers) -> Check:
    """Data and encoders' folders: the same files on each node, as far as it could read them in time."""

    def fault(found: Mapping[str, str]) -> str:
        faults = [(word, found[word]) for word, wanted in answers.wanted.items() if found.get(word, wanted) != wanted]
        return "; ".join(f"{word} {there if ' ' in there else 'is other there'}" for word, there in faults)

    wrong = {node: fault(found) for node, found in answers.inputs.items() if fault(found)}
    late = sorted(answers.facts.keys() - answers.inputs.keys())
    ok = "the same data and encoders on every node"
    ok += f" but {', '.join(late)}, too slow to say; workers compare theirs before they train" if late else ""
    return _check(INPUTS, wrong, ok, "put the same files there, under the same paths (--data-dir)")


def folders(answers: Answers) -> Check:
    """Folders that were named, compared by the number and the size of their files."""

    def fault(facts: NodeFacts) -> str:
        pairs = [(name, facts["folders"].get(name), own) for name, own in answers.here["folders"].items()]
        return "; ".join(
            f"{'has other files in' if there else 'has no folder'} {name}" for name, there, own in pairs if there != own
        )

    missing = [name for name, own in answers.here["folders"].items() if own is None]
    wrong = {"the driver": f"has no folder {', '.join(missing)}"} if missing else _wrong(answers, fault)
    return _check(
        FOLDERS, wrong, f"{', '.join(answers.here['folders'])} everywhere", "mount it there, under the same path"
    )


def clocks(answers: Answers) -> Check:
    """The clocks of the nodes; an answer was made between its request and its arrival."""

    def skew(node: str) -> float:
        asked, answered = answers.span[node]
        return max(asked - answers.facts[node]["clock"], answers.facts[node]["clock"] - answered, 0.0)

    off = {node: skew(node) for node in answers.span if node in answers.facts}
    wrong = {node: f"is off by {seconds:.0f} s" for node, seconds in off.items() if seconds > MOST_SKEW_SECONDS}
    return _check(CLOCKS, wrong, f"within {MOST_SKEW_SECONDS:g} s", "set that clock (NTP: timedatectl set-ntp true)")


def disk(answers: Answers) -> Check:
    """Free room on the storage's disk, as each node sees it."""

    def fault(facts: NodeFacts) -> str:
        is_full = facts["free_bytes"] < LEAST_FREE_BYTES
        return f"has {facts['free_bytes'] / GIB:.2f} GiB free in the storage" if is_full else ""

    least = min((facts["free_bytes"] for facts in answers.facts.values()), default=answers.here["free_bytes"])
    remedy = f"free {LEAST_FREE_BYTES / GIB:g} GiB there, or name another folder with --storage"
    return _check(DISK, _wrong(answers, fault), f"{least / GIB:.1f} GiB free in the storage, at least", remedy)


def gpus(answers: Answers) -> Check:
    """The GPUs by node and kind, for a person to read."""
    has = "; ".join(f"{node}: {words}" for node, words in answers.gpus.items())
    return Check(GPUS, True, has or "none in this cluster; trials train on the CPUs")


def hub(answers: Answers) -> Check:
    """The Hugging Face hub from each node: reached, or not to be asked."""
    wrong = _wrong(answers, lambda facts: "" if facts["hub"] in {"offline", "reached"} else facts["hub"])
    offline = [node for node, facts in answers.facts.items() if facts["hub"] == "offline"]
    ok = f"offline on {', '.join(offline)} (HF_HUB_OFFLINE), where nothing is fetched" if offline else "reached"
    remedy = "let that node reach the hub, or set HF_HUB_OFFLINE=1 and give every node the same HF_HOME"
    return _check(HUB, wrong, ok, remedy)


def _wrong(answers: Answers, fault: Callable[[NodeFacts], str]) -> dict[str, str]:
    """Node → what is wrong there."""
    return {node: said for node, facts in answers.facts.items() if (said := fault(facts))}


def _differ(what: str, here: tuple[str, ...], there: tuple[str, ...]) -> str:
    return "" if here == there else f"has {what} {', '.join(there)}, the driver {', '.join(here)}"


def _check(name: str, wrong: Mapping[str, str], ok: str, remedy: str) -> Check:
    if not wrong:
        return Check(name, True, ok)
    return Check(name, False, "; ".join(f"{node} {fault}" for node, fault in wrong.items()), remedy)
