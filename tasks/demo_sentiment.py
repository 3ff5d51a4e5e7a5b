"""Demo: is a short review positive? Negation, contrast and broken expectations invert the sentiment of single words."""

from __future__ import annotations

from meltpoint.tasks.core.grammar import Draw, readers, sentence
from meltpoint.tasks.core.task import Example, Task

LABELS = ("negative", "positive")

# By field: (nouns, positive adjectives, negative adjectives).
FIELDS = (
    (
        ("soup", "pasta", "dessert", "steak", "breakfast", "curry", "salad", "bread", "coffee", "pie"),
        ("delicious", "tasty", "fresh", "superb", "tender", "fragrant", "perfect", "delightful"),
        ("stale", "bland", "greasy", "tasteless", "burnt", "soggy", "awful", "inedible"),
    ),
    (
        ("plot", "acting", "ending", "dialogue", "film", "script", "soundtrack", "sequel", "thriller", "comedy"),
        ("gripping", "moving", "clever", "brilliant", "witty", "touching", "superb", "charming"),
        ("dull", "predictable", "clumsy", "tedious", "lifeless", "shallow", "awful", "boring"),
    ),
    (
        ("room", "bed", "service", "view", "pool", "lobby", "bathroom", "staff", "location", "balcony"),
        ("spotless", "comfortable", "friendly", "wonderful", "lovely", "pleasant", "perfect", "excellent"),
        ("filthy", "noisy", "shabby", "dreadful", "cramped", "unpleasant", "awful", "disgusting"),
    ),
    (
        ("phone", "screen", "battery", "keyboard", "camera", "laptop", "speaker", "charger", "tablet", "printer"),
        ("reliable", "fast", "sharp", "excellent", "sturdy", "impressive", "perfect", "dependable"),
        ("useless", "slow", "flimsy", "faulty", "fragile", "worthless", "awful", "defective"),
    ),
)

# (review with an opinion {x} and one {y} of the opposite sentiment, True if the review has the sentiment of {x}).
# {n} and {m} are nouns of one field. The plain reviews contain no negation or contrast.
PLAIN = (
    ("The {n} was {x} .", True),
    ("The {n} was really {x} , and so was the {m} .", True),
    ("I found the {n} {x} from the first minute to the last .", True),
    ("Everyone at our table called the {n} {x} .", True),
    ("What a {x} {n} !", True),
    ("My sister chose it for the {n} , which is {x} .", True),
    ("A {x} {n} and a {x} {m} , just as my friends had said .", True),
    ("After two weeks I still think that the {n} is {x} .", True),
)
TURNING = (
    ("The {n} was not {x} at all .", False),
    ("The {n} was far from {x} .", False),
    ("Nobody could call this {n} {x} .", False),
    ("The {n} was anything but {x} .", False),
    ("I have never seen a less {x} {n} .", False),
    ("The {n} was {x} , but the {m} was so {y} that it decided the matter .", False),
    ("Although the {n} was {y} , the {m} was {x} and that is what counts .", True),
    ("We expected the {n} to be {y} , but it turned out to be {x} .", True),
    ("Friends had warned us that the {n} was {y} ; they were wrong .", True),
    ("The advert promised a {x} {n} , and that was a lie .", False),
    ("There was nothing {y} about the {n} .", True),
    ("The {n} used to be {x} ; those days are over .", False),
    ("The {n} may look {y} at first , yet it is {x} .", True),
    ("Do not let the {y} {n} put you off : the {m} is {x} and well worth it .", True),
    ("A {x} {n} does not make up for a {y} {m} .", False),
)
PLAIN_SHARE = 0.5

NOISE_SHARE = 0.04


def _make(draw: Draw) -> Example:
    nouns, praise, blame = draw.any(FIELDS)
    template, agrees_with_x = draw.any(PLAIN if draw.chance(PLAIN_SHARE) else TURNING)
    x_is_praise = draw.chance(0.5)
    x = draw.word(praise if x_is_praise else blame)
    y = draw.word(blame if x_is_praise else praise)
    noun = draw.word(nouns)
    text = sentence(template.format(n=noun, m=draw.other(nouns, noun), x=x, y=y))
    positive = x_is_praise == agrees_with_x
    if draw.chance(NOISE_SHARE):
        positive = not positive
    return Example("", texts=(text,), label=int(positive))


TASK = Task(
    name="demo_sentiment",
    kind="sentence_classification",
    metric="accuracy",
    folder="",
    readers=readers("demo_sentiment", _make),
    labels=LABELS,
    tokenised=True,
    description="demo, generated: short reviews with negation and contrast",
    generated=True,
)
