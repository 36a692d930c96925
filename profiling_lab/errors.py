# SPDX-License-Identifier: Apache-2.0
"""User-facing errors. Only `cli.main` prints them; each class has its exit code."""

from __future__ import annotations


class LabError(Exception):
    """An error the user can fix. The message is one sentence: what was expected and what was found."""

    exit_code = 1


class UsageError(LabError):
    """Wrong arguments of a command or call."""

    exit_code = 2


class NotEnoughDataError(LabError):
    """The input is readable, but does not contain the data for the answer."""

    exit_code = 3


class UnreadableInputError(LabError):
    """The input is missing, truncated or has another format than expected."""

    exit_code = 4
