"""The journal: all events of the job in SQLite, and now and then its whole state, so that replay stays short."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from elasticdl.core import events
from elasticdl.core.machine import Machine
from elasticdl.errors import JobFailed, VolumeAway

SNAPSHOT_EVENTS = 5000
AnyMachine = TypeVar("AnyMachine", bound=Machine)


class Journal:
    """Owned by one master at a time: the file is locked while it is open."""

    def __init__(self, path: Path, lock_seconds: float = 10.0) -> None:
        self.path = path
        try:
            # The lock before WAL: without shared memory, WAL works on network file systems too.
            self._db = sqlite3.connect(path, timeout=lock_seconds, isolation_level=None)
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("BEGIN IMMEDIATE")
            for table in (
                "meta (key TEXT PRIMARY KEY, value TEXT)",
                "events (seq INTEGER PRIMARY KEY, at REAL, name TEXT, body BLOB)",
                "state (seq INTEGER PRIMARY KEY, at REAL, body BLOB)",
            ):
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            self._db.execute("COMMIT")
            last = "SELECT max(seq) FROM (SELECT max(seq) AS seq FROM events UNION SELECT max(seq) FROM state)"
            self._seq: int = self._db.execute(last).fetchone()[0] or 0
        except sqlite3.Error as error:
            locked = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            why = "another master is using it" if locked else str(error)
            raise (VolumeAway if locked else JobFailed)(f"the journal {path} cannot be opened: {why}") from error
        self._since_state = 0

    def close(self) -> None:
        self._db.close()

    # Facts about the job beside its events.

    def fact(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def remember(self, key: str, value: Any) -> None:
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    # Events.

    def append(self, entries: list[tuple[events.Event, float]]) -> None:
        """Write events in one transaction; once this returns, they survive the process."""
        rows = []
        for event, at in entries:
            self._seq += 1
            rows.append((self._seq, at, *events.encode(event)))
        with self._transaction():
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        self._since_state += len(rows)

    @property
    def begun(self) -> bool:
        """Whether it has an event or a state."""
        return self._seq > 0 or self._db.execute("SELECT count(*) FROM state").fetchone()[0] > 0

    def keep_state(self, job: Machine, now: float, every: int = SNAPSHOT_EVENTS) -> None:
        """Replace the events by the state they led to, when there are many."""
        if self._since_state < every:
            return
        with self._transaction():
            self._db.execute("DELETE FROM state")
            self._db.execute("DELETE FROM events")
            self._db.execute(
                "INSERT INTO state VALUES (?, ?, ?)", (self._seq, now, TypeAdapter(type(job)).dump_json(job))
            )
        self._since_state = 0

    def recover(self, start: AnyMachine) -> tuple[AnyMachine, float]:
        """The machine after all events, and the time of the last one. No command is carried out."""
        self._check_terms(start.terms)
        try:
            row = self._db.execute("SELECT at, body FROM state").fetchone()
            job, now = (start, 0.0) if row is None else (TypeAdapter(type(start)).validate_json(row[1]), float(row[0]))
            for at, name, body in self._db.execute("SELECT at, name, body FROM events ORDER BY seq"):
                job.handle(events.decode(name, body), at)
                now = max(now, at)
                self._since_state += 1
        except (sqlite3.Error, ValidationError, KeyError) as error:
            raise JobFailed(f"the journal {self.path} cannot be read: {error}") from error
        return job, now

    def _check_terms(self, terms: Any) -> None:
        """Events mean something only to the job they belong to."""
        now, then = json.loads(TypeAdapter(type(terms)).dump_json(terms)), self.fact("terms")
        if then is None:
            self.remember("terms", now)
        elif then != now:
            changed = ", ".join(f"{k} was {then.get(k)} and is {now[k]}" for k in now if then.get(k) != now[k])
            raise JobFailed(f"the journal {self.path} belongs to another job: {changed}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise JobFailed(f"the journal {self.path} cannot be written: {error}") from error
