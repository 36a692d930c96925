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
SAVE_EVERY = 20  # records; less would be lost if the machine stopped


def write_records(path, count, seed=0):
    """A file of random records."""
    numbers = random.Random(seed)
    with open(path, "wb") as file:
        for _ in range(count):
            values = numbers.randbytes(4 * numbers.randrange(1, 9))
            head = struct.pack("<HH", numbers.randrange(SENSORS), len(values) // 4)
            file.write(head + values + struct.pack("<I", zlib.crc32(head + values)))


def take(file, count):
    """The next `count` bytes; fewer at the end of the file."""
    data = b""
    while len(data) < count:
        more = os.read(file, count - len(data))
        if not more:
            break
        data += more
    return data


def records(path):
    """Sensor and values of every record. A wrong checksum is an error."""
    file = os.open(path, os.O_RDONLY)
    try:
        while sensor := take(file, 2):
            length = take(file, 2)
            values = take(file, 4 * int.from_bytes(length, "little"))
            if int.from_bytes(take(file, 4), "little") != zlib.crc32(sensor + length + values):
                raise ValueError(f"{path}: wrong checksum")
            yield int.from_bytes(sensor, "little"), values
    finally:
        os.close(file)


def convert(source, folder):
    """Write shard0.bin, shard1.bin, .. into the folder. Returns the number of records of each sensor."""
    found = [0] * SENSORS
    paths = [Path(folder) / f"shard{sensor}.bin" for sensor in range(SENSORS)]
    shards = [open(path, "wb") for path in paths]  # noqa: SIM115
    for number, (sensor, values) in enumerate(records(source), 1):
        shards[sensor].write(values)
        found[sensor] += 1
        if number % SAVE_EVERY == 0:
            for shard in shards:
                shard.flush()
                os.fsync(shard.fileno())
    for shard in shards:
        shard.flush()
        os.fsync(shard.fileno())
        shard.close()
    return found


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
