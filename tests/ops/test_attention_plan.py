# SPDX-License-Identifier: Apache-2.0
"""Plan (csrc/ops/attention/plan.h): which kernels run, in which order, and the workspace of all of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SOURCE = """
#include <cassert>
#include <stdexcept>
#include <vector>

#include "ops/attention/plan.h"

using namespace plab::ops::attention;
struct Params { std::vector<int>* ran; };

template <int kNumber>
void launch(const KernelLaunch<Params>&, const Params& params, cudaStream_t) {
  params.ran->push_back(kNumber);
}

int main() {
  Plan<Params> first, second;
  first.add({launch<1>, 4, 128, 0});
  first.workspace.tile_counter = true;
  first.workspace.dq_accum_floats = 5;
  second.add({launch<2>, 0, 128, 0});  // an empty grid
  second.add({launch<3>, 1, 128, 0});
  second.workspace.row_statistics = true;
  second.workspace.dq_accum_floats = 7;
  first.append(second);
  std::vector<int> ran;
  first.run({&ran}, nullptr);
  if (ran != std::vector<int>{1, 3}) return 1;
  const Workspace& w = first.workspace;
  if (!w.tile_counter || !w.row_statistics || w.dq_accum_floats != 12) return 2;
  try {
    for (int i = 0; i < 100; ++i) first.add({launch<4>, 1, 128, 0});
  } catch (const std::out_of_range&) {
    return 0;
  }
  return 3;
}
"""


def test_a_plan_runs_its_kernels_in_order_and_adds_up_workspaces(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    source, program = tmp_path / "plan.cpp", tmp_path / "plan"
    source.write_text(SOURCE)
    strict = ("-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{REPO / 'csrc'}")
    subprocess.run([compiler, *strict, str(source), "-o", str(program)], check=True)
    assert subprocess.run([program], timeout=60).returncode == 0
