# SPDX-License-Identifier: Apache-2.0
"""A recording with random numbers, for the cases that a small program does not have: two processes with two
GPUs each, equal correlation ids in both, kernels that overlap on two streams, short kernels inside of long
ones, gaps filled by memsets, kernels without a call, and nsys' extra rows for call chains.

The same query must be right here, so an answer copied from another recording is not.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

VM = 1 << 48
MS, US = 1_000_000, 1_000
CALL_CHAIN = 67  # eventClass of nsys' extra rows
COPIES = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}
KERNELS = ("gemm<float>", "gemm<half>", "softmax_kernel", "add_kernel", "reduce_kernel<4>")
LONGEST_GAP_NS = 4 * MS

_WORK = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER"
)
SCHEMA = (
    "StringIds (id INTEGER PRIMARY KEY, value TEXT)",
    f"CUPTI_ACTIVITY_KIND_KERNEL ({_WORK}, demangledName INTEGER, shortName INTEGER)",
    f"CUPTI_ACTIVITY_KIND_MEMCPY ({_WORK}, bytes INTEGER, copyKind INTEGER)",
    f"CUPTI_ACTIVITY_KIND_MEMSET ({_WORK}, value INTEGER, bytes INTEGER)",
    "CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER)",
    "ENUM_CUDA_MEMCPY_OPER (id INTEGER PRIMARY KEY, name TEXT, label TEXT)",
)


def made(path: Path, seed: int) -> Path:
    """Write the recording; equal seeds make equal files."""
    with sqlite3.connect(path) as file:
        for table in SCHEMA:
            file.execute(f"CREATE TABLE {table}")
        maker = _Maker(file, random.Random(seed))
        file.executemany(
            "INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (?, '', ?)", [(k, v) for k, v in COPIES.items()]
        )
        for pid in (700, 701):
            for device in (0, 1):
                maker.fill(pid, device)
        maker.names()
    file.close()
    return path


class _Maker:
    def __init__(self, file: sqlite3.Connection, chance: random.Random) -> None:
        self.file, self.chance = file, chance
        self.ids: dict[str, int] = {}
        self.correlation: dict[int, int] = {}  # counts from 1 in each process

    def string(self, text: str) -> int:
        """Ids of StringIds have holes."""
        return self.ids.setdefault(text, 7 * len(self.ids) + self.chance.randint(3, 9))

    def names(self) -> None:
        self.file.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, t) for t, n in self.ids.items()])

    def fill(self, pid: int, device: int) -> None:
        """Bursts of work on two streams, with gaps around 1 ms between them."""
        now = 100 * MS + self.chance.randint(0, MS)
        for _ in range(12):
            burst = now
            for _ in range(self.chance.randint(2, 5)):
                long = self.chance.randint(200, 900) * US
                self.kernel(pid, device, 7, now, long)
                self.kernel(pid, device, 13, now + long // 4, long // 8)  # inside of the long one
                self.kernel(pid, device, 13, now + long // 2, long)  # beyond its end
                self.copy(pid, device, 14, now + long // 3, long // 2)
                now += long + long // 2 + self.chance.randint(0, 5) * US
            gap = self.chance.randint(MS // 2, LONGEST_GAP_NS)
            if self.chance.random() < 0.5:
                self.memset(pid, device, now + gap // 2, gap // 4)
            now = max(now, burst) + gap
        self.kernel(pid, device, 7, now, 10 * US)

    def kernel(self, pid: int, device: int, stream: int, start: int, ns: int) -> None:
        name = self.chance.choice(KERNELS)
        ids = (self.string(name), self.string(name.split("<")[0]))
        has_call = self.chance.random() < 0.9
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", pid, device, stream, start, ns, ids, has_call)

    def copy(self, pid: int, device: int, stream: int, start: int, ns: int) -> None:
        kind = self.chance.choice(list(COPIES))
        size = ns * self.chance.randint(2, 40)
        self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", pid, device, stream, start, ns, (size, kind), True)

    def memset(self, pid: int, device: int, start: int, ns: int) -> None:
        self.insert("CUPTI_ACTIVITY_KIND_MEMSET", pid, device, 7, start, ns, (0, 4096), True)

    def insert(
        self,
        table: str,
        pid: int,
        device: int,
        stream: int,
        start: int,
        ns: int,
        own: tuple[int, int],
        called: bool,
    ) -> None:
        """The operation, the call that launched it, and for some the extra row, which begins earlier."""
        number = self.correlation[pid] = self.correlation.get(pid, 0) + 1
        work = (start, start + ns, device, 1, stream, number, VM | pid << 24)
        self.file.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * 9)})", (*work, *own))
        if not called:
            return
        tid = VM | pid << 24 | (pid + self.chance.choice((0, 5)))
        begun = start - self.chance.randint(5, 3000) * US
        call = (begun, begun + 4 * US, 0, tid, number, self.string("cudaLaunchKernel_v7000"), 0, None)
        self.call(call)
        if self.chance.random() < 0.3:
            self.call((begun - 60, begun + 5 * US, CALL_CHAIN, tid, number, call[5], 0, None))

    def call(self, row: tuple[int | None, ...]) -> None:
        self.file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
