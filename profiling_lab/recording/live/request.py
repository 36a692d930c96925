# SPDX-License-Identifier: Apache-2.0
"""The request that `attach` sends through the socket."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from profiling_lab.errors import UsageError
from profiling_lab.recording.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Request:
    """A window of `steps` whole steps, or of `seconds`. `path` is absolute."""

    path: str
    steps: int | None = None
    seconds: float | None = None
    wait: int = 0
    warmup: int = 1
    step_by: str = "optimizer"
    overwrite: bool = False
    sample_hz: int = 0
    most_bytes: int = 0
    stacks: bool = True
    nvtx: bool = True
    source: bool = True

    @classmethod
    def of(cls, message: dict[str, Any]) -> Request:
        """Parse a message. Raises UsageError if it is not a valid request."""
        kinds: dict[str, tuple[type, ...]] = {
            **dict.fromkeys(("path", "step_by"), (str,)),
            **dict.fromkeys(("overwrite", "stacks", "nvtx", "source"), (bool,)),
            **dict.fromkeys(("wait", "warmup", "sample_hz", "most_bytes"), (int,)),
            "steps": (int, type(None)),
            "seconds": (int, float, type(None)),
        }
        for name, value in message.items():
            fits = name in kinds and isinstance(value, kinds[name])
            if not fits or (isinstance(value, bool) and bool not in kinds[name]):
                raise UsageError(
                    f"the request contains {name!r} = {value!r}, which this version does not support"
                )
        if not Path(message.get("path", "")).is_absolute():
            raise UsageError("the request has no absolute path")
        return cls(**message)

    def as_message(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def schedule(self) -> Schedule:
        """The schedule of the window. Raises UsageError if the request is inconsistent."""
        if (self.steps is None) == (self.seconds is None):
            raise UsageError("expected either a number of steps or of seconds")
        if self.seconds is not None:
            return Schedule(duration_s=float(self.seconds))
        return Schedule(wait=self.wait, warmup=self.warmup, active=self.steps, repeat=1, step_by=self.step_by)

    def check_spool(self, spool: Path) -> None:
        """Raises UsageError if an unfinished recording would be overwritten."""
        if spool.exists() and not self.overwrite:
            raise UsageError(
                f"{spool} belongs to a recording that still runs or was not finished: profiling-lab "
                "recover turns it "
                "into a file, --overwrite deletes it"
            )
