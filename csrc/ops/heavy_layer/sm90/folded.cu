// SPDX-License-Identifier: Apache-2.0
// The folded forms of heavy_layer for problems of about a wave of tiles, 16 bits: the library's products and
// the launches between them take longer than the tensor cores need, so that here the products are ours and
// what does not depend on each other goes into one launch.
//
//     forward     W23 = W2 W3              M^T = W23^T W1^T                     (then product_tanh)
//     backward    G = dY (1 - Y^2), and partial sums of db                      (tanh_backward)
//                 dM = X^T G, in pieces of the depth
//                 T = W1^T dM and dW1 = dM W23^T and db                         beside them, on another
//                 dW2 = T W3^T and dW3 = W2^T T                                 stream, dX = G M^T
//
// Contract  fuses_product() said yes, 16 bits; operands start at multiples of 16 bytes.
#include <initializer_list>

#include "ops/device_types.cuh"
#include "ops/heavy_layer/fork.h"
#include "ops/heavy_layer/heavy_layer.h"
#include "ops/heavy_layer/sm90/products.cuh"

namespace plab::ops {

namespace {

using namespace products;

template <class Function>
void dispatch_16_bits(ElementType type, Function&& function) {
  dispatch_device(type, [&](auto tag) {
    if constexpr (sizeof(typename decltype(tag)::type) == 2) function(tag);
  });
}

// One product or two, and sums of columns, in blocks of T's tiles.
template <class T>
void launch_together(ElementType type, std::initializer_list<Product> all, cudaStream_t stream,
                     const ColumnSums& sums = {}) {
  Launch launch{};
  launch.sums = sums;
  int i = 0;
  for (const Product& product : all) {
    launch.tasks[i] = make_task<T>(product, type);
    launch.blocks[i] = tiles_of<T>(launch.tasks[i]);
    ++i;
  }
  dispatch_16_bits(type,
                   [&](auto tag) { launch_tasks<typename decltype(tag)::type, T, false>(launch, stream); });
}

// A product that is deep but has few tiles: in pieces of its depth, as many as the GPU has room for.
void launch_deep(ElementType type, const Product& product, cudaStream_t stream) {
  Launch launch{{make_task<LargeTile>(product, type)}, {}, {}};
  const int tiles = tiles_of<LargeTile>(launch.tasks[0]);
  int& pieces = launch.tasks[0].pieces;
  while (pieces < kMaxPieces && 2 * pieces * tiles <= cuda::multiprocessors()) pieces *= 2;
  launch.blocks[0] = tiles * pieces;
  dispatch_16_bits(
      type, [&](auto tag) { launch_tasks<typename decltype(tag)::type, LargeTile, true>(launch, stream); });
}

}  // namespace

void launch_fold(const FoldParams& p, cudaStream_t stream) {
  launch_together<SmallTile>(p.type, {{{p.w2}, {p.w3}, p.w23, p.d, p.d, p.d}}, stream);
  launch_together<SmallTile>(p.type, {{{p.w23, true}, {p.w1, true}, p.m_transposed, p.d, p.d, p.d}}, stream);
}

void launch_folded_backward(const FoldedBackwardParams& p, cudaStream_t stream) {
  launch_tanh_backward({p.dy, p.y, p.g, p.db, p.partial, p.rows, p.d, p.type}, stream);
  launch_deep(p.type, {{p.x, true}, {p.g}, p.dm, p.d, p.d, p.rows}, stream);
  Fork fork(stream);
  fork.split();  // dX fills what the small products leave of the GPU
  launch_together<LargeTile>(p.type, {{{p.g}, {p.m, !p.m_is_transposed}, p.dx, p.rows, p.d, p.d}},
                             fork.side());
  launch_together<SmallTile>(
      p.type, {{{p.w1, true}, {p.dm}, p.w1_dm, p.d, p.d, p.d}, {{p.dm}, {p.w23, true}, p.dw1, p.d, p.d, p.d}},
      stream, {p.partial, p.db, tanh_backward_chunks(p.rows), p.d});
  launch_together<SmallTile>(
      p.type,
      {{{p.w1_dm}, {p.w3, true}, p.dw2, p.d, p.d, p.d}, {{p.w2, true}, {p.w1_dm}, p.dw3, p.d, p.d, p.d}},
      stream);
  fork.join();
}

}  // namespace plab::ops
