// The backward of a depthwise convolution, which runs no native backward: a native depthwise convolution takes no longer
// than a few passes over memory, so all of it, the products too, is computed here plane by plane in the cache.
#include "convolution.h"

namespace prproduct {
namespace {

// sums[i] = Σ a·b[i]. Three taps at a time read a once, and their sums do not wait for each other.
template <class T>
PRPRODUCT_CLONES void dot_three(int64_t count, const T* a, std::array<const T*, 3> b, T* sums) {
  const T *b0 = b[0], *b1 = b[1], *b2 = b[2];
  T sum0 = 0, sum1 = 0, sum2 = 0;
#pragma omp simd reduction(+ : sum0, sum1, sum2)
  for (int64_t k = 0; k < count; ++k) {
    sum0 += a[k] * b0[k];
    sum1 += a[k] * b1[k];
    sum2 += a[k] * b2[k];
  }
  sums[0] = sum0, sums[1] = sum1, sums[2] = sum2;
}

// to += Σ_i from[i]·factors[i]
template <class T>
PRPRODUCT_CLONES void add_three(int64_t count, std::array<const T*, 3> from, std::array<T, 3> factors, T* to) {
  const T *from0 = from[0], *from1 = from[1], *from2 = from[2];
  T factor0 = factors[0], factor1 = factors[1], factor2 = factors[2];
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) to[k] += from0[k] * factor0 + from1[k] * factor1 + from2[k] * factor2;
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
  std::vector<T> input, output, grad, scaled, squares, norm, inverse, along, coefficients, result;
  std::vector<T> input_frame, scaled_frame, result_frame;
  int64_t reach;  // the largest offset of a tap

  Plane(const Convolution& call_, const PairLoops<T>& loops_, const WeightVectors<T>& weights_)
      : call(call_), loops(loops_), weights(weights_), offsets(tap_offsets(call_.frame)), sums(call_.frame) {
    for (auto* of_input : {&input, &squares, &coefficients, &result}) of_input->resize(call.input_places);
    for (auto* of_output : {&output, &grad, &scaled, &norm, &inverse, &along}) of_output->resize(call.output_places);
    for (auto* of_frame : {&input_frame, &result_frame}) of_frame->resize(call.frame.numel());
    reach = offsets.back();
    scaled_frame.resize(reach + call.frame.numel());  // zeros in front, so that a tap may read before the first window
  }

  // along_weight (out,), and dW of this image (out, taps); grad_input may be null
  void run(int64_t task, S* grad_input, double* along_weight, T* grad_weight) {
    int64_t channel = task % call.groups, in_places = call.input_places, out_places = call.output_places;
    const T* x = as_working(in_places, data_of<S>(call.input) + task * in_places, input.data());
    measure_windows(x);
    std::fill(along.begin(), along.end(), T(0));
    std::fill(result_frame.begin(), result_frame.end(), T(0));
    for (int64_t k = 0; k < call.out; ++k) {
      int64_t vector = channel * call.out + k, at = (task * call.out + k) * out_places;
      const T* y = as_working(out_places, data_of<S>(call.output) + at, output.data());
      const T* g = as_working(out_places, data_of<S>(call.grad) + at, grad.data());
      along_weight[k] = loops.plane(out_places, {y, g, scaled.data()}, norm.data(), inverse.data(), weights[vector],
                                    along.data(), loops.floor, loops.parameter);
      multiply(vector, g, grad_input != nullptr, grad_weight + k * offsets.size());
    }
    if (grad_input != nullptr) write_input_gradient(x, grad_input + task * in_places);
  }

 private:
  void measure_windows(const T* x) {
    call.frame.place_dense(x, input_frame.data());
    sum_squares_of_columns(1, call.input_places, x, squares.data());
    sums.gather(squares.data(), norm.data());
    norms_of_squares(call.output_places, norm.data(), inverse.data());
  }

  // dW[tap] = Σ D∘g · x[· + tap], dX[· + tap] += w[tap] · D∘g; the latter with g itself if the product changes dW alone.
  void multiply(int64_t vector, const T* g, bool wants_input, T* grad_weight) {
    const S* weight = data_of<S>(call.weight) + vector * offsets.size();
    T* windows = scaled_frame.data() + reach;
    call.frame.place_windows(scaled.data(), windows);
    for_three_taps([&](int64_t tap, std::array<int64_t, 3> offset, int64_t count) {
      const T* x = input_frame.data();
      T sums[3];
      dot_three(call.frame.numel() - reach, windows, {x + offset[0], x + offset[1], x + offset[2]}, sums);
      std::copy_n(sums, count, grad_weight + tap);
    });
    if (!wants_input) return;
    if (loops.weight_only) call.frame.place_windows(g, windows);
    for_three_taps([&](int64_t tap, std::array<int64_t, 3> offset, int64_t count) {
      std::array<T, 3> factors{};
      for (int64_t k = 0; k < count; ++k) factors[k] = T(weight[tap + k]);
      add_three<T>(call.frame.numel(), {windows - offset[0], windows - offset[1], windows - offset[2]}, factors,
                   result_frame.data());
    });
  }

  // Calls f(first tap, offsets of three taps, count) for all taps; the last call may have a count of less than three.
  template <class F>
  void for_three_taps(const F& f) const {
    int64_t taps = offsets.size();
    for (int64_t tap = 0; tap < taps; tap += 3) {
      f(tap, {offsets[tap], offsets[std::min(tap + 1, taps - 1)], offsets[std::min(tap + 2, taps - 1)]},
        std::min<int64_t>(3, taps - tap));
    }
  }

  void write_input_gradient(const T* x, S* to) {
    call.frame.take_dense(result_frame.data(), result.data());
    if (!loops.weight_only) {
      T largest = normalize_multiples(call.output_places, inverse.data(), along.data());
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

}  // namespace

template <class S>
std::pair<Tensor, Tensor> depthwise_backward(const Convolution& call, const WeightVectors<Working<S>>& weights,
                                             const PairLoops<Working<S>>& loops, bool wants_input, bool wants_weight) {
  using T = Working<S>;
  Tensor grad_input = wants_input ? new_empty(sizes_of(call.input), call.input) : Tensor();
  S* grad_input_data = wants_input ? data_of<S>(grad_input) : nullptr;
  int64_t tasks = call.batch * call.groups, numbers = call.weight.numel();
  std::vector<double> along_weight(tasks * call.out);
  T* partial = workspace<T>(Buffer::partial_sums, call.batch * numbers);  // dW of each image
  parallel_for(tasks, (call.input_places + call.output_places) * 4 * kPairWork, [&](int64_t begin, int64_t end) {
    Plane<S> plane(call, loops, weights);
    for (int64_t task = begin; task < end; ++task) {
      plane.run(task, grad_input_data, &along_weight[task * call.out], partial + task * (numbers / call.groups));
    }
  });
  if (!wants_weight) return {grad_input, Tensor()};
  std::vector<double> sums(numbers);
  for (int64_t n = 0; n < call.batch; ++n) {
    for (int64_t k = 0; k < numbers; ++k) sums[k] += partial[n * numbers + k];
  }
  std::vector<T> total(sums.begin(), sums.end());  // Σ D∘g·x may overflow float16 where dW does not
  add_along_weights<S>(call, weights, along_weight, T(1), total.data());
  Tensor grad_weight = new_empty(sizes_of(call.weight), call.weight);
  S* grad_weight_data = data_of<S>(grad_weight);
  for (int64_t k = 0; k < numbers; ++k) grad_weight_data[k] = stored<S>(total[k]);
  return {grad_input, grad_weight};
}

using Gradients = std::pair<Tensor, Tensor>;
template Gradients depthwise_backward<float>(const Convolution&, const WeightVectors<float>&, const PairLoops<float>&,
                                             bool, bool);
template Gradients depthwise_backward<double>(const Convolution&, const WeightVectors<double>&,
                                              const PairLoops<double>&, bool, bool);
template Gradients depthwise_backward<BFloat16>(const Convolution&, const WeightVectors<float>&,
                                                const PairLoops<float>&, bool, bool);
template Gradients depthwise_backward<Half>(const Convolution&, const WeightVectors<float>&, const PairLoops<float>&,
                                            bool, bool);

}  // namespace prproduct
