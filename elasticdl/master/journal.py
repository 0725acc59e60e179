"""The journal: every event the job heard, in SQLite, and now and then the whole state, so that replay stays short."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from elasticdl.core import events
from elasticdl.core.job import Job, Terms
from elasticdl.errors import JobFailed

SNAPSHOT_EVENTS = 5000
_STATE: TypeAdapter[Job] = TypeAdapter(Job)
_TERMS: TypeAdapter[Terms] = TypeAdapter(Terms)


class Journal:
    """Owned by one master at a time: the file is locked while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # The lock must come before WAL: without shared memory it works on network file systems too.
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None)
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
        except sqlite3.Error as error:
            raise JobFailed(f"the journal {path} cannot be opened ({error}): is another master using it?") from error
        row = self._db.execute("SELECT max(seq) FROM (SELECT seq FROM events UNION SELECT seq FROM state)").fetchone()
        self._seq: int = row[0] or 0
        self._since_state = 0

    def close(self) -> None:
        self._db.close()

    # Facts about the job beside its events.

    def fact(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def remember(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    # Events.

    def append(self, entries: list[tuple[events.Event, float]]) -> None:
        """Write events in one transaction; when this returns they outlive the process."""
        rows = []
        for event, at in entries:
            self._seq += 1
            rows.append((self._seq, at, *events.encode(event)))
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")
        self._since_state += len(rows)

    def keep_state(self, job: Job, now: float, every: int = SNAPSHOT_EVENTS) -> None:
        """Replace the events by the state they led to, when there are many."""
        if self._since_state < every:
            return
        self._db.execute("BEGIN")
        self._db.execute("DELETE FROM state")
        self._db.execute("DELETE FROM events")
        self._db.execute("INSERT INTO state VALUES (?, ?, ?)", (self._seq, now, _STATE.dump_json(job)))
        self._db.execute("COMMIT")
        self._since_state = 0

    def recover(self, start: Job) -> tuple[Job, float]:
        """The job as the journal left it, and the time of its last event. Nothing is acted upon."""
        row = self._db.execute("SELECT at, body FROM state").fetchone()
        job, now = (start, 0.0) if row is None else (_STATE.validate_json(row[1]), float(row[0]))
        if job.terms != start.terms:
            raise JobFailed(f"the journal {self.path} belongs to another job: {_TERMS.dump_json(job.terms).decode()}")
        for at, name, body in self._db.execute("SELECT at, name, body FROM events ORDER BY seq"):
            job.handle(events.decode(name, body), at)
            now = max(now, at)
            self._since_state += 1
        return job, now
