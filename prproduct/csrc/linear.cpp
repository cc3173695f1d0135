// The backward of a linear layer under a product, and the value of a product that has its own.
#include "operators.h"
#include "rows.h"

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
    grad = as_contiguous(grad_), input = as_contiguous(input_), weight = as_contiguous(weight_), output = as_contiguous(output_);
  }
};

template <class S>
WeightVectors<Working<S>> weight_vectors(const Linear& call, double floor) {
  WeightVectors<Working<S>> weights(call.out);
  const S* weight = static_cast<const S*>(call.weight.data_ptr());
  const S* bias = call.bias ? static_cast<const S*>(call.bias->data_ptr()) : nullptr;
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
  const S* input = static_cast<const S*>(call.input.data_ptr());
  parallel_for(call.rows, call.in, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      norms[n] = Norm<Working<S>>::of(sum_of_squares(call.in, input + n * call.in));
    }
  });
  return norms;
}

// Whether the bias is so large that output − bias has lost p, and p is worth computing again.
template <class T>
bool bias_dominates(const WeightVectors<T>& weights, const std::vector<Norm<T>>& rows) {
  double bias = 0, norms = 0, lengths = 0;
  for (T b : weights.bias) bias += std::abs(b);
  for (T norm : weights.norm) norms += norm;
  for (const Norm<T>& row : rows) lengths += row.value;
  return !(bias * rows.size() <= 2 * norms * lengths);
}

// a @ b plus a correction. float32 and float64 write the correction first and have the product added to it, which saves a
// pass. Half types are corrected behind the product, in float32: rounding both would double the error.
template <class S, class Correct>
Tensor corrected_mm(const Tensor& a, const Tensor& b, const Correct& correct) {
  if constexpr (std::is_same_v<S, Working<S>>) {
    Tensor result = new_empty({a.size(0), b.size(1)}, b);
    correct.template operator()<Along::write>(static_cast<S*>(result.data_ptr()));
    add_mm(result, a, b);
    return result;
  } else {
    Tensor result = mm(a, b);
    correct.template operator()<Along::add>(static_cast<S*>(result.data_ptr()));
    return result;
  }
}

template <class S>
std::tuple<Tensor, Tensor> backward(Linear call, const ProductCall& product, bool wants_input, bool wants_weight) {
  using T = Working<S>;
  auto norms = row_norms<S>(call);
  auto weights = weight_vectors<S>(call, product.floor);
  if (call.bias && bias_dominates(weights, norms)) {
    call.output = mm(call.input, torch::stable::transpose(call.weight, 0, 1));
    call.bias.reset();
    weights = weight_vectors<S>(call, product.floor);
  }
  auto loops = backward_loops<T>(product);
  const S* grad = static_cast<const S*>(call.grad.data_ptr());
  S* scaled = workspace<S>(Buffer::scaled_grad, call.rows * call.out);
  RowSplit<S> split(call.rows, call.out, {static_cast<const S*>(call.output.data_ptr()), grad, scaled});
  split.run(loops, norms, weights);

  Tensor grad_input, grad_weight;
  if (wants_input && loops.weight_only) {
    grad_input = mm(call.grad, call.weight);
  } else if (wants_input) {
    Tensor scaled_grad = view_of(scaled, {call.rows, call.out}, {call.out, 1}, call.grad);
    grad_input = corrected_mm<S>(scaled_grad, call.weight, [&]<Along how>(S* result) {
      split.template correct_input<how>(call.in, norms, static_cast<const S*>(call.input.data_ptr()), result);
    });
  }
  if (wants_weight) {
    Tensor transposed = view_of(scaled, {call.out, call.rows}, {1, call.out}, call.grad);
    grad_weight = corrected_mm<S>(transposed, call.input, [&]<Along how>(S* result) {
      split.template correct_weight<how>(call.in, weights, static_cast<const S*>(call.weight.data_ptr()), result);
    });
  }
  return {grad_input, grad_weight};
}

}  // namespace

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
    const S* output = static_cast<const S*>(call.output.data_ptr());
    RowSplit<S> split(call.rows, call.out, {output, output, static_cast<S*>(value.data_ptr())});
    split.scale = 1;
    split.run(forward_loops<Working<S>>({product, parameter, floor}), row_norms<S>(call), weight_vectors<S>(call, floor));
  });
  return value;
}

}  // namespace prproduct
