"""The exact Bayesian player of the toy world, whose probabilities are the labels of pocket's training texts."""

from dataclasses import dataclass, field

from learngraph.tools.environments.keyword_keep import ANSWERS


@dataclass
class PosteriorExpert:
    """The exact Bayesian player of the toy world: a scripted control and an upper bound, not a model.

    Answers are independent and uniform at first, so the posterior is uniform over the answers of a place that have not
    failed there, or certain once one was paid. It plays the answers, never the other moves.
    """

    right_answers: dict[str, str] = field(default_factory=dict)
    """Place -> the answer known to be right."""
    failed_answers: dict[str, set[str]] = field(default_factory=dict)
    """Place -> the answers known to be wrong."""
    advice: dict[str, str] = field(default_factory=dict)
    """Place -> advice from a lesson or a strategy, followed until it fails."""

    def see(self, place: str, action: str, reward: float) -> None:
        """Learn from one step: its place, its action, and its reward."""
        if action not in ANSWERS[place.partition(" ")[0]] or place in self.right_answers:
            return
        if reward > 0:
            self.right_answers[place] = action
        else:
            self.failed_answers.setdefault(place, set()).add(action)

    def probabilities(self, place: str) -> dict[str, float]:
        """The policy at a place: uniform over the answers that may still be right (or the advice); others are left out."""
        answers = ANSWERS[place.partition(" ")[0]]
        failed = self.failed_answers.get(place, set())
        if place in self.right_answers:
            open_answers = [self.right_answers[place]]
        elif self.advice.get(place, "") in answers and self.advice[place] not in failed:
            open_answers = [self.advice[place]]
        else:
            # All failed can only mean that the one right answer was paid before the expert began to watch.
            open_answers = [answer for answer in answers if answer not in failed] or list(answers)
        return {answer: 1 / len(open_answers) for answer in open_answers}
