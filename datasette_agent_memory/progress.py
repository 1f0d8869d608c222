"""How a long command goes on, on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from .embeddings.base import Provider
from .embeddings.chain import PassedOver
from .report import Listener
from .terminal import echo


class ProgressBar:
    """A progress bar on a terminal, nothing elsewhere, that learns its length as it goes."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def at(self, done: int, total: int, item: str | None = None) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            self._bar = click.progressbar(
                length=total,
                label=self._label,
                file=sys.stderr,
                item_show_func=lambda item: item,
            )
            self._bar.__enter__()
        # A rebuild goes through the files twice.
        if done < self._bar.pos:
            self._bar.pos = 0
        self._bar.update(done - self._bar.pos, item)

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)


class Announcer(Listener):
    """Says what is sent elsewhere before it is, and why it takes long, on stderr."""

    def __init__(self) -> None:
        self._next_wait_told = 0.0

    def plan(self, provider: Provider, texts: int, tokens: int, cached: int) -> None:
        if not provider.in_process:
            self.say_plan(provider, texts, tokens, cached)

    def say_plan(self, provider: Provider, texts: int, tokens: int, cached: int) -> None:
        self.say(
            f"{provider}: {texts:,} text{'s' * (texts != 1)} to embed, about {tokens:,} tokens"
            + (f"; {cached:,} are cached" if cached else "")
        )

    def waits(self, reason: str, seconds: float) -> None:
        now = time.monotonic()
        # Of several calls that wait for the same, one is told.
        if now >= self._next_wait_told:
            self._next_wait_told = now + max(1.0, seconds)
            self.say(f"{reason}; trying again in {seconds:.0f} s")

    def say(self, line: str) -> None:
        echo(line, err=True)


class IndexProgress(Announcer):
    """What a run of the indexer does, on stderr."""

    def __init__(self, quiet: bool, dry_run: bool) -> None:
        super().__init__()
        self._quiet = quiet
        self._dry_run = dry_run
        self._bar = ProgressBar("Indexing")

    def __enter__(self) -> IndexProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__(*exception)

    def files(self, done: int, total: int) -> None:
        self._bar.at(done, total)

    def plan(self, provider: Provider, texts: int, tokens: int, cached: int) -> None:
        self._next_bar("Embedding")
        self._texts, self._tokens, self._started = texts, tokens, time.monotonic()
        self._done_texts = self._done_tokens = 0
        if self._dry_run or not provider.in_process:
            self.say_plan(provider, texts, tokens, cached)
        if not self._dry_run:
            self._bar.at(0, tokens)

    def embedded(self, texts: int, tokens: int) -> None:
        self._done_texts += texts
        self._done_tokens += tokens
        rate = self._done_tokens / max(0.001, time.monotonic() - self._started)
        item = (
            f"{self._done_texts:,} of {self._texts:,} texts, {self._done_tokens:,} of {self._tokens:,} "
            f"tokens, {rate:,.0f} tokens/s"
        )
        self._bar.at(self._done_tokens, self._tokens, item)

    def passages(self, done: int, total: int) -> None:
        if not done:
            self._next_bar("Passages")
        self._bar.at(done, total)

    def waits_for_writer(self) -> None:
        self.say("Another process is writing to this database; waiting for it")

    def left_to_another(self) -> None:
        self.say("Another run is embedding for this index, and will embed what is new as well")

    def handed_over(self, passed_over: PassedOver, following: Provider | None) -> None:
        self._next_bar("Indexing")
        self.say(f"{passed_over.reason}. The whole index is made with {following or 'keywords only'} instead")

    def _next_bar(self, label: str) -> None:
        self._bar.__exit__(None, None, None)
        self._bar = ProgressBar(label)

    def say(self, line: str) -> None:
        if not self._quiet:
            super().say(line)
