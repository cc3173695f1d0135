// The pair loop: what every product does with one pair of a weight vector w and a data vector x (ops/rule.py has the
// equations). From p = w·x, the norms and the gradient g of the output it computes
//
//     scaled = D∘g                      goes through the native backward
//     along  = (L − D)·cos θ·g          its sums, times the other vector's norm, are added along w and along x
//
// To add a product, write a struct with its gains and list it in `Products`. CONTRIBUTING.md names the other files.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "stable.h"
#include "vector_math.h"

namespace prproduct {

// A product: its name in products.py, its gains L and D, and whether ∂/∂x is the inner product's. Gains are functions of
// cos θ (0 for a zero vector), 1/|sin θ| (1 where the angle is not resolved) and the power of `tempered`. They are scalar
// functions without branches, so that the loops below are vectorized; structs of numbers would prevent it.
struct PR {
  static constexpr const char* name = "pr";
  static constexpr bool weight_only = false;
  template <class T>
  PRPRODUCT_INLINE static T length(T, T, T) {
    return 1;
  }
  template <class T>
  PRPRODUCT_INLINE static T direction(T, T inverse_sin, T) {
    return inverse_sin;
  }
};

struct PRW : PR {
  static constexpr const char* name = "pr-w";
  static constexpr bool weight_only = true;
};

struct R {
  static constexpr const char* name = "r";
  static constexpr bool weight_only = false;
  template <class T>
  PRPRODUCT_INLINE static T length(T cos, T, T) {  // also the forward, as a multiple of p
    constexpr T eps = std::numeric_limits<T>::epsilon();
    T sin_square = (1 - cos) * (1 + cos);
    return std::abs(cos) / (1 + std::sqrt(sin_square > 4 * eps ? sin_square : eps * eps));
  }
  template <class T>
  PRPRODUCT_INLINE static T direction(T cos, T inverse_sin, T) {
    return std::abs(cos) * inverse_sin;
  }
};

struct Tempered : PR {
  static constexpr const char* name = "tempered";
  template <class T>
  PRPRODUCT_INLINE static T direction(T, T inverse_sin, T power) {
    return vector_exp(power * vector_log(inverse_sin));
  }
};

struct NoLength {
  static constexpr const char* name = "no-length";
  static constexpr bool weight_only = true;
  template <class T>
  PRPRODUCT_INLINE static T length(T, T, T) {
    return 0;
  }
  template <class T>
  PRPRODUCT_INLINE static T direction(T, T, T) {
    return 1;
  }
};

struct NoDirection : PR {
  static constexpr const char* name = "no-direction";
  template <class T>
  PRPRODUCT_INLINE static T direction(T, T, T) {
    return 0;
  }
};

struct NoDirectionW : NoDirection {
  static constexpr const char* name = "no-direction-w";
  static constexpr bool weight_only = true;
};

using Products = std::tuple<PR, PRW, R, Tempered, NoLength, NoDirection, NoDirectionW>;

// The forward of a product that has its own, L·p, as a pair loop with D = L: with g = p, `scaled` is that value.
template <class Product>
struct Forward : Product {
  template <class T>
  PRPRODUCT_INLINE static T direction(T cos, T inverse_sin, T power) {
    return Product::length(cos, inverse_sin, power);
  }
};
using Forwards = std::tuple<Forward<R>>;

// A vector's norm and its inverse, both 0 for a zero vector and for one whose square overflows.
template <class T>
struct Norm {
  T value, inverse;

  PRPRODUCT_INLINE static Norm of(T square) {
    bool positive = square > 0 && square < std::numeric_limits<T>::infinity();
    T norm = std::sqrt(positive ? square : T(1));
    return {positive ? norm : T(0), positive ? 1 / norm : T(0)};
  }
};

// What the loop knows of a weight vector. `excess`/‖x‖ raises the floor: p was rounded together with the bias, and in
// steps that shrink no further below the smallest normal number.
template <class T>
struct WeightVector {
  T norm, inverse, excess, bias;
};

// The output and its gradient, which are read, and D∘g, which is written. S is the stored or the working type.
template <class S>
struct PairData {
  const S* output;
  const S* grad;
  S* scaled;

  PairData at(int64_t offset) const { return {output + offset, grad + offset, scaled + offset}; }
};

template <class T>
PRPRODUCT_INLINE T cosine(T p, T x_inverse, T w_inverse) {
  T rough = p * x_inverse * w_inverse;  // one norm after the other: their product may overflow
  T cos = rough > 1 ? T(1) : (rough < -1 ? T(-1) : rough);
  return rough == rough ? cos : T(0);  // NaN has no angle
}

template <class T>
PRPRODUCT_INLINE T inverse_sine(T cos, T floor) {
  T sin_square = (1 - cos) * (1 + cos);
  return 1 / std::sqrt(sin_square > floor ? sin_square : T(1));
}

// `WeightVector` of all weight vectors of a layer, as one array for each member.
template <class T>
struct WeightVectors {
  std::vector<T> norm, inverse, excess, bias;

  explicit WeightVectors(int64_t count) : norm(count), inverse(count), excess(count), bias(count) {}

  WeightVector<T> operator[](int64_t k) const { return {norm[k], inverse[k], excess[k], bias[k]}; }

  // `tiny` is the smallest normal number of the type that the output is stored in.
  void set(int64_t k, T square, T bias_of_k, T floor, T tiny) {
    Norm<T> w = Norm<T>::of(square);
    T rounded = (std::abs(bias_of_k) + tiny) * w.inverse;
    // Products with subnormal numbers would take a CPU several times as long.
    T negligible = std::sqrt(std::numeric_limits<T>::min()) / 1024;
    norm[k] = w.value;
    inverse[k] = w.inverse;
    excess[k] = rounded > negligible ? rounded * floor : T(0);
    bias[k] = bias_of_k;
  }

  // True if the bias is so large that output − bias has lost p, and p is worth computing again. Also true for NaN.
  bool bias_dominates(double mean_input_norm) const {
    double biases = 0, norms = 0;
    for (T b : bias) biases += std::abs(b);
    for (T n : norm) norms += n;
    return !(biases <= 2 * norms * mean_input_norm);
  }
};

// One data vector with `count` weight vectors from number `first` on: along_weight += along·‖x‖; returns Σ along·‖w‖.
template <class T, class Product>
PRPRODUCT_CLONES T split_row(int64_t count, PairData<T> data, Norm<T> x, const WeightVectors<T>& weights, int64_t first,
                             T* along_weight, T floor, T parameter) {
  const T *norm = weights.norm.data() + first, *inverse = weights.inverse.data() + first;
  const T *excess = weights.excess.data() + first, *bias = weights.bias.data() + first;
  const T *output = data.output, *grad = data.grad;
  T *out = data.scaled, sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < count; ++k) {
    T cos = cosine(output[k] - bias[k], x.inverse, inverse[k]);
    T inverse_sin = inverse_sine(cos, floor + excess[k] * x.inverse);
    T scaled = Product::direction(cos, inverse_sin, parameter) * grad[k];
    T along = (Product::length(cos, inverse_sin, parameter) * grad[k] - scaled) * cos;
    out[k] = scaled;
    along_weight[k] += along * x.value;
    sum += along * norm[k];
  }
  return sum;
}

// One weight vector with `count` data vectors: along_input += along·‖w‖; returns Σ along·‖x‖.
template <class T, class Product>
PRPRODUCT_CLONES T split_plane(int64_t count, PairData<T> data, const T* norm, const T* inverse, WeightVector<T> w,
                               T* along_input, T floor, T parameter) {
  const T *output = data.output, *grad = data.grad;
  T *out = data.scaled, sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < count; ++k) {
    T cos = cosine(output[k] - w.bias, inverse[k], w.inverse);
    T inverse_sin = inverse_sine(cos, floor + w.excess * inverse[k]);
    T scaled = Product::direction(cos, inverse_sin, parameter) * grad[k];
    T along = (Product::length(cos, inverse_sin, parameter) * grad[k] - scaled) * cos;
    out[k] = scaled;
    along_input[k] += along * w.norm;
    sum += along * norm[k];
  }
  return sum;
}

// The loops of one product, with the arguments that all their calls share.
template <class T>
struct PairLoops {
  decltype(&split_row<T, PR>) row = nullptr;
  decltype(&split_plane<T, PR>) plane = nullptr;
  bool weight_only = false;
  T parameter = 0, floor = 0;
};

// The arguments that tell an operator which product it computes.
struct ProductCall {
  std::string name;
  double parameter;  // the power of `tempered`
  double floor;      // the value of sin² θ up to which an angle counts as unresolved
};

// The loops of a product's backward, and of its forward if that is not the inner product. T is float or double.
template <class T>
PairLoops<T> backward_loops(const ProductCall& product);
template <class T>
PairLoops<T> forward_loops(const ProductCall& product);

}  // namespace prproduct
