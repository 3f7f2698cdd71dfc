"""Notes of a walk in a file on disk, so that memory does not grow with the bucket."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Self

from cli.fsck.finding import Finding, Problem, Subject
from shared.storage import Listed

_PAGE = 200
_TABLES = """
CREATE TABLE listed (key TEXT PRIMARY KEY, etag TEXT, size INTEGER, modified_at REAL) WITHOUT ROWID;
CREATE TABLE suspected (key TEXT, problem TEXT, finding TEXT, PRIMARY KEY (key, problem));
CREATE TABLE found (key TEXT, problem TEXT, finding TEXT, repair TEXT, PRIMARY KEY (key, problem));
"""


class Notebook:
    """The objects that were listed, what seemed wrong, and what was still wrong afterwards."""

    def __init__(self) -> None:
        # An empty name is a file that SQLite removes when it is closed.
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("PRAGMA cache_size=-8000")
        self._db.executescript(_TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def note(self, page: Iterable[Listed]) -> None:
        """Note objects of the bucket."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO listed VALUES (?, ?, ?, ?)", page)
        self._db.execute("COMMIT")

    def listed(self, key: str) -> Listed | None:
        """The object, if it was in the bucket."""
        row = self._db.execute("SELECT * FROM listed WHERE key = ?", (key,)).fetchone()
        return None if row is None else Listed(*row)

    def suspect(self, findings: Iterable[Finding]) -> None:
        """Note what is to be looked at once more."""
        rows = [(one.key, one.problem, json.dumps(one)) for one in findings]
        self._db.executemany("INSERT OR REPLACE INTO suspected VALUES (?, ?, ?)", rows)

    def suspected(self) -> Iterator[list[Finding]]:
        """What is to be looked at once more, some at a time."""
        return self._pages("suspected")

    def find(self, finding: Finding) -> None:
        """Note what is still wrong."""
        row = (finding.key, finding.problem, json.dumps(finding), "")
        self._db.execute("INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?)", row)

    def note_repair(self, finding: Finding, repair: str) -> None:
        """Note what was done about it."""
        place = (repair, finding.key, finding.problem)
        self._db.execute("UPDATE found SET repair = ? WHERE key = ? AND problem = ?", place)

    def found(self) -> Iterator[list[Finding]]:
        """Everything that is still wrong, some at a time."""
        return self._pages("found")

    def repair_of(self, finding: Finding) -> str:
        """What was done about it; empty for nothing."""
        place = (finding.key, finding.problem)
        sql = "SELECT repair FROM found WHERE key = ? AND problem = ?"
        return str(self._db.execute(sql, place).fetchone()[0])

    def _pages(self, table: str) -> Iterator[list[Finding]]:
        last = ("", "")
        # The name is one of two of ours.
        sql = (
            f"SELECT finding FROM {table} WHERE (key, problem) > (?, ?) "  # noqa: S608
            "ORDER BY key, problem LIMIT ?"
        )
        while rows := self._db.execute(sql, (*last, _PAGE)).fetchall():
            page = [_finding(text) for (text,) in rows]
            yield page
            last = (page[-1].key, page[-1].problem)


def _finding(text: str) -> Finding:
    key, kind, problem, says, subject, about = json.loads(text)
    return Finding(key, kind, Problem(problem), says, Subject(subject), about)
