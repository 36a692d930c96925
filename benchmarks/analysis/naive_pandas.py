# SPDX-License-Identifier: Apache-2.0
"""The questions of analysis_throughput.py, as a user would write them in pandas.

python benchmarks/analysis/naive_pandas.py QUESTION FILE      QUESTION is kernels, gaps, or lines
"""

import json
import re
import sqlite3
import sys

import pandas as pd

OWN = ("/app/model.py", "/app/train.py")


def table(file: sqlite3.Connection, query: str) -> pd.DataFrame:
    return pd.read_sql_query(query, file)


def kernels(file: sqlite3.Connection) -> dict[str, list[int]]:
    rows = table(file, "SELECT start, end, demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL")
    names = table(file, "SELECT id, value FROM StringIds").set_index("id")["value"]
    rows["ns"] = rows["end"] - rows["start"]
    found = rows.groupby("demangledName")["ns"].agg(["sum", "count"])
    return {names[i]: [int(row["sum"]), int(row["count"])] for i, row in found.iterrows()}


def gaps(file: sqlite3.Connection) -> int:
    parts = [
        table(file, f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{name}") for name in ("KERNEL", "MEMCPY")
    ]
    rows = pd.concat(parts).sort_values("start")
    return int((rows["start"] - rows["end"].cummax().shift()).clip(lower=0).sum())


def operations(file: sqlite3.Connection) -> pd.DataFrame:
    columns = "SELECT correlationId, end - start AS ns FROM CUPTI_ACTIVITY_KIND_"
    return pd.concat([table(file, columns + name) for name in ("KERNEL", "MEMCPY")])


def summed(rows: pd.DataFrame) -> dict[str, list[int]]:
    """Rows with line, backward and ns."""
    found: dict[str, list[int]] = {}
    sums = rows.groupby(["line", "backward"])["ns"].agg(["sum", "count"])
    for (line, backward), row in sums.iterrows():
        entry = found.setdefault(line, [0, 0, 0])
        entry[int(backward)] += int(row["sum"])
        entry[2] += int(row["count"])
    return found


def lines(file: sqlite3.Connection) -> dict[str, list[int]]:
    ours = table(file, "SELECT name FROM sqlite_master WHERE name = 'PYREC_LAUNCH'")
    return lines_of_recorder(file) if len(ours) else lines_of_nsys(file)


def lines_of_recorder(file: sqlite3.Connection) -> dict[str, list[int]]:
    names = table(file, "SELECT id, value FROM StringIds").set_index("id")["value"]
    frames = table(file, "SELECT id, fileId, line FROM PYREC_FRAME").set_index("id")
    nodes = table(file, "SELECT id, parentId, frameId FROM PYREC_STACK").set_index("id")

    def line_of(node: int) -> str | None:
        while node:
            frame = frames.loc[nodes.loc[node, "frameId"]]
            if names[frame["fileId"]] in OWN:
                return f"{names[frame['fileId']]}:{frame['line']}"
            node = nodes.loc[node, "parentId"]
        return None

    launches = table(file, "SELECT correlationId, stackId, peekSeq, nodeSeq FROM PYREC_LAUNCH")
    known = {node: line_of(node) for node in launches["stackId"].unique()}
    launches["line"] = launches["stackId"].map(known)
    launches["backward"] = launches["nodeSeq"].notna()
    forward = launches[~launches["backward"]].drop_duplicates("peekSeq").set_index("peekSeq")["line"]
    by_node = (launches["nodeSeq"] + 1).map(forward)
    launches["line"] = launches["line"].where(~launches["backward"], by_node)
    return summed(operations(file).merge(launches, on="correlationId"))


def lines_of_nsys(file: sqlite3.Connection) -> dict[str, list[int]]:
    names = table(file, "SELECT id, value FROM StringIds").set_index("id")["value"]

    def line_of(text: str) -> str | None:
        for frame in json.loads(text)["Python Backtrace on CUDA"]["Frames"]:
            if names[frame["File"]] in OWN:
                return f"{names[frame['File']]}:{frame['Line']}"
        return None

    calls = table(file, "SELECT start, globalTid, correlationId, eventClass FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    marks = table(file, "SELECT start, globalTid, jsonText FROM NVTX_EVENTS WHERE eventType = 34")
    known = {text: line_of(text) for text in marks["jsonText"].unique()}
    marks["line"] = marks["jsonText"].map(known)
    stacks = calls.merge(marks[["start", "globalTid", "line"]], on=["start", "globalTid"])
    line = stacks.drop_duplicates("correlationId").set_index("correlationId")["line"]

    ranges = table(
        file, "SELECT start, globalTid, text FROM NVTX_EVENTS WHERE eventType = 59 AND text LIKE '%, seq = %'"
    )
    number = re.compile(r", seq = (\d+)")
    ranges["seq"] = [int(number.search(text)[1]) for text in ranges["text"]]  # type: ignore[index]
    launches = calls[calls["eventClass"] == 0].sort_values("start")
    around = pd.merge_asof(launches, ranges.sort_values("start"), on="start", by="globalTid", tolerance=5_000)
    around["line"] = around["correlationId"].map(line)
    around["backward"] = around["line"].isna()
    forward = around[~around["backward"] & around["seq"].notna()].drop_duplicates("seq").set_index("seq")
    around["line"] = around["line"].fillna(around["seq"].map(forward["line"]))
    return summed(operations(file).merge(around, on="correlationId"))


if __name__ == "__main__":
    question = {"kernels": kernels, "gaps": gaps, "lines": lines}[sys.argv[1]]
    with sqlite3.connect(f"file:{sys.argv[2]}?mode=ro", uri=True) as connection:
        print(json.dumps(question(connection)))
