# SPDX-License-Identifier: Apache-2.0
"""Call actions after each optimizer step, through torch's global optimizer hook.

The hook is registered once and stays. torch iterates over its hooks on the program's thread; adding or
removing one meanwhile, from the thread that attaches to a live process, would raise in the program.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from profiling_lab.errors import LabError

Action = Callable[[Any], None]
_SECONDS_FOR_OTHERS = 5.0

_followers: tuple[Action, ...] = ()
_hooked: Any = None  # torch's module with our hook


def follow(action: Action) -> Callable[[], None]:
    """Call `action(optimizer)` after every optimizer step. torch must be imported. Returns a cancel function.

    Raises LabError if hooks of other tools leave no moment to register ours. Does nothing with a torch
    version without such hooks.
    """
    global _followers
    _register()
    _followers = (*_followers, action)

    def give_up() -> None:
        global _followers
        _followers = tuple(follower for follower in _followers if follower is not action)

    return give_up


def _register() -> None:
    global _hooked
    optimizers: Any = sys.modules.get("torch.optim.optimizer")  # torch.optim shadows its submodule
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register is None or _hooked is optimizers:
        return
    ends = time.monotonic() + _SECONDS_FOR_OTHERS
    # Without other hooks no thread can be iterating over them.
    while getattr(optimizers, "_global_optimizer_post_hooks", None) and _somebody_steps(optimizers.__file__):
        if time.monotonic() > ends:
            raise LabError(
                "optimizer hooks of another tool prevent counting steps: record by --seconds, "
                "or choose with --step-by what ends a step"
            )
        time.sleep(0.0005)
    register(_stepped)
    _hooked = optimizers


def _somebody_steps(file: str) -> bool:
    """Whether another thread is inside an optimizer's step()."""
    import threading

    for thread, frame in sys._current_frames().items():
        below = frame
        while below is not None and thread != threading.get_ident():
            if below.f_code.co_filename == file:
                return True
            below = below.f_back  # type: ignore[assignment]
    return False


def _stepped(optimizer: Any, *_: object) -> None:
    for follower in _followers:
        follower(optimizer)
