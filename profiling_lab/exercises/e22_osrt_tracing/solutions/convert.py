# SPDX-License-Identifier: Apache-2.0
"""Sort the records of a measurement into one shard for each sensor: the program to be profiled.

    python convert.py

A record is the number of the sensor (2 bytes), the number of values (2 bytes), the values (4 bytes each) and
a checksum (4 bytes).
"""

import argparse
import os
import random
import struct
import tempfile
import time
import zlib
from pathlib import Path

SENSORS = 4


def write_records(path, count, seed=0):
    """A file of random records."""
    numbers = random.Random(seed)
    with open(path, "wb") as file:
        for _ in range(count):
            values = numbers.randbytes(4 * numbers.randrange(1, 9))
            head = struct.pack("<HH", numbers.randrange(SENSORS), len(values) // 4)
            file.write(head + values + struct.pack("<I", zlib.crc32(head + values)))


def records(data):
    """Sensor and values of every record. A wrong checksum is an error."""
    at = 0
    while at < len(data):
        sensor, length = struct.unpack_from("<HH", data, at)
        end = at + 4 + 4 * length
        if struct.unpack_from("<I", data, end)[0] != zlib.crc32(data[at:end]):
            raise ValueError("wrong checksum")
        yield sensor, data[at + 4 : end]
        at = end + 4


def convert(source, folder):
    """Write shard0.bin, shard1.bin, .. into the folder. Returns the number of records of each sensor."""
    shards = [[] for _ in range(SENSORS)]
    for sensor, values in records(Path(source).read_bytes()):
        shards[sensor].append(values)
    for sensor, values in enumerate(shards):
        with open(Path(folder) / f"shard{sensor}.bin", "wb") as shard:
            shard.write(b"".join(values))
            shard.flush()
            os.fsync(shard.fileno())  # once: without the rest a part is worth nothing
    return [len(values) for values in shards]


def main():
    parser = argparse.ArgumentParser(description="Sort the records of a measurement by sensor.")
    parser.add_argument("--records", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "measurement.bin"
        write_records(source, args.records)
        begin = time.perf_counter()
        found = convert(source, folder)
        took_ms = 1e3 * (time.perf_counter() - begin)
    print(f"{sum(found)} records, {took_ms:.1f} ms")


if __name__ == "__main__":
    main()
