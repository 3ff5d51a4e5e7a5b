"""Demo: people, places and organisations in short news sentences, many of whose names are ambiguous.

Half of all names are drawn from a list whose names can be a person, a place or a team, so that only the context
decides; dev and test also use names and words that train does not contain.
"""

from __future__ import annotations

from typing import Literal

from meltpoint.tasks.core.task import Example
from meltpoint.tasks.demo_sentiment import Draw, demo

Type = Literal["PER", "LOC", "ORG"]

TYPES: dict[str, Type] = {"per": "PER", "loc": "LOC", "org": "ORG"}

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")

AMBIGUOUS = (
    "Jordan", "Washington", "Lincoln", "Paris", "Florence", "Chelsea", "Madison", "Austin", "Sydney", "Georgia",
    "Charlotte", "Victoria", "Houston", "Orlando", "Lancaster", "Hamilton", "Chester", "Preston", "Dallas", "Stafford",
    "Lourdes", "Milan", "Bristol", "Burton", "Kent", "Barrow", "Carlisle", "Derby", "Denver", "Phoenix", "Santiago",
    "Santos", "Valencia", "Newton", "Wellington", "Salisbury", "Windsor", "Beverley", "Fulham", "Everton",
)  # fmt: skip

FIRST = (
    "Maria", "Tomas", "Anna", "Peter", "Leila", "Omar", "Ingrid", "Pavel", "Sofia", "Marcus", "Yuki", "Daniel", "Amina",
    "Viktor", "Clara", "Hassan",
)  # fmt: skip

LAST = (
    "Novak", "Okafor", "Lindqvist", "Moreau", "Petrov", "Tanaka", "Keller", "Haddad", "Silva", "Murphy", "Costa",
    "Jansen", "Rossi", "Weber", "Ivanova", "Nkemelu",
)  # fmt: skip

PLACES = (
    "Norway", "Cairo", "Lisbon", "Kenya", "Vienna", "Peru", "Osaka", "Belgium", "Nairobi", "Quebec", "Bombay", "Ghana",
    "Warsaw", "Chile", "Hanoi", "New Zealand", "South Africa", "San Marino", "Sri Lanka", "Costa Rica",
)  # fmt: skip

FIRMS = (
    "Nordbank", "Veltronix", "Solaris Energy", "Atlas Motors", "Brightwater Foods", "Helio Air", "Kestrel Group",
    "Lumen Systems", "Pacific Rail", "Orion Steel", "Granite Bank", "Meridian Oil", "United Textiles", "Crown Shipping",
)  # fmt: skip

# {per}, {loc}, {org}: names. {day}, {job}, {event}, {work}, {deal}: words. The same context words occur with different
# types on purpose: "X beat Y" is about teams or about players, "visited X" about places or people.
TEMPLATES = (
    "{per} told reporters on {day} that the {event} would go ahead in {loc} .",
    "{loc} and {loc} signed a {deal} on {day} .",
    "{org} said on {day} that {per} would leave the board .",
    "Shares in {org} fell after {per} sold a stake .",
    "{org} beat {org} 2-1 in front of a full stadium in {loc} .",
    "{per} beat {per} in straight sets in the final in {loc} .",
    "Heavy rain closed the {work} near {loc} on {day} .",
    "{per} , the {job} from {loc} , won a prize at the {event} .",
    "{per} left {org} for {org} after a week of talks .",
    "Talks between {per} and {per} ended without a {deal} .",
    "Talks between {loc} and {loc} ended without a {deal} .",
    "Talks between {org} and {org} ended without a {deal} .",
    "The {job} of {loc} met {per} on {day} .",
    "The {job} of {org} met {per} on {day} .",
    "{per} visited {loc} last {day} to open a {work} .",
    "{per} visited {per} in hospital last {day} .",
    "Voters in {loc} rejected the {deal} that {per} proposed .",
    "Fans of {org} travelled to {loc} for the {event} .",
    "{org} appointed {per} as {job} in {loc} .",
    "{org} will build a {work} south of {loc} .",
    "{per} scored twice as {org} drew with {org} .",
    "Another {job} in {loc} accused {org} of hiding the {deal} .",
    "{loc} : {per} resigned as {job} on {day} .",
    "Thousands left {loc} after the {event} for {loc} .",
    "{org} hired {per} , the former {job} of {org} .",
    "According to {per} , {org} paid for the {event} .",
    "According to {org} , {loc} paid for the {event} .",
    "His widow {per} still lives in {loc} with her children .",
    "{per} and {per} will share the lead after the {event} .",
    "Police in {loc} questioned {per} about the {deal} .",
)

WORDS: dict[str, tuple[str, ...]] = {
    "event": ("festival", "tournament", "summit", "carnival", "match", "parade", "ceremony", "regatta"),
    "work": ("bridge", "tunnel", "railway", "refinery", "museum", "harbour", "library", "reservoir"),
    "deal": ("contract", "treaty", "bargain", "pact", "settlement", "compromise", "merger", "truce"),
    "job": ("director", "mayor", "president", "ambassador", "chairman", "architect", "captain", "lawyer"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
}  # fmt: skip

AMBIGUOUS_SHARE = 0.5
NOISE_SHARE = 0.02
"""Share of entities with a random type, to imitate annotation errors."""


def _name(draw: Draw, kind: Type) -> list[str]:
    if kind == "PER":
        last = draw.word(AMBIGUOUS) if draw.chance(AMBIGUOUS_SHARE) else draw.word(LAST)
        return [draw.word(FIRST), last] if draw.chance(0.4) else [last]
    if draw.chance(AMBIGUOUS_SHARE):
        name = draw.word(AMBIGUOUS)
        return [name, draw.any(("United", "City"))] if kind == "ORG" and draw.chance(0.15) else [name]
    return draw.word(PLACES if kind == "LOC" else FIRMS).split(" ")


def _make(draw: Draw) -> Example:
    words: list[str] = []
    tags: list[int] = []
    for part in draw.any(TEMPLATES).split(" "):
        slot = part.strip("{}") if part.startswith("{") else ""
        if slot in TYPES:
            kind = TYPES[slot]
            name = _name(draw, kind)
            written = draw.any(list(TYPES.values())) if draw.chance(NOISE_SHARE) else kind
            tags += [LABELS.index(f"{prefix}-{written}") for prefix in "B" + "I" * (len(name) - 1)]
            words += name
        else:
            words.append(draw.word(WORDS[slot]) if slot else part)
            tags.append(0)
    words[0] = words[0][:1].upper() + words[0][1:]
    return Example("", words=tuple(words), label=tuple(tags))


TASK = demo(
    "demo_entities", _make, "sequence_labelling", "span_f1",
    "people, places and organisations with ambiguous names", LABELS,
)  # fmt: skip
