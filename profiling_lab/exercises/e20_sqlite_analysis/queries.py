# SPDX-License-Identifier: Apache-2.0
"""Run a learner's query against a recording: one SELECT, read-only, within a time limit."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

LIMIT_S = 20.0
MOST_ROWS = 100_000
_CHECK_EVERY = 10_000  # steps of SQLite's virtual machine between two looks at the clock
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

Rows = list[dict[str, object]]


class QueryError(Exception):
    """Why the query has no answer: one sentence for the learner."""


def rows_of(sql: str, recording: Path, limit_s: float = LIMIT_S) -> Rows:
    """The rows of the query, by column name. Raises QueryError."""
    deadline = time.monotonic() + limit_s
    file = sqlite3.connect(f"{recording.resolve().as_uri()}?mode=ro", uri=True)
    try:
        file.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
        )
        file.set_progress_handler(lambda: time.monotonic() >= deadline, _CHECK_EVERY)
        found = file.execute(sql)
        if found.description is None:
            raise QueryError("it has no SELECT")
        names = [column[0] for column in found.description]
        if len(set(names)) < len(names):
            raise QueryError("two columns have the same name")
        rows = found.fetchmany(MOST_ROWS + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        raise QueryError(_explained(error, limit_s)) from None
    finally:
        file.close()
    if len(rows) > MOST_ROWS:
        raise QueryError(f"it returns more than {MOST_ROWS:,} rows")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _explained(error: Exception, limit_s: float) -> str:
    text = str(error)
    if "interrupted" in text:
        return (
            f"it did not end within {limit_s:g} s: an index cannot be added, so avoid comparing all rows "
            "with all rows"
        )
    if "not authorized" in text or "prohibited" in text:
        return f"only SELECT is allowed, and the recording is read-only ({text})"
    if "one statement at a time" in text:
        return "the file must hold one statement"
    return f"SQLite says: {text}"
