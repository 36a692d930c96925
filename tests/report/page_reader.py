# SPDX-License-Identifier: Apache-2.0
"""Takes a page apart again, as its own script does."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from profiling_lab.report.html.packing import read_column, unpack
from profiling_lab.trace.columns import I64


def element(page: str, tag: str, identity: str) -> str:
    """What stands in the only element with this id."""
    found = re.findall(rf'<{tag}\b[^>]*\bid="{identity}"[^>]*>(.*?)</{tag}>', page, re.DOTALL)
    assert len(found) == 1, f"expected one {tag} #{identity}, found {len(found)}"
    return str(found[0])


@dataclass(frozen=True)
class Events:
    """One lane; times on the clock of the file."""

    group: str
    kind: str
    label: str
    events: int
    start_ns: I64
    duration_ns: I64
    names: list[str]
    stack: I64
    more: dict[str, I64]
    levels: int


class PageReader:
    def __init__(self, page: bytes) -> None:
        self.text = page.decode()
        self.data: dict[str, Any] = json.loads(element(self.text, "script", "data"))
        self.head, self.body = unpack(element(self.text, "script", "payload"))

    def column(self, where: list[int], signed: bool = False) -> I64:
        return read_column(self.body, where, signed)

    @cached_property
    def lanes(self) -> list[Events]:
        out = []
        for lane in self.head["lanes"]:
            columns = lane["columns"]
            duration = self.column(columns["duration"])
            # A start is counted from the end before: begin + end sums of everything in between.
            pause = self.column(columns["start"], signed=True)
            start = np.cumsum(pause) + np.concatenate([[0], np.cumsum(duration)[:-1]]).astype(np.int64)
            known = {"start", "duration", "name", "tint", "stack", "call"}
            more = {name: self.column(where) for name, where in columns.items() if name not in known}
            if "call" in columns:
                more["call"] = np.cumsum(self.column(columns["call"], signed=True))
            out.append(
                Events(
                    group=self.head["groups"][lane["group"]],
                    kind=lane["kind"],
                    label=lane["label"],
                    events=lane["events"],
                    start_ns=start + int(self.head["origin_ns"]),
                    duration_ns=duration,
                    names=[self.head["names"][i] for i in self.column(columns["name"]).tolist()],
                    stack=self.column(columns["stack"]),
                    more=more,
                    levels=len(lane["levels"]),
                )
            )
        return out

    def of_kind(self, kind: str) -> list[Events]:
        return [lane for lane in self.lanes if lane.kind == kind]

    @cached_property
    def lines(self) -> list[tuple[str, int]]:
        """Per stack file and line of its innermost own frame, ('', 0) without one."""
        stacks = self.head["stacks"]
        parent, frame, own = (self.column(stacks[name]).tolist() for name in ("parent", "frame", "own"))
        files = [stacks["files"][i] for i in self.column(stacks["frames"]["file"]).tolist()]
        numbers = self.column(stacks["frames"]["line"]).tolist()
        out = []
        for row in range(len(parent)):
            while row and not own[row]:
                row = parent[row]
            out.append((files[frame[row]], numbers[frame[row]]) if row else ("", 0))
        return out
