// SPDX-License-Identifier: Apache-2.0
// Rung 1, naive: three kernels as the formula is written, with the score matrix in memory between them.
//
// Mapping   one thread per score, one warp per row of the softmax, one thread per element of the output.
// Bytes     the score matrix is written once, read three times and written again by the softmax, and read by
//           the last kernel: 24 bytes a score. In addition every thread reads its own operands: 2 head_dim
//           elements for 2 head_dim flops, from L1 and L2 at best.
// Flops     4 rows keys head_dim a head; the masked half of a causal problem is computed like the rest.
// Roof      the loads. One flop an element is a hundredth of what the fp32 units could do between two loads.
// Contract  ladder_attention.h; scratch for all scores.
#include "ops/ladder_attention/device.cuh"

namespace plab::ops::ladder {
namespace {

/// scores[head, i, j] = scale * q_i . k_j
template <class Element>
__global__ void __launch_bounds__(kThreads) naive_scores_kernel(const Params p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= p.batch * p.heads * p.rows * p.keys) return;
  const int64_t j = index % p.keys, i = index / p.keys % p.rows, head = index / p.keys / p.rows;
  const Element* q = static_cast<const Element*>(p.q) + head_offset(p, head, p.rows) + i * row_stride(p);
  // Neighbouring threads have neighbouring keys: rows apart in memory, so each load of a warp touches 32
  // cache lines. Only the caches keep the other elements of a line from being wasted.
  const Element* k = static_cast<const Element*>(p.k) + head_offset(p, head, p.keys) + j * row_stride(p);
  float sum = 0.0f;
  for (int64_t c = 0; c < p.head_dim; ++c) sum = fmaf(to_float(q[c]), to_float(k[c]), sum);
  p.scores[index] = sum * static_cast<float>(p.scale);
}

/// out[i, c] = sum over j of p[i, j] v[j, c]
template <class Element>
__global__ void __launch_bounds__(kThreads) naive_values_kernel(const Params p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= p.batch * p.heads * p.rows * p.head_dim) return;
  const int64_t c = index % p.head_dim, i = index / p.head_dim % p.rows, head = index / p.head_dim / p.rows;
  const float* probability = p.scores + (head * p.rows + i) * p.keys;
  const Element* v = static_cast<const Element*>(p.v) + head_offset(p, head, p.keys) + c;
  float sum = 0.0f;
  for (int64_t j = 0; j < p.keys; ++j) sum = fmaf(probability[j], to_float(v[j * row_stride(p)]), sum);
  Element* out = static_cast<Element*>(p.out) + head_offset(p, head, p.rows) + i * row_stride(p);
  out[c] = from_float<Element>(sum);
}

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads)); }

}  // namespace

void launch_naive(const Params& p, cudaStream_t stream) {
  const int64_t head_rows = p.batch * p.heads * p.rows;
  dispatch_device(p.type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    if (p.keys > 0) {
      naive_scores_kernel<Element><<<blocks_for(head_rows * p.keys), kThreads, 0, stream>>>(p);
      PLAB_CHECK_LAUNCH();
      launch_softmax(p, stream);
    }
    naive_values_kernel<Element><<<blocks_for(head_rows * p.head_dim), kThreads, 0, stream>>>(p);
    PLAB_CHECK_LAUNCH();
  });
}

}  // namespace plab::ops::ladder
