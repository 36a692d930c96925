# SPDX-License-Identifier: Apache-2.0
"""The errors a user can meet. Only `cli.main` prints them; each carries the exit code of its kind."""

from __future__ import annotations


class LabError(Exception):
    """Something the user can act on. The message is one sentence: what was expected and what came."""

    exit_code = 1


class UsageError(LabError):
    """The command or the call was asked for something it cannot do."""

    exit_code = 2


class NotEnoughDataError(LabError):
    """The input is readable, but what was asked cannot be answered from it."""

    exit_code = 3


class UnreadableInputError(LabError):
    """The input is missing, truncated or of another kind than expected."""

    exit_code = 4
