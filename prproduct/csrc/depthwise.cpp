// The backward of a depthwise convolution. Native depthwise convolutions take no longer than a few passes over memory, so
// here all of it, the products too, is done plane by plane in the cache.
#include "convolution.h"

namespace prproduct {
namespace {

template <class T>
PRPRODUCT_CLONES T dot(int64_t count, const T* a, const T* b) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < count; ++k) sum += a[k] * b[k];
  return sum;
}

// The offsets of the kernel's taps in the frame, in the order of the weight.
std::vector<int64_t> tap_offsets(const Frame& frame) {
  std::vector<int64_t> offsets;
  for (int64_t d = 0; d < frame.kernel[0]; ++d) {
    for (int64_t h = 0; h < frame.kernel[1]; ++h) {
      for (int64_t w = 0; w < frame.kernel[2]; ++w) offsets.push_back(frame.offset_of_tap(d, h, w));
    }
  }
  return offsets;
}

// One input channel of one image, with all output channels that read it.
template <class S>
struct Plane {
  using T = Working<S>;
  const Convolution& call;
  const PairLoops<T>& loops;
  const WeightVectors<T>& weights;
  const std::vector<int64_t> offsets;
  WindowSums<T> sums;
  std::vector<T> input, output, grad, scaled, squares, norm, inverse, along, coefficients, result, taps;
  std::vector<T> input_frame, scaled_frame, result_frame;

  Plane(const Convolution& call_, const PairLoops<T>& loops_, const WeightVectors<T>& weights_)
      : call(call_), loops(loops_), weights(weights_), offsets(tap_offsets(call_.frame)), sums(call_.frame) {
    for (auto* of_input : {&input, &squares, &coefficients, &result}) of_input->resize(call.input_places);
    for (auto* of_output : {&output, &grad, &scaled, &norm, &inverse, &along}) of_output->resize(call.output_places);
    for (auto* of_frame : {&input_frame, &scaled_frame, &result_frame}) of_frame->resize(call.frame.numel());
    taps.resize(offsets.size());
  }

  // along_weight (out,), and dW of this image (out, taps); grad_input may be null
  void run(int64_t task, S* grad_input, double* along_weight, T* grad_weight) {
    int64_t channel = task % call.groups, in_places = call.input_places, out_places = call.output_places;
    const T* x = as_working(in_places, data<S>(call.input) + task * in_places, input.data());
    measure_windows(x);
    std::fill(along.begin(), along.end(), T(0));
    std::fill(result_frame.begin(), result_frame.end(), T(0));
    for (int64_t k = 0; k < call.out; ++k) {
      int64_t vector = channel * call.out + k, at = (task * call.out + k) * out_places;
      const T* y = as_working(out_places, data<S>(call.output) + at, output.data());
      const T* g = as_working(out_places, data<S>(call.grad) + at, grad.data());
      along_weight[k] = loops.plane(out_places, {y, g, scaled.data()}, norm.data(), inverse.data(), weights[vector],
                                    along.data(), loops.floor, loops.parameter);
      multiply(vector, g, grad_input != nullptr, grad_weight + k * offsets.size());
    }
    if (grad_input != nullptr) write_input_gradient(x, grad_input + task * in_places);
  }

 private:
  template <class U>
  static const U* data(const Tensor& t) {
    return static_cast<const U*>(t.data_ptr());
  }

  void measure_windows(const T* x) {
    call.frame.place_dense(x, input_frame.data());
    sum_squares_of_columns(1, call.input_places, x, squares.data());
    sums.gather(squares.data(), norm.data());
    for (int64_t k = 0; k < call.output_places; ++k) {
      Norm<T> window = Norm<T>::of(norm[k]);
      norm[k] = window.value, inverse[k] = window.inverse;
    }
  }

  // dW[tap] = Σ D·g · x[· + tap], dX[· + tap] += w[tap] · D·g; with g itself in the latter for a product of w alone.
  void multiply(int64_t vector, const T* g, bool wants_input, T* grad_weight) {
    const S* weight = data<S>(call.weight) + vector * offsets.size();
    int64_t count = call.frame.numel();
    call.frame.place_windows(scaled.data(), scaled_frame.data());
    for (size_t tap = 0; tap < offsets.size(); ++tap) {
      grad_weight[tap] = dot(count - offsets[tap], scaled_frame.data(), input_frame.data() + offsets[tap]);
    }
    if (!wants_input) return;
    if (loops.weight_only) call.frame.place_windows(g, scaled_frame.data());
    for (size_t tap = 0; tap < offsets.size(); ++tap) {
      add_multiple(count - offsets[tap], scaled_frame.data(), T(weight[tap]), result_frame.data() + offsets[tap]);
    }
  }

  void write_input_gradient(const T* x, S* to) {
    call.frame.take_dense(result_frame.data(), result.data());
    if (!loops.weight_only) {
      T largest = normalized_multiples(call.output_places, along.data(), inverse.data(), along.data());
      sums.scatter(along.data(), coefficients.data());
      add_along_each(call.input_places, x, coefficients.data(), largest, T(1), result.data());
    }
    if constexpr (std::is_same_v<S, T>) {
      std::copy(result.begin(), result.end(), to);
    } else {
      convert_out(call.input_places, result.data(), 1.0f, to);
    }
  }
};

template <class S>
std::pair<Tensor, Tensor> backward(const Convolution& call, const ProductCall& product, bool wants_input,
                                   bool wants_weight) {
  using T = Working<S>;
  auto loops = backward_loops<T>(product);
  auto weights = weight_vectors<S>(call, product.floor);
  Tensor grad_input = wants_input ? new_empty(sizes_of(call.input), call.input) : Tensor();
  S* of_input = wants_input ? static_cast<S*>(grad_input.data_ptr()) : nullptr;
  int64_t tasks = call.batch * call.groups, numbers = call.weight.numel();
  std::vector<double> along_weight(tasks * call.out);
  T* partial = workspace<T>(Buffer::partial_sums, call.batch * numbers);  // dW of each image
  parallel_for(tasks, (call.input_places + call.output_places) * 8, [&](int64_t begin, int64_t end) {
    Plane<S> plane(call, loops, weights);
    for (int64_t task = begin; task < end; ++task) {
      plane.run(task, of_input, &along_weight[task * call.out], partial + task * (numbers / call.groups));
    }
  });
  if (!wants_weight) return {grad_input, Tensor()};
  Tensor grad_weight = new_empty(sizes_of(call.weight), call.weight);
  S* of_weight = static_cast<S*>(grad_weight.data_ptr());
  std::vector<double> sums(numbers);
  for (int64_t n = 0; n < call.batch; ++n) {
    for (int64_t k = 0; k < numbers; ++k) sums[k] += partial[n * numbers + k];
  }
  for (int64_t k = 0; k < numbers; ++k) of_weight[k] = S(T(sums[k]));
  add_along_weights(call, weights, along_weight, T(1), of_weight);
  return {grad_input, grad_weight};
}

}  // namespace

std::pair<Tensor, Tensor> depthwise_backward(const Convolution& call, const ProductCall& product, bool wants_input,
                                             bool wants_weight) {
  return dispatch_dtype(call.grad.scalar_type(), [&](auto stored) {
    return backward<decltype(stored)>(call, product, wants_input, wants_weight);
  });
}

}  // namespace prproduct
