// SPDX-License-Identifier: Apache-2.0
// heavy_layer where its products are of about a wave of tiles or less, 16 bits: the library's products and
// the launches between them take longer than the tensor cores need, so that here the products are ours and
// what does not depend on each other goes into one launch.
//
//     folded, forward     W23 = W2 W3
//                         M^T = W23^T W1^T                              (then product_tanh)
//             backward    G = dY (1 - Y^2) and partial sums of db       (tanh_backward)
//                         dM = X^T G, in pieces of its depth
//                         T = W1^T dM    dW1 = dM W23^T    db           beside these two, on another
//                         dW2 = T W3^T   dW3 = W2^T T                   stream, dX = G M^T
//     chain,  forward     H1 = X W1, H2 = H1 W2, Y = tanh(H2 W3 + b)
//             backward    G, as above
//                         G2 = G W3^T    dW3 = H2^T G      db
//                         G1 = G2 W2^T   dW2 = H1^T G2
//                         dX = G1 W1^T   dW1 = X^T G1
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

ColumnSums sums_of(const OwnBackwardParams& p) {
  return {p.partial, p.db, tanh_backward_chunks(p.rows), p.d};
}

}  // namespace

void launch_fold(const FoldParams& p, cudaStream_t stream) {
  launch_together<SmallTile>(p.type, {{{p.w2}, {p.w3}, p.w23, p.d, p.d, p.d}}, stream);
  launch_together<SmallTile>(p.type, {{{p.w23, true}, {p.w1, true}, p.m_transposed, p.d, p.d, p.d}}, stream);
}

void launch_folded_backward(const OwnBackwardParams& p, cudaStream_t stream) {
  const auto& [w23, m] = p.made;
  const auto& [dm, t] = p.own;
  const int64_t d = p.d;
  launch_tanh_backward({p.dy, p.y, p.g, p.db, p.partial, p.rows, d, p.type}, stream);
  launch_deep(p.type, {{p.x, true}, {p.g}, dm, d, d, p.rows}, stream);
  Fork fork(stream);
  fork.split();  // dX fills what the small products leave of the GPU
  launch_together<LargeTile>(p.type, {{{p.g}, {m, !p.m_is_transposed}, p.dx, p.rows, d, d}}, fork.side());
  launch_together<SmallTile>(p.type, {{{p.w1, true}, {dm}, t, d, d, d}, {{dm}, {w23, true}, p.dw1, d, d, d}},
                             stream, sums_of(p));
  launch_together<SmallTile>(
      p.type, {{{t}, {p.w3, true}, p.dw2, d, d, d}, {{p.w2, true}, {t}, p.dw3, d, d, d}}, stream);
  fork.join();
}

void launch_chain(const ChainParams& p, cudaStream_t stream) {
  const int64_t n = p.rows, d = p.d;
  launch_together<SmallTile>(p.type, {{{p.x}, {p.w1}, p.h1, n, d, d}}, stream);
  launch_together<SmallTile>(p.type, {{{p.h1}, {p.w2}, p.h2, n, d, d}}, stream);
  if (p.y != nullptr) launch_together<SmallTile>(p.type, {{{p.h2}, {p.w3}, p.y, n, d, d, p.b}}, stream);
}

void launch_chain_backward(const OwnBackwardParams& p, cudaStream_t stream) {
  const auto& [h1, h2] = p.made;
  const auto& [g2, g1] = p.own;
  const int64_t n = p.rows, d = p.d;
  launch_tanh_backward({p.dy, p.y, p.g, p.db, p.partial, n, d, p.type}, stream);
  launch_together<SmallTile>(
      p.type, {{{p.g}, {p.w3, true}, g2, n, d, d}, {{h2, true}, {p.g}, p.dw3, d, d, n}}, stream, sums_of(p));
  launch_together<SmallTile>(p.type, {{{g2}, {p.w2, true}, g1, n, d, d}, {{h1, true}, {g2}, p.dw2, d, d, n}},
                             stream);
  launch_together<SmallTile>(
      p.type, {{{g1}, {p.w1, true}, p.dx, n, d, d}, {{p.x, true}, {g1}, p.dw1, d, d, n}}, stream);
}

}  // namespace plab::ops
