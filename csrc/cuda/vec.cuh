// SPDX-License-Identifier: Apache-2.0
// 16 bytes at a time: the widest access of one thread, and the one that keeps most bytes in flight per
// instruction.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/cache.cuh"

namespace plab::cuda {

constexpr int kVecBytes = 16;

/// Elements in one 16-byte vector.
template <class Element>
constexpr int kVecSize = kVecBytes / static_cast<int>(sizeof(Element));

/// 16 bytes of packed elements in four registers.
template <class Element>
struct Vec {
  uint4 bits;
};

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }

/// Rounded to nearest, ties to even.
template <class Element>
__device__ __forceinline__ Element from_float(float v) {
  if constexpr (sizeof(Element) == 4) {
    return v;
  } else if constexpr (std::is_same_v<Element, __half>) {
    return __float2half_rn(v);
  } else {
    return __float2bfloat16_rn(v);
  }
}

namespace detail {

template <class Element>
__device__ __forceinline__ void unpack_word(std::uint32_t word, float& low, float& high) {
  if constexpr (std::is_same_v<Element, __half>) {
    const __half2 pair = *reinterpret_cast<const __half2*>(&word);
    low = __low2float(pair);
    high = __high2float(pair);
  } else {  // a bf16 is the upper half of an fp32
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
  }
}

template <class Element>
__device__ __forceinline__ std::uint32_t pack_word(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<Element, __half>) {
    *reinterpret_cast<__half2*>(&word) = __floats2half2_rn(low, high);
  } else {
    *reinterpret_cast<__nv_bfloat162*>(&word) = __floats2bfloat162_rn(low, high);
  }
  return word;
}

}  // namespace detail

template <class Element>
__device__ __forceinline__ void unpack(const Vec<Element>& v, float (&f)[kVecSize<Element>]) {
  if constexpr (sizeof(Element) == 4) {
    f[0] = __uint_as_float(v.bits.x), f[1] = __uint_as_float(v.bits.y);
    f[2] = __uint_as_float(v.bits.z), f[3] = __uint_as_float(v.bits.w);
  } else {
    detail::unpack_word<Element>(v.bits.x, f[0], f[1]);
    detail::unpack_word<Element>(v.bits.y, f[2], f[3]);
    detail::unpack_word<Element>(v.bits.z, f[4], f[5]);
    detail::unpack_word<Element>(v.bits.w, f[6], f[7]);
  }
}

template <class Element>
__device__ __forceinline__ Vec<Element> pack(const float (&f)[kVecSize<Element>]) {
  if constexpr (sizeof(Element) == 4) {
    return {make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]),
                       __float_as_uint(f[3]))};
  } else {
    return {make_uint4(detail::pack_word<Element>(f[0], f[1]), detail::pack_word<Element>(f[2], f[3]),
                       detail::pack_word<Element>(f[4], f[5]), detail::pack_word<Element>(f[6], f[7]))};
  }
}

template <class Element>
__device__ __forceinline__ Element first(const Vec<Element>& v) {
  return *reinterpret_cast<const Element*>(&v.bits.x);
}

/// Moves the others one place forward. For loops that need not be fast, but small.
template <class Element>
__device__ __forceinline__ void drop_first(Vec<Element>& v) {
  constexpr unsigned kBits = 8 * sizeof(Element);
  const auto next = [](uint32_t low, uint32_t high) {
    return kBits == 32 ? high : low >> kBits % 32 | high << kBits % 32;
  };
  v.bits = make_uint4(next(v.bits.x, v.bits.y), next(v.bits.y, v.bits.z), next(v.bits.z, v.bits.w),
                      v.bits.w >> kBits % 32);
}

/// Element by element, in fp32 and rounded once more, as torch does.
template <class Element>
__device__ __forceinline__ Vec<Element> add(const Vec<Element>& a, const Vec<Element>& b) {
  float x[kVecSize<Element>], y[kVecSize<Element>];
  unpack(a, x);
  unpack(b, y);
#pragma unroll
  for (int j = 0; j < kVecSize<Element>; ++j) x[j] += y[j];
  return pack<Element>(x);
}

/// Read once by the whole grid: passes L1 by. `address` is 16-byte aligned, as in every function below.
template <class Element>
__device__ __forceinline__ Vec<Element> load_streaming(const Element* address) {
  return {ptx::ld_global_nc_no_allocate(reinterpret_cast<const uint4*>(address))};
}

/// Read by many blocks or many times: kept in L1.
template <class Element>
__device__ __forceinline__ Vec<Element> load_cached(const Element* address) {
  return {__ldg(reinterpret_cast<const uint4*>(address))};
}

/// Written once and read by a later kernel at the earliest.
template <class Element>
__device__ __forceinline__ void store_streaming(Element* address, Vec<Element> v) {
  ptx::st_global_no_allocate(reinterpret_cast<uint4*>(address), v.bits);
}

/// The sum of the products of 16-bit elements, pair by pair.
template <class Element>
__device__ __forceinline__ float dot(const Vec<Element>& x, const Vec<Element>& y) {
  float a[kVecSize<Element>], b[kVecSize<Element>], sum = 0.0f;
  unpack(x, a);
  unpack(y, b);
#pragma unroll
  for (int i = 0; i < kVecSize<Element>; i += 2) sum += a[i] * b[i] + a[i + 1] * b[i + 1];
  return sum;
}

}  // namespace plab::cuda
