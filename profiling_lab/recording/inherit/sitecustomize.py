# SPDX-License-Identifier: Apache-2.0
"""Record child processes of a recorded program: Python imports this file through PYTHONPATH.

Any Python 3 may run it, with or without profiling_lab. Afterwards nothing else has changed: the folder is
not on sys.path, and the environment's own sitecustomize has run, or is reported as missing.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _here]
if os.environ.get("PROFILING_LAB_RECORD"):
    try:
        from profiling_lab import _child_start

        _child_start.wait_for_cuda()
    except Exception:  # no profiling_lab in this environment, or another version of it
        pass

from importlib.machinery import PathFinder  # noqa: E402
from importlib.util import module_from_spec  # noqa: E402

_spec = PathFinder.find_spec("sitecustomize")
if _spec is None or _spec.loader is None:
    raise ImportError("there is no sitecustomize", name="sitecustomize")  # Python ignores this error
_module = module_from_spec(_spec)
sys.modules["sitecustomize"] = _module
_spec.loader.exec_module(_module)
