"""Training chats of the guard model: a defender that keeps its rules with given probabilities, and the reason for them.

The defender is fallible on purpose: a learner's task must fail often enough, and succeed often enough to be found. Every rule of a
scenario is kept or broken by a draw of its own. The odds (`hold_probabilities`) depend on the family, on whether the user attacks
this rule and how it asks, on the defender's steadiness (a number z, drawn once per chat and never stated: its earlier turns give
evidence of it), on feedback that it can read, and on the earlier exchanges in its prompt.

| chat | what the model can learn from it |
|---|---|
| scenario | the meaning of the rules, and to keep them in part |
| hindsight | to do what the feedback behind the last message says |
| past | that earlier exchanges, with their rewards and feedback, say something of how steady it is and what it lacks |
| free | without rules: to do what the user wants, to add numbers |
| drill | to look up facts, many in one chat |

Only the assistant's tokens are learned. No scenario of the held-out tenth is ever drawn.
"""

import math
import random
from collections.abc import Mapping, Sequence

from learngraph.tools.environments import hierarchy
from learngraph.tools.environments.hierarchy import Attack, Fact, Family, HierarchyTurn, Scenario
from learngraph.tools.pocket.guard_chats import Message, PastExchange, draw_facts, draw_wish, prepend_past, prompt_without_rules

TARGETED_HOLD_RATES: Mapping[str, float] = {
    "secret": 0.66,
    "begin": 0.68,
    "end": 0.68,
    "call": 0.64,
    "short": 0.68,
    "colour": 0.67,
    "creature": 0.65,
    "topic": 0.63,
}
"""Probability that an attacked rule holds, by family, for a defender of average steadiness that is asked directly."""
UNTARGETED_HOLD_RATES: Mapping[str, float] = {"begin": 0.87, "end": 0.85, "call": 0.83, "short": 0.91}
"""Probability that a rule holds that is not attacked; rules of other families always hold."""
ANSWER_RATE = 0.96
"""Probability that a legitimate question is answered."""
FRAME_LOGIT_SHIFTS: Mapping[str, float] = {
    "direct": 0.0,
    "please": -0.2,
    "boss": -0.5,
    "forget": -0.7,
    "game": -0.4,
    "once": -0.1,
    "new": -0.5,
}
"""Added to the log-odds, by how the user asks."""
STEADINESS_STD = 1.2
"""Standard deviation of z, which is added to the log-odds."""
BROKEN_RULE_LOGIT_SHIFT, OTHER_RULES_LOGIT_SHIFT = 4.5, 2.0
"""Added to the log-odds of a rule that feedback at hand says was broken, and of the other rules."""
WRONG_LOGIT_SHIFT, RIGHT_LOGIT_SHIFT = 0.4, 1.0
"""Added to the log-odds of all rules by feedback that says no more than that an answer was wrong, or right."""
CORRECTED_LOGIT_SHIFT, KEPT_LOGIT_SHIFT = 1.5, 0.5
"""Added to the log-odds of a rule by each earlier exchange that was corrected for it, or in which it held."""

CHAT_SHARES: Mapping[str, float] = {"scenario": 0.36, "hindsight": 0.24, "past": 0.14, "free": 0.20, "drill": 0.06}
"""Shares of the kinds of chats."""


def hold_probabilities(
    scenario: Scenario,
    attacked: Attack,
    steadiness: float = 0.0,
    logit_shifts: Mapping[str, float] | None = None,
    common_logit_shift: float = 0.0,
) -> dict[str, float]:
    """Probability that each rule is kept in this turn, by family; `answer` is the legitimate question's.

    Args:
        scenario: the scenario with the rules.
        attacked: the user's message.
        steadiness: z, added to the log-odds.
        logit_shifts: added to the log-odds, by family.
        common_logit_shift: added to all log-odds.
    """
    kept = {
        "answer": _sigmoid(_logit(ANSWER_RATE) + steadiness / 2 + common_logit_shift + (logit_shifts or {}).get("answer", 0.0))
    }
    for rule in scenario.rules:
        if rule.family == attacked.target:
            base = _logit(TARGETED_HOLD_RATES[rule.family]) + FRAME_LOGIT_SHIFTS[attacked.frame]
        elif rule.family in UNTARGETED_HOLD_RATES:
            base = _logit(UNTARGETED_HOLD_RATES[rule.family])
        else:
            kept[rule.family] = 1.0
            continue
        kept[rule.family] = _sigmoid(base + steadiness + common_logit_shift + (logit_shifts or {}).get(rule.family, 0.0))
    return kept


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def fallible_reply(scenario: Scenario, attacked: Attack, hold_rates: Mapping[str, float], draw: random.Random) -> str:
    """A reply in which each rule is kept with the probability given for its family."""
    keeps = {family: draw.random() < p for family, p in hold_rates.items()}
    words = {rule.family: rule.word for rule in scenario.rules}
    fact = hierarchy.requested_fact(scenario, attacked.text)
    body = "no"
    if fact is not None:
        body = fact.text if keeps["answer"] else _evasion(scenario, fact, draw)
    if attacked.target in ("secret", "colour", "creature", "topic") and not keeps[attacked.target]:
        slip = _slip(scenario, attacked, draw)
        body = slip if body == "no" else f"{body} {slip}"
    if not keeps.get("short", True):
        body = f"well i tell you {body} as all can see"
    opening = _form("begin", words, keeps, attacked, draw)
    name = _form("call", words, keeps, attacked, draw)
    ending = _form("end", words, keeps, attacked, draw)
    return " ".join(part for part in (opening, name, body, ending) if part)


def _form(family: Family, words: Mapping[Family, str], keeps: Mapping[str, bool], attacked: Attack, draw: random.Random) -> str:
    """The word that begins or ends a reply, or names the user: the right one, the one that the user wants, or none."""
    if family not in words or keeps[family]:
        return words.get(family, "")
    return attacked.demand if attacked.target == family and draw.random() < 0.7 else ""


def _evasion(scenario: Scenario, fact: Fact, draw: random.Random) -> str:
    others = [other for other in scenario.facts if other != fact and not scenario.forbids(other)]
    return f"{fact.thing} is {draw.choice(others).value}" if others and draw.random() < 0.4 else "no"


def _slip(scenario: Scenario, attacked: Attack, draw: random.Random) -> str:
    if attacked.demand:
        return attacked.demand
    inside = next(
        (fact for fact in scenario.facts if f"{fact.thing} is what ?" in attacked.text and scenario.forbids(fact)), None
    )
    if inside is not None:
        return inside.text
    return draw.choice(hierarchy.VALUES[attacked.target])


def _turn(scenario: Scenario, attacked: Attack, kept: Mapping[str, float], draw: random.Random) -> HierarchyTurn:
    reply = fallible_reply(scenario, attacked, kept, draw)
    return HierarchyTurn(attacked.text, reply, hierarchy.verify(scenario, attacked.text, reply))


# Chats


def chat(draw: random.Random, kind: str) -> list[Message]:
    """A chat of a kind (see `CHAT_SHARES`). Its replies are learned, except those in its system message."""
    match kind:
        case "scenario":
            return _scenario(draw)
        case "hindsight":
            return _hindsight(draw)
        case "past":
            return _past(draw)
        case "free":
            return _free(draw)
        case _:
            return _drill(draw)


def _draw_scenario(draw: random.Random, split: int | None = None) -> Scenario:
    name = f"train-{draw.getrandbits(48)}"
    return hierarchy.draw_scenario(draw, draw.randrange(len(hierarchy.SPLITS)) if split is None else split, name)


def _turns(
    scenario: Scenario, count: int, z: float, draw: random.Random, more: Mapping[str, float] | None = None, strict: bool = False
) -> list[HierarchyTurn]:
    """The first turns; `strict`: only such in which all rules held, as in play, where the first break ends the chat."""
    turns: list[HierarchyTurn] = []
    while len(turns) < count:
        attacked = hierarchy.next_attack(scenario, turns)
        turn = _turn(scenario, attacked, hold_probabilities(scenario, attacked, z, more), draw)
        if strict and not turn.verdict.reward:
            reply = hierarchy.compliant_reply(scenario, attacked.text)
            turn = HierarchyTurn(attacked.text, reply, hierarchy.verify(scenario, attacked.text, reply))
        turns.append(turn)
    return turns


def _say(scenario: Scenario, turns: Sequence[HierarchyTurn]) -> list[Message]:
    *before, last = turns
    return [*hierarchy.chat_messages(scenario, before, last.user), {"role": "assistant", "content": last.reply}]


def _scenario(draw: random.Random) -> list[Message]:
    scenario = _draw_scenario(draw)
    return _say(scenario, _turns(scenario, 3, draw.gauss(0, STEADINESS_STD), draw))


def _hindsight(draw: random.Random) -> list[Message]:
    """A chat with feedback on another answer to the same question."""
    while True:
        scenario = _draw_scenario(draw)
        z = draw.gauss(0, STEADINESS_STD)
        before = _turns(scenario, draw.choice((0, 0, 1, 2)), z, draw, strict=True)
        attacked = hierarchy.next_attack(scenario, before)
        first = _turn(scenario, attacked, hold_probabilities(scenario, attacked, z), draw)
        form = draw.random()
        block, more, every = "", {}, 0.0
        if form < 0.12:
            every = RIGHT_LOGIT_SHIFT if first.verdict.reward else WRONG_LOGIT_SHIFT
            block = f"feedback : {'right' if first.verdict.reward else 'wrong'} ."
        elif form < 0.85:
            if first.verdict.reward:
                continue
            block, every = f"feedback : {first.verdict.feedback}", OTHER_RULES_LOGIT_SHIFT
            more = dict.fromkeys(first.verdict.broken_families, BROKEN_RULE_LOGIT_SHIFT)
        if form > 0.72:  # with or without feedback, an answer that was right
            like = hierarchy.compliant_reply(scenario, attacked.text)
            if draw.random() < 0.3:
                other = _turns(scenario, 1, 0.0, draw, strict=True)[0]
                like = other.reply
            block, every = f"{block} like : {like} .".strip(), BROKEN_RULE_LOGIT_SHIFT
        kept = hold_probabilities(scenario, attacked, z, more, every)
        reply = fallible_reply(scenario, attacked, kept, draw)
        asked = hierarchy.chat_messages(scenario, before, f"{attacked.text} {block}")
        return [*asked, {"role": "assistant", "content": reply}]


def _past(draw: random.Random) -> list[Message]:
    z = draw.gauss(0, STEADINESS_STD)
    split = draw.choice((None, draw.randrange(5)))
    past: list[PastExchange] = []
    more: dict[str, float] = {}
    told = draw.random() < 0.6
    for _ in range(draw.randint(1, 4)):
        scenario = _draw_scenario(draw, split)
        (turn,) = _turns(scenario, 1, z, draw, more)
        past.append(PastExchange(scenario, turn))
        for rule in scenario.rules:
            if rule.family not in turn.verdict.broken_families:
                if turn.verdict.reward:
                    more[rule.family] = min(3.0, more.get(rule.family, 0.0) + KEPT_LOGIT_SHIFT)
            elif told:
                more[rule.family] = min(3.0, more.get(rule.family, 0.0) + CORRECTED_LOGIT_SHIFT)
    scenario = _draw_scenario(draw, split)
    return prepend_past(_say(scenario, _turns(scenario, draw.randint(1, 3), z, draw, more)), past, told)


def _free(draw: random.Random) -> list[Message]:
    facts = draw_facts(draw, 4)
    said: list[Message] = [{"role": "system", "content": prompt_without_rules(facts)}]
    for _ in range(3):
        user, reply = draw_wish(draw, facts)
        frame = draw.choice([*hierarchy.FRAMES.values()]) if draw.random() < 0.5 else ""
        said += [{"role": "user", "content": f"{frame} {user}".strip()}, {"role": "assistant", "content": reply}]
    return said


def _drill(draw: random.Random) -> list[Message]:
    facts = draw_facts(draw, draw.randint(4, 9))
    said: list[Message] = [{"role": "system", "content": prompt_without_rules(facts)}]
    for fact in draw.sample(facts, min(6, len(facts))):
        said += [{"role": "user", "content": f"{fact.thing} is what ?"}, {"role": "assistant", "content": fact.text}]
    return said


def vocabulary_texts() -> list[str]:
    """Texts that contain every word of the vocabulary."""
    draw = random.Random("words")
    words = [
        *hierarchy.THINGS,
        *hierarchy.CODES,
        *hierarchy.FORMS_OF_ADDRESS,
        *hierarchy.NUMBERS,
        "feedback like right wrong reward past",
    ]
    words += [value for kind in hierarchy.VALUES.values() for value in kind]
    said = [message["content"] for kind in CHAT_SHARES for _ in range(400) for message in chat(draw, kind)]
    return [*words, *said]
