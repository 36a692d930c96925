// SPDX-License-Identifier: Apache-2.0
// heavy_layer for 16-bit GEMMs of about a wave of tiles or less. There cuBLAS and the gaps between launches take
// longer than the tensor cores need. So these GEMMs are our own kernels, and independent GEMMs share a launch.
//
//     folded, forward     W23 = W2 W3
//                         M^T = W23^T W1^T                              (then product_tanh)
//             backward    (before: G = dY (1 - Y^2) and partial sums of db by tanh_backward;
//                         dM = X^T G, which is deep and not small, by the library)
//                         T = W1^T dM    dW1 = dM W23^T    db           concurrently, on another
//                         dW2 = T W3^T   dW3 = W2^T T                   stream, dX = G M^T
//     chain,  forward     H1 = X W1, H2 = H1 W2, Y = tanh(H2 W3 + b)
//             backward    (before: G, as above)
//                         G2 = G W3^T    dW3 = H2^T G      db
//                         G1 = G2 W2^T   dW2 = H1^T G2
//                         dX = G1 W1^T   dW1 = X^T G1
//
// Contract  has_small_products() said yes; operands start at multiples of 16 bytes.
#include <initializer_list>

#include "ops/device_types.cuh"
#include "ops/heavy_layer/fork.h"
#include "ops/heavy_layer/sm90/products.cuh"
#include "ops/heavy_layer/sm90/sm90.h"

namespace plab::ops {

namespace {

using namespace products;

template <class Function>
void dispatch_16_bits(ElementType type, Function&& function) {
  dispatch_device(type, [&](auto tag) {
    if constexpr (sizeof(typename decltype(tag)::type) == 2) function(tag);
  });
}

constexpr bool kFollows = true;  // the launch before is one of this file

// One product or two, and sums of columns, in blocks of T's tiles.
template <class T>
void launch_together(ElementType type, std::initializer_list<Product> all, bool follows, cudaStream_t stream,
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
                   [&](auto tag) { launch_tasks<typename decltype(tag)::type, T>(launch, follows, stream); });
}

ColumnSums sums_of(const OwnBackwardParams& p) {
  return {p.partial, p.db, tanh_backward_chunks(p.rows), p.d};
}

}  // namespace

bool has_small_products(int64_t rows, int64_t d, ElementType type) {
  const auto tiles = cuda::ceil_div<int64_t>(d, SmallTile::kColumns);
  return type != ElementType::kFloat32 && fuses_product(cuda::larger(rows, d), d, type, false) &&
         tiles * tiles <= cuda::sm_count();
}

void launch_fold(const FoldParams& p, cudaStream_t stream) {
  const int64_t d = p.d;
  launch_together<SmallTile>(p.type, {{{p.w2}, {p.w3}, p.w23, d, d, d}}, !kFollows, stream);
  launch_together<SmallTile>(p.type, {{{p.w23, true}, {p.w1, true}, p.m_transposed, d, d, d}}, kFollows,
                             stream);
}

void launch_folded_backward(const OwnBackwardParams& p, cudaStream_t stream) {
  const auto& [w23, m] = p.made;
  const auto& [dm, t] = p.own;
  const int64_t d = p.d;
  Fork fork(stream);
  fork.split();  // dX uses the part of the GPU that the small GEMMs leave idle
  launch_together<LargeTile>(p.type, {{{p.g}, {m, !p.m_is_transposed}, p.dx, p.rows, d, d}}, !kFollows,
                             fork.side());
  launch_together<SmallTile>(p.type, {{{p.w1, true}, {dm}, t, d, d, d}, {{dm}, {w23, true}, p.dw1, d, d, d}},
                             !kFollows, stream, sums_of(p));
  launch_together<SmallTile>(
      p.type, {{{t}, {p.w3, true}, p.dw2, d, d, d}, {{p.w2, true}, {t}, p.dw3, d, d, d}}, kFollows, stream);
  fork.join();
}

void launch_chain(const ChainParams& p, cudaStream_t stream) {
  const int64_t n = p.rows, d = p.d;
  launch_together<SmallTile>(p.type, {{{p.x}, {p.w1}, p.h1, n, d, d}}, !kFollows, stream);
  launch_together<SmallTile>(p.type, {{{p.h1}, {p.w2}, p.h2, n, d, d}}, kFollows, stream);
  if (p.y != nullptr)
    launch_together<SmallTile>(p.type, {{{p.h2}, {p.w3}, p.y, n, d, d, p.b}}, kFollows, stream);
}

void launch_chain_backward(const OwnBackwardParams& p, cudaStream_t stream) {
  const auto& [h1, h2] = p.made;
  const auto& [g2, g1] = p.own;
  const int64_t n = p.rows, d = p.d;
  launch_together<SmallTile>(p.type,
                             {{{p.g}, {p.w3, true}, g2, n, d, d}, {{h2, true}, {p.g}, p.dw3, d, d, n}},
                             !kFollows, stream, sums_of(p));
  launch_together<SmallTile>(p.type, {{{g2}, {p.w2, true}, g1, n, d, d}, {{h1, true}, {g2}, p.dw2, d, d, n}},
                             kFollows, stream);
  launch_together<SmallTile>(
      p.type, {{{g1}, {p.w1, true}, p.dx, n, d, d}, {{p.x, true}, {g1}, p.dw1, d, d, n}}, kFollows, stream);
}

}  // namespace plab::ops
