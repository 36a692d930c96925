# SPDX-License-Identifier: Apache-2.0
"""Round 4, program a: sum up the visits of a log, with a dictionary of lists."""

import json
import random

RECORDS = 90_000


def make_log(count, seed=0):
    """Lines of JSON, the same for the same seed."""
    generator = random.Random(seed)
    lines = []
    for number in range(count):
        user, spent = generator.randrange(500), generator.randrange(1, 900)
        lines.append(f'{{"number": {number}, "user": "u{user}", "spent": {spent}}}')
    return lines


def read(line):
    """User and seconds of one line."""
    record = json.loads(line)
    return record["user"], record["spent"]


def visits(lines):
    """The lengths of all visits, by user."""
    found = {}
    for line in lines:
        user, spent = read(line)
        found.setdefault(user, []).append(spent)
    return found


def main():
    found = visits(make_log(RECORDS))
    longest = max(found, key=lambda user: (sum(found[user]), user))
    print(f"{RECORDS} visits of {len(found)} users; {longest} stayed longest: {sum(found[longest])} s")


if __name__ == "__main__":
    main()
