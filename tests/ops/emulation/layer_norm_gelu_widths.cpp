// SPDX-License-Identifier: Apache-2.0
// How layer_norm_gelu takes rows of a width, as portable/split.h says: for each width given, the element type, and
// forward, backward and backward with a residual of 4096 aligned rows.
#include <cuda_bf16.h>

#include <cstdio>

#include "cuda_on_cpu.h"
#include "ops/layer_norm_gelu/portable/split.h"

namespace {

using namespace plab::ops::layer_norm_gelu::portable;

template <class Element>
void say(const char* name, long cols, bool aligned) {
  const auto text = [](Way way) {
    return way == Way::kApart ? "apart" : way == Way::kPacked ? "packed" : "shifted";
  };
  std::printf("%s\t%ld\t%s\t%s\t%s\n", name, cols, text(way_of_forward_row<Element>(cols, aligned)),
              text(way_of_backward_row<Element>(4096, cols, aligned, false)),
              text(way_of_backward_row<Element>(4096, cols, aligned, true)));
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    const long cols = std::atol(arguments[i]);
    say<__nv_bfloat16>("bf16", cols, cols % 8 == 0);
    say<float>("fp32", cols, cols % 4 == 0);
  }
}
