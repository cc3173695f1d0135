// The backward of a linear layer under a product, and the value of a product that has its own.
#include "vectors.h"

namespace prproduct {
namespace {

struct Linear {
  Tensor grad, input, weight;  // (rows, out), (rows, in), (out, in), contiguous
  std::optional<Tensor> bias;  // (out,)
  Tensor output;               // (rows, out)
  int64_t rows, in, out;

  Linear(const Tensor& grad_, const Tensor& input_, const Tensor& weight_, const std::optional<Tensor>& bias_,
         const Tensor& output_) {
    check(grad_.dim() == 2 && input_.dim() == 2 && weight_.dim() == 2,
          "grad (rows, out), input (rows, in) and weight (out, in) must have 2 dimensions");
    ScalarType dtype = grad_.scalar_type();
    rows = input_.size(0), in = input_.size(1), out = weight_.size(0);
    check_tensor(grad_, "grad", {rows, out}, dtype);
    check_tensor(input_, "input", {rows, in}, dtype);
    check_tensor(weight_, "weight", {out, in}, dtype);
    check_tensor(output_, "output", {rows, out}, dtype);
    if (bias_) check_tensor(*bias_, "bias", {out}, dtype), bias = as_contiguous(*bias_);
    grad = as_contiguous(grad_), input = as_contiguous(input_);
    weight = as_contiguous(weight_), output = as_contiguous(output_);
  }
};

template <class S>
WeightVectors<Working<S>> weight_vectors(const Linear& call, double floor) {
  WeightVectors<Working<S>> weights(call.out);
  const S* weight = data_of<S>(call.weight);
  const S* bias = call.bias ? data_of<S>(*call.bias) : nullptr;
  parallel_for(call.out, call.in, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      weights.set(k, sum_of_squares(call.in, weight + k * call.in), bias ? Working<S>(bias[k]) : 0, floor,
                  Working<S>(std::numeric_limits<S>::min()));
    }
  });
  return weights;
}

template <class S>
std::vector<Norm<Working<S>>> row_norms(const Linear& call) {
  std::vector<Norm<Working<S>>> norms(call.rows);
  const S* input = data_of<S>(call.input);
  parallel_for(call.rows, call.in, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      norms[n] = Norm<Working<S>>::of(sum_of_squares(call.in, input + n * call.in));
    }
  });
  return norms;
}

template <class T>
double mean_of(const std::vector<Norm<T>>& norms) {
  double sum = 0;
  for (const Norm<T>& norm : norms) sum += norm.value;
  return sum / double(norms.size());
}

// The split of a gradient: D∘g, and the sums that are added along data vectors and along weight vectors. Rows are taken in
// blocks of a fixed size, each with sums of its own for the weight vectors, so that results do not depend on the number of
// threads.
template <class S>
struct RowSplit {
  using T = Working<S>;
  static constexpr int64_t kBlock = 32;

  int64_t rows, out;
  PairData<S> pairs;
  T scale;                       // of the stored D∘g
  std::vector<T> along_rows;     // (rows,): Σ_j (L − D)·cos θ·g·‖w_j‖
  std::vector<T> along_weights;  // (out,): Σ_n (L − D)·cos θ·g·‖x_n‖

  RowSplit(const Linear& call, PairData<S> pairs_, T scale_)
      : rows(call.rows), out(call.out), pairs(pairs_), scale(scale_), along_rows(rows), along_weights(out) {}

  void run(const PairLoops<T>& loops, const std::vector<Norm<T>>& norms, const WeightVectors<T>& weights) {
    int64_t blocks = (rows + kBlock - 1) / kBlock;
    T* partial = workspace<T>(Buffer::partial_sums, blocks * out);
    parallel_for(blocks, kBlock * out * kPairWork, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        T* sums = partial + block * out;
        std::fill_n(sums, out, T(0));
        for (int64_t n = block * kBlock; n < std::min(rows, (block + 1) * kBlock); ++n) {
          along_rows[n] = split_stored_row(loops, out, pairs.at(n * out), scale, norms[n], weights, sums);
        }
      }
    });
    sum_blocks(blocks, partial);
  }

  void sum_blocks(int64_t blocks, const T* partial) {
    constexpr int64_t columns = 256;
    parallel_for((out + columns - 1) / columns, blocks * columns, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * columns; first < std::min(out, end * columns); first += columns) {
        int64_t size = std::min(columns, out - first);
        double sums[columns] = {};
        for (int64_t block = 0; block < blocks; ++block) {
          for (int64_t k = 0; k < size; ++k) sums[k] += partial[block * out + first + k];
        }
        std::copy_n(sums, size, along_weights.begin() + first);
      }
    });
  }
};

// a @ b / scale, plus the correction v/‖v‖·sum(n) in each row n, where v is row n of `vectors`. float32 and float64 write
// the correction first and have the product added to it, which saves a pass. Half types are corrected behind the product,
// in float32: rounding both would double the error.
template <class S, class Inverse>
Tensor corrected_mm(const Tensor& a, const Tensor& b, Working<S> scale, const Tensor& vectors, const Inverse& inverse,
                    const std::vector<Working<S>>& sums) {
  constexpr bool write_first = std::is_same_v<S, Working<S>>;
  int64_t length = b.size(1);
  Tensor result = write_first ? new_empty({a.size(0), length}, b) : mm(a, b);
  const S* from = data_of<S>(vectors);
  S* to = data_of<S>(result);
  parallel_for(a.size(0), 3 * length, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      int64_t at = n * length;
      if constexpr (write_first) multiply_along(length, from + at, inverse(n), sums[n], to + at);
      if constexpr (!write_first) add_along(length, from + at, inverse(n), sums[n], 1 / scale, to + at);
    }
  });
  if constexpr (write_first) add_mm(result, a, b);
  return result;
}

template <class S>
std::tuple<Tensor, Tensor> backward(Linear call, const ProductCall& product, bool wants_input, bool wants_weight) {
  auto norms = row_norms<S>(call);
  auto weights = weight_vectors<S>(call, product.floor);
  if (call.bias && weights.bias_dominates(mean_of(norms))) {
    // p (rows, out) = (rows, in) @ (in, out)
    call.output = mm(call.input, torch::stable::transpose(call.weight, 0, 1));
    call.bias.reset();
    weights = weight_vectors<S>(call, product.floor);
  }
  auto loops = backward_loops<Working<S>>(product);
  const S* grad = data_of<S>(call.grad);
  S* scaled = workspace<S>(Buffer::scaled_grad, call.rows * call.out);
  RowSplit<S> split(call, {data_of<S>(call.output), grad, scaled}, storage_scale(call.grad.numel(), grad));
  split.run(loops, norms, weights);

  Tensor grad_input, grad_weight;
  // dX (rows, in) = (rows, out) @ (out, in)
  if (wants_input && loops.weight_only) {
    grad_input = mm(call.grad, call.weight);
  } else if (wants_input) {
    Tensor scaled_grad = view_of(scaled, {call.rows, call.out}, {call.out, 1}, call.grad);
    auto inverse = [&](int64_t n) { return norms[n].inverse; };
    grad_input = corrected_mm<S>(scaled_grad, call.weight, split.scale, call.input, inverse, split.along_rows);
  }
  // dW (out, in) = (out, rows) @ (rows, in)
  if (wants_weight) {
    Tensor transposed = view_of(scaled, {call.out, call.rows}, {1, call.out}, call.grad);
    auto inverse = [&](int64_t k) { return weights.inverse[k]; };
    grad_weight = corrected_mm<S>(transposed, call.input, split.scale, call.weight, inverse, split.along_weights);
  }
  return {grad_input, grad_weight};
}

std::tuple<Tensor, Tensor> linear_backward(Tensor grad, Tensor input, Tensor weight, std::optional<Tensor> bias,
                                           Tensor output, std::string product, double parameter, double floor,
                                           bool wants_input, bool wants_weight) {
  Linear call(grad, input, weight, bias, output);
  if (grad.numel() == 0 || input.numel() == 0) {
    return {torch::stable::new_zeros(input, sizes_of(input)), torch::stable::new_zeros(weight, sizes_of(weight))};
  }
  return dispatch_dtype(grad.scalar_type(), [&](auto stored) {
    return backward<decltype(stored)>(call, {product, parameter, floor}, wants_input, wants_weight);
  });
}

Tensor linear_value(Tensor p, Tensor input, Tensor weight, std::string product, double parameter, double floor) {
  Linear call(p, input, weight, std::nullopt, p);
  Tensor value = new_empty({call.rows, call.out}, p);
  if (p.numel() == 0) return value;
  dispatch_dtype(p.scalar_type(), [&](auto stored) {
    using S = decltype(stored);
    const S* output = data_of<S>(call.output);
    RowSplit<S> split(call, {output, output, data_of<S>(value)}, 1);
    split.run(forward_loops<Working<S>>({product, parameter, floor}), row_norms<S>(call), weight_vectors<S>(call, floor));
  });
  return value;
}

STABLE_TORCH_LIBRARY_IMPL(prproduct, CPU, m) {
  m.impl("linear_backward", TORCH_BOX(&linear_backward));
  m.impl("linear_value", TORCH_BOX(&linear_value));
}

}  // namespace
}  // namespace prproduct
