// SPDX-License-Identifier: Apache-2.0
#include "torch_abi/aten.h"

#include <array>

#include "torch_abi/box.h"

namespace plab::torch_abi {

Tensor contiguous(const Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor.share();
  std::array stack = {Stack<Tensor>::push(tensor.share()),
                      to_bits(torch.aoti_torch_memory_format_contiguous_format())};
  PLAB_TORCH(torch_call_dispatcher, "aten::contiguous", "", stack.data(), kTorchFloor);
  return Stack<Tensor>::pop(stack[0]);
}

Tensor clone(const Tensor& tensor) {
  std::array stack = {Stack<Tensor>::push(tensor.share()), Stack<std::optional<int64_t>>::push(std::nullopt)};
  PLAB_TORCH(torch_call_dispatcher, "aten::clone", "", stack.data(), kTorchFloor);
  return Stack<Tensor>::pop(stack[0]);
}

void mm_out(Tensor& out, const Tensor& a, const Tensor& b) {
  std::array stack = {Stack<Tensor>::push(a.share()), Stack<Tensor>::push(b.share()),
                      Stack<Tensor>::push(out.share())};
  PLAB_TORCH(torch_call_dispatcher, "aten::mm", "out", stack.data(), kTorchFloor);
  Stack<Tensor>::pop(stack[0]);  // out again: one more reference, dropped here
}

Tensor mm(const Tensor& a, const Tensor& b) {
  Tensor out = empty(std::array{a.size(0), b.size(1)}, a.dtype(), a.device());
  mm_out(out, a, b);
  return out;
}

Tensor transposed(const Tensor& matrix) {
  const auto sizes = matrix.sizes();
  const auto strides = matrix.strides();
  return view(matrix, std::array{sizes[1], sizes[0]}, std::array{strides[1], strides[0]});
}

}  // namespace plab::torch_abi
