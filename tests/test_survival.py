"""Kill -9 at any moment leaves an index that answers, and the next run completes it."""

import random

import pytest
from survival import Survival, Worker


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


KINDS = {
    "keywords": ("--provider", "none"),
    "vectors": ("--provider", "embedded"),
    "rebuild": ("--provider", "none", "--force"),
    "other chunks": ("--provider", "embedded", "--chunk-tokens", "100", "--chunk-overlap", "10"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_killed_runs_leave_an_index_whole(tmp_path, worker, kind):
    survival = Survival(tmp_path, seed=random.Random(kind).randrange(1000))
    for _ in range(4):
        survival.memory.change()
        survival.kill(worker, *KINDS[kind])
    assert survival.database.exists()


def test_killed_doctors_and_compactions_lose_nothing(tmp_path, worker):
    survival = Survival(tmp_path, seed=5)
    assert worker.run(*survival.arguments("index", KINDS["vectors"])) == 0
    for _ in range(3):
        survival.memory.settle()
        survival.kill(worker, "--fix", command="doctor", damage=survival.damage())
        survival.kill(worker, command="compact")
