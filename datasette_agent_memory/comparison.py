"""Whether one set of search parameters is better than another, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import PARAMETERS, ParameterError
from .evaluation import MEASURES, Measured, Memories, Query, as_cell, score_query

#: Of the difference of each measure.
_CONFIDENCE = 0.95
_RESAMPLES = 10_000
_FOLDS = 5
#: With fewer an interval says nothing.
_FEW_QUESTIONS = 20
#: The same questions give the same folds, samples and numbers.
_SEED = 2026

#: What tuning raises: it counts every answering line, and where it stands.
_TUNED_MEASURE = "nDCG@10"
_TRIED_WEIGHTS = [round(0.05 * step, 2) for step in range(21)]

_QUALITY = MEASURES[:-1]


def parse_options(text: str) -> dict[str, str]:
    """Search parameters written as name=value, separated by commas; raises ParameterError."""
    options = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in PARAMETERS:
            raise ParameterError(f"--compare must be of search parameters as name=value, not {part[:40]!r}")
        options[name] = value.strip()
    return options


def bootstrap(differences: NDArray[np.float64]) -> tuple[float, float]:
    """The 95% interval of the mean of paired differences, by the percentile bootstrap over the
    questions (Efron and Tibshirani, 1993); array of shape (questions,)."""
    generator = np.random.default_rng(_SEED)
    count = len(differences)
    means = np.concatenate(
        [
            differences[generator.integers(0, count, (min(500, _RESAMPLES), count))].mean(axis=1)
            for _ in range(_RESAMPLES // 500)
        ]
    )
    low, high = np.quantile(means, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)


def per_query(queries: Sequence[Query], found: Measured) -> dict[str, NDArray[np.float64]]:
    """Each measure of each query, in order: arrays of shape (queries,)."""
    scores = [
        {**score_query(query, found.ranked.get(query.id, ())), "chars@6": found.chars.get(query.id, 0.0)}
        for query in queries
    ]
    return {measure: np.array([score[measure] for score in scores]) for measure in MEASURES}


def compare(queries: Sequence[Query], base: Measured, others: Mapping[str, Measured]) -> list[dict[str, Any]]:
    """A row for the base and for each other: the means, and the differences with their intervals."""
    own = per_query(queries, base)
    rows: list[dict[str, Any]] = [{"options": "as given", "n": len(queries), **_means(own)}]
    for name, other in others.items():
        scores = per_query(queries, other)
        differences = {}
        for measure in _QUALITY:
            pairs = scores[measure] - own[measure]
            low, high = bootstrap(pairs)
            differences[measure] = {"mean": float(pairs.mean()), "low": low, "high": high}
        rows.append({"options": name, "n": len(queries), **_means(scores), "difference": differences})
    return rows


def _means(scores: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    return {measure: float(values.mean()) for measure, values in scores.items()}


def as_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    shown = ("recall@6", "nDCG@10")
    lines = [
        "| options | " + " | ".join(MEASURES) + " | " + " | ".join(f"Δ {name}" for name in shown) + " |",
        "|---|" + "--:|" * (len(MEASURES) + len(shown)),
    ]
    for row in rows:
        values = [f"{row[measure]:.3f}" for measure in _QUALITY] + [f"{row[MEASURES[-1]]:.0f}"]
        differences = row.get("difference")
        for name in shown:
            values.append(_interval(**differences[name]) if differences else "")
        lines.append(f"| {as_cell(row['options'])} | " + " | ".join(values) + " |")
    intervals = (
        f"Δ: mean difference to the first row, and its {_CONFIDENCE:.0%} interval by paired bootstrap."
    )
    return "\n".join([*lines, "", intervals])


def _interval(mean: float, low: float, high: float) -> str:
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


@dataclass(frozen=True)
class Tuning:
    """The best weights for some questions, and what they gain on questions they were not chosen by."""

    vector_weight: float
    #: Of each weight that was tried, the mean of the measure.
    tried: dict[float, float]
    before: float
    #: The gain that cross-validation found, and its interval.
    gain: float
    low: float
    high: float
    questions: int

    @classmethod
    def by_cross_validation(
        cls,
        queries: Sequence[Query],
        memories: Memories,
        given: Mapping[str, object],
        progress: Callable[[int, int], None],
    ) -> Tuning:
        """Choose the vector's weight on four fifths of the questions, five times, and measure it on
        the others each time."""
        total = len(queries) * (len(_TRIED_WEIGHTS) + 1)

        def run(number: int, options: Mapping[str, object]) -> NDArray[np.float64]:
            found = memories.run(
                {**given, **options}, lambda done, _: progress(number * len(queries) + done, total)
            )
            return per_query(queries, found)[_TUNED_MEASURE]

        before = run(0, {})
        tried = np.array(
            [
                run(number, {"vector_weight": weight, "text_weight": round(1 - weight, 2)})
                for number, weight in enumerate(_TRIED_WEIGHTS, 1)
            ]
        )
        folds = np.random.default_rng(_SEED).permutation(len(queries)) % _FOLDS
        held_out = np.zeros(len(queries))
        for fold in range(_FOLDS):
            others = folds != fold
            # With fewer questions than folds there is nothing to choose by.
            chosen = _best(tried[:, others]) if others.any() else None
            held_out[~others] = (before if chosen is None else tried[chosen])[~others]
        low, high = bootstrap(held_out - before)
        return cls(
            vector_weight=_TRIED_WEIGHTS[_best(tried)],
            tried=dict(zip(_TRIED_WEIGHTS, tried.mean(axis=1).tolist(), strict=True)),
            before=float(before.mean()),
            gain=float((held_out - before).mean()),
            low=low,
            high=high,
            questions=len(queries),
        )

    @property
    def settings(self) -> dict[str, float]:
        return {"vector_weight": self.vector_weight, "text_weight": round(1 - self.vector_weight, 2)}

    def as_json(self) -> dict[str, Any]:
        return {"measure": _TUNED_MEASURE, "settings": self.settings, **vars(self)}

    def as_text(self) -> str:
        settings = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in self.settings.items())
        if self.questions < _FEW_QUESTIONS:
            verdict = "These are too few questions to tell anything by."
        elif self.low > 0:
            verdict = "The gain is beyond chance."
        elif self.high < 0:
            verdict = "They are worse than what there is."
        else:
            verdict = "The interval has 0 in it: these questions give no reason to change anything."
        return (
            f"{self.questions} questions, {_TUNED_MEASURE} {self.before:.3f} as given.\n"
            f"Best on all of them: {settings} ({self.tried[self.vector_weight]:.3f})\n"
            "Gain on questions that the weights were not chosen by, with five folds: "
            f"{_interval(self.gain, self.low, self.high)}\n{verdict}"
        )


def _best(tried: NDArray[np.float64]) -> int:
    """The row with the best mean; of equals, the middle one."""
    means = tried.mean(axis=1)
    equals = np.flatnonzero(means >= means.max() - 1e-12)
    return int(equals[len(equals) // 2])
