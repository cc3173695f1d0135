// The pair loop: what every product does with one pair of a weight vector w and a data vector x (ops/rule.py has the
// equations). From p = w·x, the norms and the gradient g of the output it computes
//
//     scaled = D·g                      goes through the native backward
//     along  = (L − D)·cos θ·g          its sums, times the other vector's norm, are added along w and along x
//
// To add a product, write a struct with its gains and name it in `Products`.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "stable.h"
#include "vector_math.h"

namespace prproduct {

template <class T>
struct Angle {
  T cos;          // 0 for a zero vector
  T sin_square;   // (1 − cos)(1 + cos)
  T inverse_sin;  // 1/|sin θ|, or 1 where the angle is not resolved

  PRPRODUCT_INLINE T sin() const {  // as products.Pair.sin
    constexpr T eps = std::numeric_limits<T>::epsilon();
    return std::sqrt(sin_square > 4 * eps ? sin_square : eps * eps);
  }
};

template <class T>
struct Gains {
  T length, direction;
};

// A product: its name in products.py, its gains, and whether ∂/∂x is the inner product's. `parameter` is the power of
// `tempered`, and of no meaning elsewhere.
struct PR {
  static constexpr const char* name = "pr";
  static constexpr bool weight_only = false;
  template <class T>
  PRPRODUCT_INLINE static Gains<T> gains(Angle<T> angle, T) {
    return {1, angle.inverse_sin};
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
  PRPRODUCT_INLINE static Gains<T> gains(Angle<T> angle, T) {
    return {value(angle), std::abs(angle.cos) * angle.inverse_sin};
  }
  template <class T>
  PRPRODUCT_INLINE static T value(Angle<T> angle) {  // the forward, as a multiple of p
    return std::abs(angle.cos) / (1 + angle.sin());
  }
};

struct Tempered {
  static constexpr const char* name = "tempered";
  static constexpr bool weight_only = false;
  template <class T>
  PRPRODUCT_INLINE static Gains<T> gains(Angle<T> angle, T power) {
    return {1, vector_exp(power * vector_log(angle.inverse_sin))};
  }
};

struct NoLength {
  static constexpr const char* name = "no-length";
  static constexpr bool weight_only = true;
  template <class T>
  PRPRODUCT_INLINE static Gains<T> gains(Angle<T>, T) {
    return {0, 1};
  }
};

struct NoDirection {
  static constexpr const char* name = "no-direction";
  static constexpr bool weight_only = false;
  template <class T>
  PRPRODUCT_INLINE static Gains<T> gains(Angle<T>, T) {
    return {1, 0};
  }
};

struct NoDirectionW : NoDirection {
  static constexpr const char* name = "no-direction-w";
  static constexpr bool weight_only = true;
};

using Products = std::tuple<PR, PRW, R, Tempered, NoLength, NoDirection, NoDirectionW>;

// The forward of a product as a pair loop: with g = p, `scaled` is the value.
template <class Product>
struct Forward {
  static constexpr const char* name = Product::name;
  static constexpr bool weight_only = true;
  template <class T>
  PRPRODUCT_INLINE static Gains<T> gains(Angle<T> angle, T) {
    T value = Product::value(angle);
    return {value, value};
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

// The output and its gradient, read; D·g, written. All of the working type.
template <class T>
struct PairData {
  const T* output;
  const T* grad;
  T* scaled;
};

template <class T, class Product>
PRPRODUCT_INLINE T split_pair(T p, T g, Norm<T> x, WeightVector<T> w, T floor, T parameter, T& scaled) {
  T rough = p * x.inverse * w.inverse;  // one norm after the other: their product may overflow
  T cos = rough > 1 ? T(1) : (rough < -1 ? T(-1) : rough);
  cos = rough == rough ? cos : T(0);  // NaN has no angle
  T sin_square = (1 - cos) * (1 + cos);
  bool resolved = sin_square > floor + w.excess * x.inverse;
  T inverse_sin = 1 / std::sqrt(resolved ? sin_square : T(1));
  Gains<T> gains = Product::gains(Angle<T>{cos, sin_square, inverse_sin}, parameter);
  scaled = gains.direction * g;
  return (gains.length * g - scaled) * cos;
}

// The numbers of many weight vectors, one array each.
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
};

// One data vector with `count` weight vectors from the k-th on: along_weight += along·‖x‖; returns Σ along·‖w‖.
template <class T, class Product>
PRPRODUCT_CLONES T split_row(int64_t count, PairData<T> data, Norm<T> x, const WeightVectors<T>& weights, int64_t first,
                             T* along_weight, T floor, T parameter) {
  const T *norm = weights.norm.data() + first, *inverse = weights.inverse.data() + first;
  const T *excess = weights.excess.data() + first, *bias = weights.bias.data() + first;
  const T *output = data.output, *grad = data.grad;
  T *out = data.scaled, sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < count; ++k) {
    WeightVector<T> w{norm[k], inverse[k], excess[k], bias[k]};
    T scaled, along = split_pair<T, Product>(output[k] - w.bias, grad[k], x, w, floor, parameter, scaled);
    out[k] = scaled;
    along_weight[k] += along * x.value;
    sum += along * w.norm;
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
    T scaled, along = split_pair<T, Product>(output[k] - w.bias, grad[k], Norm<T>{norm[k], inverse[k]}, w, floor,
                                             parameter, scaled);
    out[k] = scaled;
    along_input[k] += along * w.norm;
    sum += along * norm[k];
  }
  return sum;
}

// The loops of one product, chosen by its name.
template <class T>
struct PairLoops {
  decltype(&split_row<T, PR>) row = nullptr;
  decltype(&split_plane<T, PR>) plane = nullptr;
  bool weight_only = false;
  T parameter = 0, floor = 0;
};

struct ProductCall {
  std::string name;
  double parameter;  // the power of `tempered`
  double floor;      // up to which sin² θ an angle counts as unresolved
};

// The loops of a product's backward, and of its forward if that is not the inner product. T is float or double.
template <class T>
PairLoops<T> backward_loops(const ProductCall& product);
template <class T>
PairLoops<T> forward_loops(const ProductCall& product);

std::vector<std::string> product_names();

}  // namespace prproduct
