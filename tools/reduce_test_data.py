# SPDX-License-Identifier: Apache-2.0
"""Make the files of tests/data/captures from the captures they come from.

    python tools/reduce_test_data.py FOLDER

FOLDER holds the originals, found by their names; tests/data/captures/README.md says where the public ones
are. What tests look at stays as it was: times, names, stacks, tables, even the layout of the JSON text.
Dropped is bulk that says nothing more (CPU samples and context switches outside of the time with CUDA
calls, most memory events, arguments that no reader reads), and what names a person's folder or a single GPU.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import sqlite3
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

CAPTURES = Path(__file__).resolve().parents[1] / "tests" / "data" / "captures"
# Of the originals: a file of the same name that holds something else would make other figures.
SHA256 = """\
1648ee1c90046f2b7c46a7146936ce98d4eec30aaa698d60c58f4e5176bf7628  autograd_nvtx_h200.sqlite
7130ecd3184c68e9f7a9e680d14a943b5d398f1541f8a228490a15c44d6f11ce  fsdp_inference_2xh100.sqlite
81e6fb0e092629e7a0198a60355315e3e4cffa16f91d08e62787e6f51149287f  python_backtrace_h200.sqlite
51db3c9c975a35aa2a25269fc241dbabd864c2763491ebf82d590112a041b0a4  sampling_h200.sqlite
a91798b500ce9d6e21c416ce32dcd8ecf4788489df86f59ba2f944906c90b853  resnet50_num_workers_0.pt.trace.json.gz
c290eb249e74824736f81886587614fc5d96660d3e60d0c256dee4b4a0e268f6  resnet50_num_workers_4.pt.trace.json.gz
"""
EVENT_END = "\n  },\n"
MEMORY_EVENT = '"name": "[memory]"'
KEPT_MEMORY_EVENTS = 20  # one of 20 is kept
UNREAD_ARGUMENTS = re.compile(
    r'"Trace name": "[^"]*", |, "Input type": \[[^\]]*\]|, "external ts": \d+'
    r'|\n      "(?:blocks|warps) per SM": [\d.]+,'
)
FOLDERS = re.compile(r"/home/[^\s;:\"]*?(?=/(?:site-packages|lib/python3\.\d+/(?!site-packages)))")
CALLS = "FROM CUPTI_ACTIVITY_KIND_RUNTIME"
FIRST_AND_LAST_CALL = f"(SELECT min(start) {CALLS}) AND (SELECT max(end) {CALLS})"
SAMPLED_OR_CALLING = f"SELECT globalTid {CALLS} UNION SELECT globalTid FROM COMPOSITE_EVENTS"


def reduce_torch(source: bytes) -> bytes:
    """A trace of torch.profiler. The text of an event that stays is cut, not written anew."""
    text = gzip.decompress(source).decode()
    kept, memory_events = [], 0
    for event in text.split(EVENT_END):
        if MEMORY_EVENT in event:
            memory_events += 1
            if memory_events % KEPT_MEMORY_EVENTS != 1:
                continue
        kept.append(event)
    return FOLDERS.sub("", UNREAD_ARGUMENTS.sub("", EVENT_END.join(kept))).encode()


def reduce_nsys(source: bytes) -> bytes:
    """An SQLite export of nsys."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "capture.sqlite")
        path.write_bytes(source)
        file = sqlite3.connect(path)
        with file:
            tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "TARGET_INFO_GPU" in tables:
                file.execute("UPDATE TARGET_INFO_GPU SET uuid = NULL, busLocation = NULL")
            for table in tables & {"COMPOSITE_EVENTS", "SCHED_EVENTS"}:
                file.execute(f"DELETE FROM {table} WHERE NOT start BETWEEN {FIRST_AND_LAST_CALL}")
            if "SCHED_EVENTS" in tables:
                file.execute(f"DELETE FROM SCHED_EVENTS WHERE globalTid NOT IN ({SAMPLED_OR_CALLING})")
            if "SAMPLING_CALLCHAINS" in tables:
                file.execute(
                    "DELETE FROM SAMPLING_CALLCHAINS WHERE id NOT IN (SELECT id FROM COMPOSITE_EVENTS)"
                )
        file.execute("VACUUM")
        file.close()
        return path.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the files of tests/data/captures.")
    parser.add_argument("originals", type=Path, metavar="FOLDER")
    originals = parser.parse_args().originals
    CAPTURES.mkdir(exist_ok=True)
    for expected, name in map(str.split, SHA256.splitlines()):
        (path,) = originals.rglob(name)
        source = path.read_bytes()
        if (found := hashlib.sha256(source).hexdigest()) != expected:
            print(f"{path}: SHA-256 is {found}, expected {expected}", file=sys.stderr)
            return 1
        torch = name.endswith(".json.gz")
        small = reduce_torch(source) if torch else reduce_nsys(source)
        target = CAPTURES / (name if torch else f"{name}.gz")
        target.write_bytes(gzip.compress(small, 9, mtime=0))
        print(f"{target.name}: {target.stat().st_size} bytes, unpacked {len(small)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
