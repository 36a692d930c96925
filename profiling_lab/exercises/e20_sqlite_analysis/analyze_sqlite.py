# SPDX-License-Identifier: Apache-2.0
"""Run a query against a recording and print its rows.

python analyze_sqlite.py kernels.sql recorded/starter_h200.sqlite
python analyze_sqlite.py --tables recorded/starter_h200.sqlite     # tables, columns, numbers of rows
"""

import argparse
import pathlib
import sqlite3
import sys


def tables(file: sqlite3.Connection) -> None:
    names = [
        name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    ]
    for name in names:
        rows = file.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
        columns = [row[1] for row in file.execute(f'PRAGMA table_info("{name}")')]
        print(f"{name}: {rows} rows: {', '.join(columns)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a query against a recording and print its rows.")
    parser.add_argument("query", nargs="?", help="a file with one SELECT")
    parser.add_argument("recording")
    parser.add_argument("--tables", action="store_true", help="list the tables and columns instead")
    parser.add_argument("--limit", type=int, default=20, help="the most rows to print (default: 20)")
    args = parser.parse_args()
    if not pathlib.Path(args.recording).is_file():
        sys.exit(f"there is no file {args.recording}")
    file = sqlite3.connect(f"{pathlib.Path(args.recording).resolve().as_uri()}?mode=ro", uri=True)
    if args.tables or args.query is None:
        return tables(file)
    try:
        found = file.execute(pathlib.Path(args.query).read_text())
    except sqlite3.Error as error:
        sys.exit(f"{args.query}: {error}")
    print(*(column[0] for column in found.description or ()), sep="\t")
    for row in found.fetchmany(args.limit):
        print(*row, sep="\t")
    left = len(found.fetchall())
    if left:
        print(f"and {left} more rows (--limit)")


if __name__ == "__main__":
    main()
