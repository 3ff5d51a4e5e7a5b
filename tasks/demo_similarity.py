"""Demo: how similar are two sentences, 0 to 5? The score counts the facts they share, of four, with some noise.

The facts are who, what is done, to what, and where. A shared fact may be paraphrased, and a fact that is not shared is
replaced by another of the same sort, so that word overlap predicts the score poorly.
"""

from __future__ import annotations

from meltpoint.tasks.core.task import Example
from meltpoint.tasks.demo_sentiment import Draw, demo, sentence

LABEL_RANGE = (0.0, 5.0)

# Each fact with its paraphrases, by sort.
WHO = (
    ("the doctor", "the physician"), ("a young man", "a lad"), ("the chef", "the cook"),
    ("a little girl", "a small girl"), ("the lawyer", "the attorney"), ("the teacher", "the instructor"),
    ("an old woman", "an elderly lady"), ("the author", "the writer"), ("the thief", "the burglar"),
    ("the pilot", "the airman"), ("the sailor", "the seaman"), ("the policeman", "the officer"),
)  # fmt: skip
DOES = (
    ("bought", "purchased"), ("hid", "concealed"), ("found", "discovered"), ("threw away", "got rid of"),
    ("returned", "gave back"), ("showed", "displayed"), ("stole", "made off with"), ("borrowed", "took on loan"),
    ("cleaned", "wiped"), ("photographed", "took a picture of"), ("dropped", "let fall"), ("wrapped", "packed"),
)  # fmt: skip
WHAT = (
    ("a bicycle", "a bike"), ("a painting", "a picture"), ("a letter", "a note"), ("a suitcase", "a trunk"),
    ("a coat", "an overcoat"), ("a gift", "a present"), ("a lamp", "a light"), ("a rug", "a carpet"),
    ("a sack", "a bag"), ("a stone", "a rock"), ("a cup", "a mug"), ("a knife", "a blade"),
)  # fmt: skip
WHERE = (
    ("at the shop", "in the store"), ("in the woods", "in the forest"), ("at home", "in the house"),
    ("near the coast", "by the sea"), ("in the street", "on the road"), ("at school", "in the classroom"),
    ("in the cellar", "in the basement"), ("at the airport", "in the terminal"),
)  # fmt: skip
SORTS = (WHO, DOES, WHAT, WHERE)

PARAPHRASE_SHARE = 0.6
NOISE_DEVIATION = 0.35
"""Standard deviation of the annotators' mean, in points of the scale; STS-B's is of this order."""

Facts = list[tuple[str, str]]


def _sentence_of(draw: Draw, facts: Facts, second: bool) -> str:
    who, does, what, where = (fact[int(second and draw.chance(PARAPHRASE_SHARE))] for fact in facts)
    forms = (f"{who} {does} {what} {where} .", f"{where} , {who} {does} {what} .")
    return sentence(draw.any(forms))


def _make(draw: Draw) -> Example:
    first: Facts = [draw.word(sort) for sort in SORTS]
    shared = draw.random.randint(0, len(SORTS))
    kept = set(draw.random.sample(range(len(SORTS)), shared))
    second: Facts = [
        first[position] if position in kept else draw.other(sort, first[position])
        for position, sort in enumerate(SORTS)
    ]
    score = shared * LABEL_RANGE[1] / len(SORTS) + draw.random.gauss(0, NOISE_DEVIATION)
    label = round(min(max(score, LABEL_RANGE[0]), LABEL_RANGE[1]), 1)
    return Example("", texts=(_sentence_of(draw, first, False), _sentence_of(draw, second, True)), label=label)


TASK = demo(
    "demo_similarity", _make, "pair_regression", "pearson", "how many facts do two sentences share, 0 to 5?",
    label_range=LABEL_RANGE,
)  # fmt: skip
