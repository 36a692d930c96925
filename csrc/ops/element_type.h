// SPDX-License-Identifier: Apache-2.0
// The element types that kernels support. Host code and .cu files both include this file, so it does not depend
// on torch.
#pragma once

#include <bit>
#include <cstdint>

namespace plab::ops {

enum class ElementType { kFloat32, kFloat64, kBFloat16, kFloat16 };

// 16-bit floats on the host, as their bits. Arithmetic happens in float; device code uses CUDA's own types.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t wide = std::bit_cast<uint32_t>(value);
    const uint32_t round = 0x7fff + ((wide >> 16) & 1);  // to nearest, ties to even
    bits = static_cast<uint16_t>(value != value ? 0x7fc0 : (wide + round) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

struct Half {
  uint16_t bits;

  Half() = default;
  explicit Half(float value) {
    const uint32_t wide = std::bit_cast<uint32_t>(value);
    const uint16_t sign = (wide >> 16) & 0x8000;
    const float magnitude = std::bit_cast<float>(wide & 0x7fffffff);
    uint32_t half;
    if (!(magnitude < 65520.0f)) {
      half = value != value ? 0x7e00 : 0x7c00;  // what rounds beyond 65504 is infinite
    } else if (magnitude < 6.103515625e-5f) {
      half = std::bit_cast<uint32_t>(magnitude + 0.5f) &
             0x3ff;  // below the normal range: the add rounds to 2^-24
      if (magnitude + 0.5f >= 0.5f + 6.103515625e-5f) half = 0x400;
    } else {
      const uint32_t bits32 = std::bit_cast<uint32_t>(magnitude);
      half = (bits32 + 0xfff + ((bits32 >> 13) & 1) - (112u << 23)) >>
             13;  // exponent bias 127 -> 15, ties to even
    }
    bits = static_cast<uint16_t>(sign | half);
  }
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t rest = bits & 0x7fff;
    float magnitude;
    if (rest >= 0x7c00) {
      magnitude = std::bit_cast<float>(0x7f800000u | (rest & 0x3ff) << 13);  // infinity, NaN
    } else if (rest >= 0x400) {
      magnitude = std::bit_cast<float>((rest << 13) + (112u << 23));
    } else {
      magnitude = static_cast<float>(rest) * 5.9604644775390625e-8f;  // 2^-24 each
    }
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
};

template <class T>
struct Tag {
  using type = T;
};

// What sums are kept in: float, or double for double.
template <class T>
struct AccumOf {
  using type = float;
};
template <>
struct AccumOf<double> {
  using type = double;
};
template <class T>
using Accum = typename AccumOf<T>::type;

// Calls function(Tag<T>{}) with the host type that stands for `type`.
template <class Function>
decltype(auto) dispatch_host(ElementType type, Function&& function) {
  switch (type) {
    case ElementType::kFloat64:
      return function(Tag<double>{});
    case ElementType::kBFloat16:
      return function(Tag<BFloat16>{});
    case ElementType::kFloat16:
      return function(Tag<Half>{});
    default:
      return function(Tag<float>{});
  }
}

}  // namespace plab::ops
