"""Settings of CLaaS for tests, with few words: fields by their own names where those are unique."""

from dataclasses import fields, replace
from typing import Any

from learngraph.graphs.claas import CLaaS
from learngraph.memory.claas.settings import Objective, PolicyGradient, StalenessCorrection, TeacherSettings

GROUPS: dict[str, Any] = {"correction": StalenessCorrection, "teacher": TeacherSettings, "policy": PolicyGradient}


def make_objective(kind: str = "sdpo", **named: Any) -> Objective:
    """`make_objective("ppo", correction="none", gae_lambda=1.0)`: `correction` and `teacher` are the kinds of these groups."""
    for group, form in GROUPS.items():
        mine = {one.name: named.pop(one.name) for one in fields(form) if one.name in named}
        if isinstance(named.get(group), str):
            mine["kind"] = named.pop(group)
        if mine:
            named[group] = replace(form(), **mine)
    return Objective(kind=kind, **named)  # type: ignore[arg-type]


def changed(settings: CLaaS, **groups: dict[str, Any]) -> CLaaS:
    """Settings with some fields of their groups changed: `changed(settings, gate={"enabled": False})`."""
    return replace(settings, **{name: replace(getattr(settings, name), **values) for name, values in groups.items()})  # type: ignore[arg-type]


OPEN_GATE = changed(
    CLaaS(),
    replay={"held_out_share": 0.0},
    gate={"min_entropy_share": 0.0, "max_kl": 9.0},
    rollout={"watch_rewards": 0, "max_lead": None},
)
"""Settings of a small world whose model may say one word only: nothing is held out, hardly anything fails the gate, and the learner waits for
no newer feedback."""
