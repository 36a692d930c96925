// SPDX-License-Identifier: Apache-2.0
// The rounds of the worked answer: each replaces the kernel and the launcher of optimization_loop.cu.

// round 1: one block for each row, so that neighbours in a warp read neighbours in memory
__global__ void normalize_rows(const float* in, float* out, int rows, int cols) {
  __shared__ float sums[256];
  const float* from = in + static_cast<long long>(blockIdx.x) * cols;
  float* to = out + static_cast<long long>(blockIdx.x) * cols;
  float squares = 0.0f;
  for (int col = threadIdx.x; col < cols; col += blockDim.x) squares += from[col] * from[col];
  sums[threadIdx.x] = squares;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const float factor = rsqrtf(sums[0] / cols + EPSILON);
  for (int col = threadIdx.x; col < cols; col += blockDim.x) to[col] = factor * from[col];
}

extern "C" int run_normalize_rows(const float* in, float* out, long long rows, long long cols) {
  normalize_rows<<<static_cast<unsigned>(rows), 256>>>(in, out, static_cast<int>(rows),
                                                       static_cast<int>(cols));
  return cudaGetLastError();
}

// round 2: blocks of 1024 threads, so that each row has more loads in flight
__global__ void normalize_rows(const float* in, float* out, int rows, int cols) {
  __shared__ float sums[1024];
  const float* from = in + static_cast<long long>(blockIdx.x) * cols;
  float* to = out + static_cast<long long>(blockIdx.x) * cols;
  float squares = 0.0f;
  for (int col = threadIdx.x; col < cols; col += blockDim.x) squares += from[col] * from[col];
  sums[threadIdx.x] = squares;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const float factor = rsqrtf(sums[0] / cols + EPSILON);
  for (int col = threadIdx.x; col < cols; col += blockDim.x) to[col] = factor * from[col];
}

extern "C" int run_normalize_rows(const float* in, float* out, long long rows, long long cols) {
  normalize_rows<<<static_cast<unsigned>(rows), 1024>>>(in, out, static_cast<int>(rows),
                                                        static_cast<int>(cols));
  return cudaGetLastError();
}

// round 3: one warp for each row, so that no warp waits at a barrier
__global__ void normalize_rows(const float* in, float* out, int rows, int cols) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* from = in + static_cast<long long>(row) * cols;
  float* to = out + static_cast<long long>(row) * cols;
  float squares = 0.0f;
  for (int col = lane; col < cols; col += 32) squares += from[col] * from[col];
  for (int half = 16; half > 0; half /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, half);
  const float factor = rsqrtf(squares / cols + EPSILON);
  for (int col = lane; col < cols; col += 32) to[col] = factor * from[col];
}

extern "C" int run_normalize_rows(const float* in, float* out, long long rows, long long cols) {
  normalize_rows<<<static_cast<unsigned>((rows + 7) / 8), 256>>>(in, out, static_cast<int>(rows),
                                                                 static_cast<int>(cols));
  return cudaGetLastError();
}

// round 4: the row stays in registers, in loads of 16 bytes, so that it is loaded once
template <int VECTORS>
__global__ void __launch_bounds__(256)
    normalize_rows_once(const float4* in, float4* out, int rows, int cols) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int vectors = cols / 4;
  const float4* from = in + static_cast<long long>(row) * vectors;
  float4* to = out + static_cast<long long>(row) * vectors;
  float4 kept[VECTORS];
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; k++) {
    const int at = lane + 32 * k;
    kept[k] = at < vectors ? from[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (int k = 0; k < VECTORS; k++) {
    squares += kept[k].x * kept[k].x + kept[k].y * kept[k].y + kept[k].z * kept[k].z + kept[k].w * kept[k].w;
  }
  for (int half = 16; half > 0; half /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, half);
  const float factor = rsqrtf(squares / cols + EPSILON);
#pragma unroll
  for (int k = 0; k < VECTORS; k++) {
    const int at = lane + 32 * k;
    const float4 v = kept[k];
    if (at < vectors) to[at] = make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w);
  }
}

// Rows of any other length.
__global__ void normalize_rows(const float* in, float* out, int rows, int cols) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* from = in + static_cast<long long>(row) * cols;
  float* to = out + static_cast<long long>(row) * cols;
  float squares = 0.0f;
  for (int col = lane; col < cols; col += 32) squares += from[col] * from[col];
  for (int half = 16; half > 0; half /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, half);
  const float factor = rsqrtf(squares / cols + EPSILON);
  for (int col = lane; col < cols; col += 32) to[col] = factor * from[col];
}

extern "C" int run_normalize_rows(const float* in, float* out, long long rows, long long cols) {
  const unsigned grid = static_cast<unsigned>((rows + 7) / 8);
  const int height = static_cast<int>(rows), width = static_cast<int>(cols);
  if (cols % 4 == 0 && cols <= 2048) {
    normalize_rows_once<16>
        <<<grid, 256>>>(reinterpret_cast<const float4*>(in), reinterpret_cast<float4*>(out), height, width);
  } else {
    normalize_rows<<<grid, 256>>>(in, out, height, width);
  }
  return cudaGetLastError();
}
