"""Results of several memories in one list."""

from __future__ import annotations

from collections.abc import Sequence

from .search import Answer, Hit


def are_comparable(answers: Sequence[Answer]) -> bool:
    """Whether a score of one means as much as the same score of another: they are of one model,
    and were made up alike."""
    return len({_made_by(answer) for answer in answers}) <= 1


def merge(answers: Sequence[Answer], k: int) -> list[tuple[int, Hit]]:
    """The first k of all results, each with the number of its answer.

    By score where scores are comparable, and else by place: the first of each, then the second
    of each, and so on, as in reciprocal rank fusion of lists that share nothing.
    """
    placed = [
        (place, number, hit) for number, answer in enumerate(answers) for place, hit in enumerate(answer.hits)
    ]
    if are_comparable(answers):
        placed.sort(key=lambda one: (-one[2].score, one[1], one[0]))
    else:
        placed.sort(key=lambda one: (one[0], -one[2].score, one[1]))
    return [(number, hit) for _, number, hit in placed[:k]]


def _made_by(answer: Answer) -> tuple[object, ...]:
    options = answer.options
    scoring = (options.mode, options.text_norm, options.fusion, options.vector_weight, options.text_weight)
    return (answer.provider, answer.model, *scoring)
