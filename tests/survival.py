"""Killing real processes at random moments, and looking at what they leave.

test_survival.py does so a few times, benchmarks/reliability.py many times.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from datasette_agent_memory.connections import open_readonly, open_writable
from datasette_agent_memory.doctor import diagnose
from datasette_agent_memory.files import read_file
from datasette_agent_memory.search import search

WORDS = "heron kettle canal harbour ledger tea signal orbit moss lantern 会议 港口 déjà".split()  # noqa: SIM905

#: What a run that was cut short may leave to do, none of which is damage.
UNFINISHED = {
    "vectors_pending",
    "passages_missing",
    "passages_of_no_chunk",
    "files_changed",
    "files_missing",
    "files_not_indexed",
}

# Forks a process for each run, so that what is killed is the work and not Python starting.
_WORKER = """
import json, os, sys
import numpy
from datasette.cli import cli
import datasette_agent_memory.cli, datasette_agent_memory.ingest, datasette_agent_memory.doctor
import datasette_agent_memory.embeddings.chain, datasette_agent_memory.embeddings.embedded
for line in sys.stdin:
    child = os.fork()
    if not child:
        devnull = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(devnull, descriptor)
        code = 1
        try:
            cli.main(["agent-memory", *json.loads(line)], standalone_mode=False)
            code = 0
        except BaseException as error:
            code = getattr(error, "exit_code", 1)
        os._exit(code)
    print(child, flush=True)
    status = os.waitpid(child, 0)[1]
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Worker:
    """A process that runs commands of `datasette agent-memory`, each in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, *arguments: str, kill_after_s: float | None = None) -> int:
        """The exit code of a command, -9 where it was killed."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return int(self._process.stdout.readline())


class Memory:
    """A folder of notes that changes at random, and what each of its files has said."""

    def __init__(self, root: Path, chance: random.Random, files: int) -> None:
        self.root = root
        self._chance = chance
        #: Every text that a file has had since the index was last known to be complete.
        self.versions: dict[str, set[str]] = {}
        (root / "memory").mkdir(parents=True)
        for number in range(files):
            self._write(f"memory/note-{number}.md", self._text())

    def paths(self) -> list[str]:
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*.md"))

    def settle(self) -> None:
        """Forget all but what the files say now."""
        self.versions = {path: {(self.root / path).read_text("utf-8")} for path in self.paths()}

    def change(self) -> None:
        """Edit, extend, shorten, remove, rename and add some files."""
        for path in self._chance.sample(self.paths(), k=min(4, len(self.paths()))):
            file = self.root / path
            text = file.read_text("utf-8")
            match self._chance.randrange(6):
                case 0:
                    self._write(path, self._text())
                case 1:
                    self._write(path, text + self._text())
                case 2:
                    self._write(path, text[: len(text) // 2])
                case 3:
                    file.unlink()
                case 4:
                    renamed = f"memory/renamed-{self._chance.randrange(1000)}.md"
                    self.versions.setdefault(renamed, set()).add(text)
                    file.rename(self.root / renamed)
                case 5:
                    self._write(path, f"---\ntitle: {self._words(3)}\n---\n{text}")
        self._write(f"memory/new-{self._chance.randrange(1000)}.md", self._text())

    def _write(self, path: str, text: str) -> None:
        # Before anybody can read it.
        self.versions.setdefault(path, set()).add(text)
        (self.root / path).write_text(text, "utf-8")

    def _text(self) -> str:
        lines = [self._words(self._chance.randrange(1, 30)) for _ in range(self._chance.randrange(1, 120))]
        return f"# {self._words(2)}\n\n" + "\n".join(lines) + self._chance.choice(["", "\n", "\n\n"])

    def _words(self, count: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=count))


def check(database: Path, versions: dict[str, set[str]], allowed: Sequence[str] | set[str] = ()) -> None:
    """Assert the invariants of an index.

    Chunks, full-text rows, vectors and files agree one to one, and SQLite and FTS5 find nothing
    (which is what the doctor looks for); the text of each file is, to the letter, one that it
    has had; and the index answers.
    """
    problems = [problem for problem in diagnose(database).problems if problem.code not in allowed]
    assert not problems, problems
    with open_readonly(database) as conn:
        for (path,) in conn.execute("select path from files").fetchall():
            file = read_file(conn, path)
            if "incomplete_files" in allowed and not file.is_exact:
                continue
            assert file.is_exact, path
            # As it was read: not from disk.
            assert file.content in versions.get(path, set()), path
        search(conn, "heron 会议", {})


def rows(database: Path) -> dict[str, list[Any]]:
    """All that an index holds."""
    tables = ("meta", "files", "chunks", "embedding_cache", "file_details", "chunks_fts", "chunks_vec")
    with open_readonly(database) as conn:
        there = {row[0] for row in conn.execute("select name from sqlite_master")}
        return {
            table: sorted(repr(tuple(row)) for row in conn.execute(f"select * from {table}"))
            for table in tables
            if table in there
        }


def beside(database: Path) -> set[str]:
    """What lies beside a database that is its own, by what follows its name."""
    return {path.name.removeprefix(database.name) for path in database.parent.glob(f"{database.name}*")} - {
        ""
    }


#: What is done to an index for the doctor, and what it is then found to have.
DAMAGE = {
    "delete from chunks_fts where rowid % 3 = 0": {"chunks_without_fts"},
    "delete from chunks where rowid % 4 = 0": {
        "fts_of_no_chunk",
        "vec_of_no_chunk",
        "incomplete_files",
    },
    "update chunks set embedding = '[1, 2]' where rowid % 2 = 0": {"embeddings_damaged"},
    # In between, the wrong chunks are gone and their files not yet read again.
    "update chunks set hash = 'x' where rowid % 5 = 0": {"wrong_hashes", "wrong_ids", "incomplete_files"},
    "insert into chunks_fts (rowid, text, id) values (1000000, 'heron', 'no chunk')": {"fts_of_no_chunk"},
    "delete from files where rowid % 3 = 0": {"chunks_of_no_file"},
}


class Readers:
    """Threads that read files of an index by the API of a serving Datasette, and search it."""

    def __init__(self, url: str, memory: Memory, threads: int = 2) -> None:
        self._url = url
        self._memory = memory
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(seed,)) for seed in range(threads)]
        self.answers = 0
        self.failures: list[str] = []

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _read(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            path = chance.choice(sorted(self._memory.versions))
            for query in ("/file.json?" + urlencode({"path": path}), ".json?q=heron", "/status.json"):
                try:
                    with urlopen(self._url + query, timeout=60) as response:
                        answer = json.load(response)
                except HTTPError as error:
                    # A file that is not there, or not any more.
                    if error.code != 404 or not query.startswith("/file"):
                        self.failures.append(f"{query}: {error.code} {error.read()[:300]!r}")
                except OSError as error:
                    self.failures.append(f"{query}: {error}")
                else:
                    if query.startswith("/file") and answer["text"] not in self._memory.versions[path]:
                        self.failures.append(f"{path}: a text that it never had")
                self.answers += 1


class Survival:
    """Runs of the indexer that are killed, on one database."""

    def __init__(self, folder: Path, seed: int, files: int = 12) -> None:
        self.chance = random.Random(seed)
        self.memory = Memory(folder / "workspace", self.chance, files)
        self.database = folder / "index" / "memory.db"
        self.database.parent.mkdir()
        self.kills = 0
        self.seconds: dict[tuple[str, ...], float] = {}

    def kill(
        self, worker: Worker, *options: str, command: str = "index", damage: Sequence[str] | set[str] = ()
    ) -> None:
        """Kill one run at a random moment, look at what is left, and let the next run complete.

        `damage` are the codes of what is wrong already.
        """
        arguments = self.arguments(command, options)
        was_there = self.database.exists()
        longest = self.seconds.setdefault((command, *options), 0.5)
        code = worker.run(*arguments, kill_after_s=self.chance.uniform(0, longest))
        if code == -signal.SIGKILL:
            self.kills += 1
        assert code in (0, -signal.SIGKILL), code
        assert beside(self.database) <= {"-wal", "-shm", "-journal", "-embedding"}
        if was_there or self._has_index():
            check(self.database, self.memory.versions, UNFINISHED | set(damage))
        started = time.perf_counter()
        assert worker.run(*arguments) == 0
        self.seconds[(command, *options)] = 0.7 * longest + 0.4 * (time.perf_counter() - started)
        self.complete(worker)

    def damage(self) -> set[str]:
        """Change the database as nobody should; the codes of what is wrong with it then."""
        statement, codes = self.chance.choice(list(DAMAGE.items()))
        with open_writable(self.database) as conn:
            conn.execute(statement)
        return codes

    def complete(self, worker: Worker) -> None:
        """The index is whole and up to date, and a further run changes nothing."""
        assert worker.run(*self.arguments("index", ())) == 0
        self.memory.settle()
        check(self.database, self.memory.versions)
        before = rows(self.database)
        assert worker.run(*self.arguments("index", ())) == 0
        assert rows(self.database) == before
        assert beside(self.database) == set()

    def run_both(self, workers: tuple[Worker, Worker], options: Sequence[str]) -> list[int]:
        """The exit codes of two runs at once, the first with options. One may be told that the other
        is at work."""
        arguments = self.arguments("index", ())
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(workers[0].run, *arguments, *options)
            second = pool.submit(workers[1].run, *arguments)
            codes = [first.result(), second.result()]
        assert set(codes) <= {0, 1}, codes
        return codes

    def arguments(self, command: str, options: Sequence[str]) -> list[str]:
        if command == "index" and not self.database.exists():
            return ["index", str(self.memory.root), "-d", str(self.database), *options]
        return [command, "-d", str(self.database), *options]

    def _has_index(self) -> bool:
        if not self.database.exists() or not self.database.stat().st_size:
            return False
        with open_readonly(self.database) as conn:
            return conn.execute("select 1 from sqlite_master where name = 'chunks'").fetchone() is not None
