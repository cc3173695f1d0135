// A convolution's operands and geometry, checked, in one of two memory layouts.
#pragma once

#include "windows.h"

namespace prproduct {

struct Geometry {
  Sizes stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;
};

struct Convolution {
  Tensor grad, input, weight, output;  // contiguous, or all but the weight channels last
  std::optional<Tensor> bias;
  Geometry geometry;
  bool channels_last;  // never with several groups
  Frame frame;
  int64_t batch, groups, in, out;         // channels of one group
  int64_t input_places, output_places;    // spatial positions of one channel
  int64_t weight_pieces, piece_length;    // contiguous parts of the weight vectors

  Convolution(const Tensor& grad, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
              const Tensor& output, const Geometry& geometry);

  bool is_depthwise() const { return groups > 1 && in == 1 && !geometry.transposed; }

  // Which weight vector a contiguous part of the weight belongs to.
  int64_t vector_of(int64_t piece) const {
    return geometry.transposed ? piece / (in * out) * out + piece % out : piece;
  }

  // Sums over windows of the input for every output place, and their transpose.
  template <class T>
  void to_output(WindowSums<T>& sums, const T* from, T* to) const {
    geometry.transposed ? sums.scatter(from, to) : sums.gather(from, to);
  }
  template <class T>
  void to_input(WindowSums<T>& sums, const T* from, T* to) const {
    geometry.transposed ? sums.gather(from, to) : sums.scatter(from, to);
  }

  Tensor in_layout(const Tensor& t) const;  // t itself where it has this layout already
  Tensor view_like(void* data, const Tensor& t) const;  // `data` as a tensor of the shape of t
  Tensor native_value() const;  // p, by ATen
  std::pair<Tensor, Tensor> native_backward(const Tensor& grad, bool wants_input, bool wants_weight) const;
};

template <class S>
WeightVectors<Working<S>> weight_vectors(const Convolution& call, double floor) {
  using T = Working<S>;
  const S* weight = data_of<S>(call.weight);
  const S* bias = call.bias ? data_of<S>(*call.bias) : nullptr;
  std::vector<T> squares(call.groups * call.out);
  for (int64_t piece = 0; piece < call.weight_pieces; ++piece) {
    squares[call.vector_of(piece)] += sum_of_squares(call.piece_length, weight + piece * call.piece_length);
  }
  WeightVectors<T> weights(squares.size());
  for (size_t k = 0; k < squares.size(); ++k) {
    weights.set(k, squares[k], bias ? T(bias[k]) : T(0), floor, T(std::numeric_limits<S>::min()));
  }
  return weights;
}

// along = along/‖x‖/scale, where the returned `scale` is the largest |along|: the sum of along/‖x‖ over the windows that
// cover an input place may overflow where its product with x does not.
template <class T>
PRPRODUCT_CLONES T normalize_multiples(int64_t count, const T* inverse, T* along) {
  T scale = largest_of(count, along);
  scale = scale < std::numeric_limits<T>::infinity() ? std::max(scale, std::numeric_limits<T>::min()) : T(1);
  T inverse_scale = 1 / scale;
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) along[k] = along[k] * inverse_scale * inverse[k];
  return scale;
}

// grad_weight = grad_weight·unscale + w/‖w‖·Σ_n along[n], where `along` is (batch, weight vectors)
template <class S, class To>
void add_along_weights(const Convolution& call, const WeightVectors<Working<S>>& weights,
                       const std::vector<double>& along, Working<S> unscale, To* grad_weight) {
  using T = Working<S>;
  int64_t vectors = call.groups * call.out;
  std::vector<T> sums(vectors);
  for (int64_t k = 0; k < vectors; ++k) {
    double sum = 0;
    for (int64_t n = 0; n < call.batch; ++n) sum += along[n * vectors + k];
    sums[k] = T(sum);
  }
  const S* weight = data_of<S>(call.weight);
  for (int64_t piece = 0; piece < call.weight_pieces; ++piece) {
    int64_t k = call.vector_of(piece), at = piece * call.piece_length;
    add_along(call.piece_length, weight + at, weights.inverse[k], sums[k], unscale, grad_weight + at);
  }
}

// The whole backward of a depthwise convolution, plane by plane (depthwise.cpp).
template <class S>
std::pair<Tensor, Tensor> depthwise_backward(const Convolution& call, const WeightVectors<Working<S>>& weights,
                                             const PairLoops<Working<S>>& loops, bool wants_input, bool wants_weight);

}  // namespace prproduct
