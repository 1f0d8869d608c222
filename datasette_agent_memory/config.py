"""Search parameters: their defaults, their bounds, and where a value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import AgentMemoryError
from .sql_functions import (
    DEFAULT_HALF_LIFE_DAYS,
    DEFAULT_TEXT_WEIGHT,
    DEFAULT_VECTOR_WEIGHT,
    parse_moment,
)

PLUGIN_NAME = "datasette-agent-memory"

#: Seconds that a query waits for its vector, unless the configuration says otherwise.
DEFAULT_EMBEDDING_TIMEOUT_S = 8.0

#: How deep the deepest measure of `evaluate` looks.
DEPTH = 10

#: sqlite-vec has no wider vectors.
MAX_DIMENSIONS = 8192
#: In more chunks than these the nearest take long to find, and fewer are looked into.
MANY_CHUNKS = 20_000
#: sqlite-vec refuses a KNN query for more.
MAX_CANDIDATES = 4096

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off"}


class ParameterError(AgentMemoryError):
    """A search parameter has a bad value."""


@dataclass(frozen=True)
class Parameter:
    """One search parameter, as it is on the page, in the JSON API and at the command line."""

    name: str
    type: type
    default: Any
    help: str
    group: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    is_date: bool = False

    @property
    def field(self) -> str:
        """Its attribute in SearchOptions, where Python's own words are not to be had."""
        return "lambda_" if self.name == "lambda" else self.name

    def parse(self, value: object) -> Any:
        """The value in the parameter's type; raises ParameterError."""
        text = str(value).strip()
        if self.choices:
            if text not in self.choices:
                raise self._error("one of " + ", ".join(self.choices), text)
            return text
        if self.type is bool:
            if text.lower() not in TRUE | FALSE:
                raise self._error("0 or 1", text)
            return text.lower() in TRUE
        if self.type in (int, float):
            try:
                # Python reads 1_0 and ٣ as numbers as well.
                number = self.type(text if text.isascii() and "_" not in text else "")
            except ValueError:
                raise self._error(self._range(), text) from None
            if not self._in_range(number):
                raise self._error(self._range(), text)
            return number
        if self.is_date and parse_moment(text) is None:
            raise self._error("a date like 2026-01-31", text)
        return text.encode("utf-8", "replace").decode()

    def _in_range(self, number: float) -> bool:
        # Comparisons with NaN are false, which refuses it.
        above = self.minimum is None or number >= self.minimum
        return above and (self.maximum is None or number <= self.maximum) and number == number

    def _range(self) -> str:
        kind = "a whole number" if self.type is int else "a number"
        return f"{kind} from {self.minimum:g} to {self.maximum:.10g}"

    def _error(self, expected: str, text: str) -> ParameterError:
        shown = text if len(text) <= 40 else text[:40] + "…"
        return ParameterError(f"{self.name} must be {expected}, not {shown!r}")


@dataclass(frozen=True)
class SearchOptions:
    """Every effective value of one search."""

    k: int
    mode: str
    min_score: float
    vector_weight: float
    text_weight: float
    candidate_multiplier: int
    text_norm: str
    fusion: str
    rescore: bool
    match: str
    decay: bool
    half_life: float
    mmr: bool
    lambda_: float
    session_share: float
    source: str | None
    path: str | None
    since: str | None
    until: str | None
    now: str | None
    preset: str | None

    @property
    def candidates(self) -> int:
        """How many rows each side may put forward."""
        return min(MAX_CANDIDATES, self.k * self.candidate_multiplier)

    @property
    def most_sessions(self) -> int:
        """How many of the results may be sessions while there are notes to show."""
        # What is a hair below a whole number, as 0.29 * 100, is one.
        return max(1, int(self.k * self.session_share + 1e-9))

    @property
    def is_filtered(self) -> bool:
        return any((self.source, self.path, self.since, self.until))

    @property
    def is_replay(self) -> bool:
        """Whether the search goes by OpenClaw's own rules: not where one of them is overridden."""
        rules = ("match", "text_norm", "fusion", "rescore", "session_share")
        return self.preset == "openclaw" and all(
            getattr(self, name) == PRESETS["openclaw"][name] for name in rules
        )

    def as_parameters(self) -> dict[str, Any]:
        """The values by the names of the parameters."""
        return {parameter.name: getattr(self, parameter.field) for parameter in PARAMETERS.values()}


#: Named sets of values: what a parameter is when the search says no other.
PRESETS: dict[str, dict[str, Any]] = {
    # OpenClaw 2026.3.31 by its defaults: every word must be in the chunk.
    "openclaw": {
        "match": "all",
        "text_norm": "relevance",
        "fusion": "weighted",
        "rescore": False,
        "vector_weight": 0.7,
        "text_weight": 0.3,
        "min_score": 0.35,
        "candidate_multiplier": 4,
        "decay": False,
        "mmr": False,
        "session_share": 1.0,
    },
    # A keyword hit scores by its position alone: 1 / (1 + position).
    "rank": {"text_norm": "rank"},
}

PARAMETERS: dict[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        Parameter("k", int, 6, "How many results.", "Results", minimum=1, maximum=MAX_CANDIDATES),
        Parameter(
            "mode",
            str,
            "hybrid",
            "Which sides to search.",
            "Results",
            choices=("hybrid", "vector", "keyword"),
        ),
        Parameter(
            "match",
            str,
            "auto",
            "Chunks with any of the words, or with all; auto is those with all first, then those with any, "
            "without stop words.",
            "Results",
            choices=("auto", "any", "all"),
        ),
        Parameter(
            "min_score",
            float,
            0.35,
            "Leave out results below this score; a keyword hit below it fills a free place. "
            "The embedded model has 0.05.",
            "Results",
            minimum=0,
            maximum=1,
        ),
        Parameter(
            "preset",
            str,
            None,
            "A named set of values for the other parameters, unless they are given.",
            "Results",
            choices=tuple(PRESETS),
        ),
        Parameter(
            "vector_weight",
            float,
            DEFAULT_VECTOR_WEIGHT,
            "Weight of the vector score. The embedded model has 0.3.",
            "Scores",
            minimum=0,
            maximum=1,
        ),
        Parameter(
            "text_weight",
            float,
            DEFAULT_TEXT_WEIGHT,
            "Weight of the text score. The embedded model has 0.7.",
            "Scores",
            minimum=0,
            maximum=1,
        ),
        Parameter(
            "text_norm",
            str,
            "relevance",
            "How bm25 (r) becomes a text score: r/(1+r), 1/(1+position), r/(best r), or, as coverage, "
            "r/(the most that the question's words can give). The embedded model has coverage.",
            "Scores",
            choices=("relevance", "rank", "max", "coverage"),
        ),
        Parameter(
            "fusion",
            str,
            "weighted",
            "How the sides are joined: weighted scores, or weighted reciprocal ranks.",
            "Scores",
            choices=("weighted", "rrf"),
        ),
        Parameter(
            "rescore",
            bool,
            True,
            "Give what one side alone puts forward the score that it has on the other, instead of none.",
            "Scores",
        ),
        Parameter(
            "candidate_multiplier",
            int,
            4,
            "Each side puts forward k times this many candidates.",
            "Scores",
            minimum=1,
            maximum=100,
        ),
        Parameter("decay", bool, False, "Lower the score of dated memories by their age.", "Time"),
        Parameter(
            "half_life",
            float,
            DEFAULT_HALF_LIFE_DAYS,
            "Days in which a dated memory's score halves.",
            "Time",
            minimum=0.01,
            maximum=1_000_000,
        ),
        Parameter(
            "now", str, None, "The date that ages are counted to, by default today.", "Time", is_date=True
        ),
        Parameter(
            "mmr",
            bool,
            False,
            "Put results unlike those above them forward (maximal marginal relevance).",
            "Variety",
        ),
        Parameter(
            "lambda",
            float,
            0.7,
            "Of mmr: 1 for relevance alone, 0 for variety alone.",
            "Variety",
            minimum=0,
            maximum=1,
        ),
        Parameter(
            "session_share",
            float,
            0.5,
            "At most this share of the results are sessions, while notes have others to show; 1 is no limit.",
            "Variety",
            minimum=0,
            maximum=1,
        ),
        Parameter("source", str, None, "Only this source, such as memory.", "Filters"),
        Parameter("path", str, None, "Only paths that match this glob, such as memory/2026-*.", "Filters"),
        Parameter(
            "since",
            str,
            None,
            "Only memories of this date or later; those without a date are left out.",
            "Filters",
            is_date=True,
        ),
        Parameter(
            "until",
            str,
            None,
            "Only memories of this date or earlier; those without a date are left out.",
            "Filters",
            is_date=True,
        ),
    )
}


def resolve_options(
    given: Mapping[str, object],
    configured: Mapping[str, object] | None = None,
    provider_defaults: Mapping[str, object] | None = None,
) -> SearchOptions:
    """The effective options: given, then of the preset, configured, the provider's, the usual.

    A value that is None or blank counts as not given, and names that are no parameter's
    are passed over. Raises ParameterError.
    """
    layers = [_parsed(given), {}, _parsed(configured or {}), dict(provider_defaults or {})]
    preset = next((layer["preset"] for layer in layers if layer.get("preset")), None)
    layers[1] = PRESETS.get(preset, {}) if preset else {}
    values = {}
    for parameter in PARAMETERS.values():
        values[parameter.field] = next(
            (layer[parameter.name] for layer in layers if parameter.name in layer), parameter.default
        )
    options = SearchOptions(**values)
    if options.vector_weight == options.text_weight == 0:
        raise ParameterError("vector_weight and text_weight must not both be 0")
    return options


def _parsed(values: Mapping[str, object]) -> dict[str, Any]:
    return {
        name: PARAMETERS[name].parse(value)
        for name, value in values.items()
        if name in PARAMETERS and value is not None and str(value).strip() != ""
    }


@dataclass(frozen=True)
class EmbeddingSettings:
    """What the plugin's configuration says of embedding, beside the search parameters."""

    #: By a provider's name, any of api_key, base_url and path.
    providers: Mapping[str, Mapping[str, Any]]
    #: Seconds that a query waits for its vector.
    timeout_s: float
    #: How many queries a minute, of all visitors who are not logged in, may be embedded elsewhere
    #: than in this process; None for any number.
    anonymous_per_minute: int | None


#: What each provider may be told.
PROVIDER_SETTINGS = {
    "local": ("path",),
    **dict.fromkeys(("openai", "gemini", "voyage", "mistral"), ("api_key", "base_url")),
}
_EMBEDDING_SETTINGS = ("providers", "embedding_timeout", "anonymous_embeddings_per_minute")
_WATCH = Parameter("watch", bool, False, "", "")


def configured_options(datasette: Any, database: str) -> dict[str, Any]:
    """The search parameters configured for a database, laid over those for all; raises ParameterError."""
    everywhere, here = _blocks(datasette, database)
    for name in here:
        if name in _EMBEDDING_SETTINGS:
            raise ParameterError(f"{name} is for all databases, not for one")
    configured = {name: value for name, value in everywhere.items() if name not in _EMBEDDING_SETTINGS} | here
    configured.pop(_WATCH.name, None)
    for name in configured:
        if name not in PARAMETERS:
            known = ", ".join([*PARAMETERS, *_EMBEDDING_SETTINGS, _WATCH.name])
            raise ParameterError(f"there is no setting {name!r}; those there are: {known}")
    return configured


def is_to_be_watched(datasette: Any, database: str) -> bool:
    """Whether the server is to keep a database's index fresh; raises ParameterError."""
    everywhere, here = _blocks(datasette, database)
    watch = here.get(_WATCH.name, everywhere.get(_WATCH.name))
    return False if watch is None else bool(_WATCH.parse(watch))


def _blocks(datasette: Any, database: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is configured for all databases, and for this one."""
    everywhere = datasette.plugin_config(PLUGIN_NAME) or {}
    # Without `fallback`, 1.0a's answer for a database is its own block alone, as 0.65's is.
    return everywhere, datasette.plugin_config(PLUGIN_NAME, database=database, fallback=False) or {}


def embedding_settings(datasette: Any) -> EmbeddingSettings:
    """What is configured of embedding; raises ParameterError."""
    configured = datasette.plugin_config(PLUGIN_NAME) or {}
    providers = configured.get("providers") or {}
    # As it stands in the file, where a secret is {"$env": "NAME"}.
    raw = _raw_plugin_config(datasette).get("providers") or {}
    if not isinstance(providers, dict) or not all(isinstance(value, dict) for value in providers.values()):
        raise ParameterError("providers must have a block for each provider")
    for name, settings in providers.items():
        if name not in PROVIDER_SETTINGS:
            raise ParameterError(f"providers must be of {', '.join(PROVIDER_SETTINGS)}, not {name!r}")
        for setting, value in settings.items():
            if setting not in PROVIDER_SETTINGS[name]:
                known = ", ".join(PROVIDER_SETTINGS[name])
                raise ParameterError(f"providers.{name} has {known}, and no {setting!r}")
            if setting == "api_key" and not isinstance(raw[name][setting], dict):
                # Datasette shows its configuration to visitors.
                raise ParameterError(
                    f'providers.{name}.api_key must be {{"$env": "NAME"}} or {{"$file": "PATH"}}, '
                    "so that the key itself is nowhere shown"
                )
            if value is not None and not isinstance(value, str):
                raise ParameterError(f"providers.{name}.{setting} must be a text")
            if setting == "base_url" and value:
                _check_base_url(value, f"providers.{name}.base_url")
    timeout = _TIMEOUT.parse(configured.get(_TIMEOUT.name, _TIMEOUT.default))
    anonymous = configured.get(_ANONYMOUS.name)
    return EmbeddingSettings(providers, timeout, None if anonymous is None else _ANONYMOUS.parse(anonymous))


_TIMEOUT = Parameter(
    "embedding_timeout", float, DEFAULT_EMBEDDING_TIMEOUT_S, "", "", minimum=0.01, maximum=600
)
_ANONYMOUS = Parameter("anonymous_embeddings_per_minute", int, None, "", "", minimum=0, maximum=1_000_000)


def _check_base_url(url: str, source: str) -> None:
    from .embeddings.base import EmbeddingError
    from .embeddings.remote import checked_base_url

    try:
        checked_base_url(url, source)
    except EmbeddingError as error:
        raise ParameterError(str(error)) from error


def _raw_plugin_config(datasette: Any) -> dict[str, Any]:
    """The plugin's configuration before Datasette puts secrets into it."""
    # 1.0a has a dictionary `config`; 0.65 has the plugins in its metadata.
    config = getattr(datasette, "config", None)
    plugins = config.get("plugins") if isinstance(config, dict) else datasette.metadata("plugins")
    return (plugins or {}).get(PLUGIN_NAME) or {}
