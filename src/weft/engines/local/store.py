"""What the engine remembers: an SQLite database in write-ahead mode, written before anything is done.

One writer, the engine. A change that must not be torn apart is one transaction, and is on the disk before the engine
acts on it. What is stored are the records of `cluster`, as plain values.
"""

import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.cluster.records.encoding import as_plain, from_plain
from weft.cluster.records.job import ENDED, Job, JobState
from weft.cluster.records.node import Node
from weft.core.errors import FailedError, UsageError
from weft.engines.local.launches import Launch

_VERSION = 1
_TABLES = {"jobs", "nodes", "facts", "events"}
_NUMBERS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO, sqlite3.SQLITE_CANTOPEN: errno.EIO,
            sqlite3.SQLITE_READONLY: errno.EROFS, sqlite3.SQLITE_BUSY: errno.EAGAIN}  # fmt: skip
"""SQLite's errors that are the disk's, as the operating system names them."""
_SCHEMA = """
create table jobs (
    number integer primary key autoincrement, id text not null unique, key text, array_id text not null,
    state text not null, job text not null, launch text not null, attempt integer not null, more text not null
);
create index jobs_by_state on jobs (state);
create index jobs_by_key on jobs (key);
create index jobs_by_array on jobs (array_id);
create table nodes (number integer primary key, node text not null);
create table facts (name text primary key, value text not null);
create table events (
    number integer primary key autoincrement, at_ms integer not null, job text not null, node integer,
    text text not null
);
create index events_by_job on events (job);
"""
_EVENTS_KEPT = 100_000


def is_about_the_disk(error: sqlite3.Error) -> bool:
    """Return whether it is the disk that failed, and not the database that is wrong."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _NUMBERS


def disk_error_number(error: sqlite3.Error) -> int:
    """Return the operating system's number of an error of the disk."""
    return _NUMBERS[error.sqlite_errorcode & 0xFF]


@dataclass
class StoredJob:
    """A job with what the engine knows of it."""

    number: int
    """Its place in the order of submission."""
    job: Job
    """What `plan` sees of it."""
    launch: Launch
    """How it is run."""
    attempt: int = 0
    """How often it was started."""
    key: str | None = None
    """The submission that it came with."""
    lost: int = 0
    """How often its runner has vanished."""
    noted: int = 0
    """Incidents of a training that are known."""
    moved: bool = False
    """Whether it is restarted on other nodes as soon as it has left the old ones."""
    status: int | None = None
    """The exit status of its last attempt."""
    text: str = ""
    """How it ended, in words."""
    ended_ms: int | None = None
    began_ms: int | None = None
    """When it was first started."""
    result: Mapping[str, Any] | None = None
    """What it has reported."""
    wait: Mapping[str, Any] = field(default_factory=dict)
    """Why it last had to wait, as the decision was written down."""

    def more(self) -> dict[str, Any]:
        """Return what has no column of its own."""
        names = ("lost", "noted", "moved", "status", "text", "ended_ms", "began_ms", "result", "wait")
        return {name: getattr(self, name) for name in names}


class JobStore:
    """The database."""

    def __init__(self, path: Path) -> None:
        """Open it, and make it where it does not exist."""
        # The HTTP server calls from the thread that runs the engine's loop; there is one at a time.
        self._path = path
        self._db = self._opened()

    def _opened(self) -> sqlite3.Connection:
        if os.path.lexists(self._path) and not self._path.is_file():
            raise UsageError(f"{self._path} is no file, but a cluster's state is one; move it away")
        found = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._check(found)
        except sqlite3.DatabaseError as error:
            found.close()
            if is_about_the_disk(error):
                raise OSError(disk_error_number(error), str(error)) from None
            raise UsageError(
                f"{self._path} is no state of a cluster ({error}); move it away, or name another --home"
            ) from None
        except BaseException:
            found.close()
            raise
        return found

    def _check(self, found: sqlite3.Connection) -> None:
        """Make the tables of a new database, or see that those of an old one are ours."""
        found.execute("pragma journal_mode = wal")
        # Every commit is on the disk before anybody hears of it.
        found.execute("pragma synchronous = full")
        version = found.execute("pragma user_version").fetchone()[0]
        tables = {name for (name,) in found.execute("select name from sqlite_master where type = 'table'")}
        if version == 0 and not tables:
            found.execute("begin immediate")
            for statement in _SCHEMA.strip().split(";\n"):
                found.execute(statement)
            found.execute(f"pragma user_version = {_VERSION}")
            found.execute("commit")
        elif not tables >= _TABLES:
            raise UsageError(f"{self._path} is another program's database; move it away, or name another --home")
        elif version != _VERSION:
            raise FailedError(f"{self._path} was written by another version of weft; finish its jobs with that one")

    def reopen(self) -> None:
        """Open the database anew: after an error of the disk nothing that is held in memory is believed."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._db = self._opened()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything inside happen, or nothing; nested ones are a part of the outermost."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("begin immediate")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            # SQLite may have given up the transaction by itself; one that stayed open would swallow all that follow.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("rollback")
            raise

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def next_number(self) -> int:
        """Return the number that the next job will have."""
        row = self._db.execute("select seq from sqlite_sequence where name = 'jobs'").fetchone()
        return 1 if row is None else row[0] + 1

    def add(self, entry: StoredJob) -> None:
        """Write down a new job."""
        self._db.execute(
            "insert into jobs (number, id, key, array_id, state, job, launch, attempt, more)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (entry.number, entry.job.id, entry.key, entry.job.array, *_columns(entry)),
        )

    def save(self, entry: StoredJob) -> None:
        """Write down what a job is now."""
        self._db.execute(
            "update jobs set state = ?, job = ?, launch = ?, attempt = ?, more = ? where number = ?",
            (*_columns(entry), entry.number),
        )

    def find(self, name: str) -> StoredJob | None:
        """Return the job called `name`."""
        return next(self._entries("where id = ?", (name,)), None)

    def with_key(self, key: str) -> list[StoredJob]:
        """Return the jobs that came with a submission."""
        return list(self._entries("where key = ? order by number", (key,)))

    def of_array(self, name: str) -> list[StoredJob]:
        """Return the jobs of an array."""
        return list(self._entries("where array_id = ? order by number", (name,)))

    def open(self) -> list[StoredJob]:
        """Return the jobs that have not ended."""
        ended = sorted(ENDED)
        marks = ", ".join("?" * len(ended))
        return list(self._entries(f"where state not in ({marks}) order by number", tuple(map(str, ended))))

    def newest(self, count: int) -> list[StoredJob]:
        """Return the newest jobs, newest first."""
        return list(self._entries("order by number desc limit ?", (count,)))

    def endings(self, names: tuple[str, ...]) -> dict[str, JobState]:
        """Return how those of the named jobs ended that have."""
        found: dict[str, JobState] = {}
        for name in names:
            row = self._db.execute("select state from jobs where id = ?", (name,)).fetchone()
            if row is not None and JobState(row[0]) in ENDED:
                found[name] = JobState(row[0])
        return found

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        return dict(self._db.execute("select state, count(*) from jobs group by state").fetchall())

    def nodes(self) -> list[Node]:
        """Return every node, in order."""
        rows = self._db.execute("select node from nodes order by number").fetchall()
        return [from_plain(Node, json.loads(row[0])) for row in rows]

    def save_node(self, node: Node) -> None:
        """Write down what a node is now."""
        self._db.execute("insert or replace into nodes values (?, ?)", (node.number, json.dumps(as_plain(node))))

    def forget_nodes(self) -> None:
        """Forget every node."""
        self._db.execute("delete from nodes")

    def fact(self, name: str) -> Any:
        """Return something else that was written down, or none."""
        row = self._db.execute("select value from facts where name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def save_fact(self, name: str, value: Any) -> None:
        """Write something else down."""
        self._db.execute("insert or replace into facts values (?, ?)", (name, json.dumps(value)))

    def note(self, at_ms: int, text: str, *, job: str = "", node: int | None = None) -> None:
        """Write down that something happened; the oldest notes go when there are too many."""
        made = self._db.execute(
            "insert into events (at_ms, job, node, text) values (?, ?, ?, ?)", (at_ms, job, node, text)
        )
        if made.lastrowid is not None and made.lastrowid % 1000 == 0:
            self._db.execute("delete from events where number <= ?", (made.lastrowid - _EVENTS_KEPT,))

    def history(self, job: str) -> list[dict[str, Any]]:
        """Return what happened to a job, oldest first."""
        rows = self._db.execute("select at_ms, text from events where job = ? order by number", (job,)).fetchall()
        return [{"at_ms": at_ms, "text": text} for at_ms, text in rows]

    def happenings(self, count: int) -> list[dict[str, Any]]:
        """Return what happened last, newest first."""
        rows = self._db.execute(
            "select at_ms, job, node, text from events order by number desc limit ?", (count,)
        ).fetchall()
        return [{"at_ms": at_ms, "job": job, "node": node, "text": text} for at_ms, job, node, text in rows]

    def _entries(self, where: str, values: tuple[Any, ...]) -> Iterator[StoredJob]:
        # The clause is one of this class's own texts; values are bound.
        rows = self._db.execute(f"select number, key, job, launch, attempt, more from jobs {where}", values).fetchall()  # noqa: S608
        for number, key, job, launch, attempt, more in rows:
            yield StoredJob(
                number, from_plain(Job, json.loads(job)), Launch.from_plain(json.loads(launch)), attempt, key,
                **json.loads(more),
            )  # fmt: skip


def _columns(entry: StoredJob) -> tuple[Any, ...]:
    return (
        str(entry.job.state), json.dumps(as_plain(entry.job)), json.dumps(entry.launch.as_plain()), entry.attempt,
        json.dumps(entry.more()),
    )  # fmt: skip
