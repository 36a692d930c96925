# SPDX-License-Identifier: Apache-2.0
"""Round 4, program c: sum up the visits of a log, with a regular expression."""

import random
import re
from collections import defaultdict

RECORDS = 90_000
FIELDS = re.compile(r'"user": "(\w+)", "spent": (\d+)')


def make_log(count, seed=0):
    """Lines of JSON, the same for the same seed."""
    generator = random.Random(seed)
    lines = []
    for number in range(count):
        user, spent = generator.randrange(500), generator.randrange(1, 900)
        lines.append(f'{{"number": {number}, "user": "u{user}", "spent": {spent}}}')
    return lines


def visits(lines):
    """The lengths of all visits, by user."""
    found = defaultdict(list)
    for line in lines:
        match = FIELDS.search(line)
        found[match[1]].append(int(match[2]))
    return found


def main():
    found = visits(make_log(RECORDS))
    longest = max(found, key=lambda user: (sum(found[user]), user))
    print(f"{RECORDS} visits of {len(found)} users; {longest} stayed longest: {sum(found[longest])} s")


if __name__ == "__main__":
    main()
