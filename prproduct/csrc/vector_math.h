// exp, log, sigmoid and tanh that a compiler can vectorize in float32. In float64 they are the C library's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "stable.h"

namespace prproduct {

// exp(x) − 1 = 2ⁿ·(exp r − 1) + 2ⁿ − 1 with |r| ≤ ½ ln 2. The series keeps the relative accuracy near 0, where n = 0.
PRPRODUCT_INLINE float vector_expm1(float x) {
  constexpr float rounding = 12582912.0f;  // 1.5·2²³: added to a float, it leaves the nearest integer in the last bits
  x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  float shifted = x * 1.44269504f + rounding;
  float n = shifted - rounding;
  float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts: n times the first is exact
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = series * r * r + r;
  float power = std::bit_cast<float>((std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(rounding) + 127) << 23);
  return power * series + (power - 1.0f);
}

PRPRODUCT_INLINE float vector_exp(float x) { return vector_expm1(x) + 1.0f; }
PRPRODUCT_INLINE double vector_exp(double x) { return std::exp(x); }

// ln of a positive normal number: 2ᵏ·m with m in [√½, √2), and ln m = 2·artanh f with f = (m − 1)/(m + 1).
PRPRODUCT_INLINE float vector_log(float x) {
  int32_t bits = std::bit_cast<int32_t>(x);
  int32_t exponent = (bits - 0x3f3504f3) >> 23;  // 0x3f3504f3 is √½
  float m = std::bit_cast<float>(bits - (exponent << 23));
  float f = (m - 1.0f) / (m + 1.0f), z = f * f;
  float series = 1.0f / 9.0f;
  series = series * z + 1.0f / 7.0f;
  series = series * z + 1.0f / 5.0f;
  series = series * z + 1.0f / 3.0f;
  return float(exponent) * 0.693147181f + 2.0f * (f + f * z * series);
}
PRPRODUCT_INLINE double vector_log(double x) { return std::log(x); }

PRPRODUCT_INLINE float vector_sigmoid(float x) { return 1.0f / (2.0f + vector_expm1(-x)); }
PRPRODUCT_INLINE double vector_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

PRPRODUCT_INLINE float vector_tanh(float x) {
  float e = vector_expm1(-2.0f * std::fabs(x));  // in (−1, 0]: nothing overflows
  return std::copysign(e / (e + 2.0f), x);
}
PRPRODUCT_INLINE double vector_tanh(double x) { return std::tanh(x); }

}  // namespace prproduct
