// All steps of one direction of an LSTM, GRU or RNN layer, and the backward through time in closed form.
//
// The rows of all steps are concatenated, as in a PackedSequence; `batch_sizes` has the number of rows of each step. A
// state has as many rows as the largest step; rows of sequences that have not begun or have ended stay as they are.
#include "cells.h"
#include "vectors.h"

namespace prproduct {
namespace {

struct CellKind {
  std::string name;
  int64_t gates, states;
  bool gates_apart;  // True if input gates and hidden gates have different gradients; else only their sum matters
};

CellKind cell_kind(const std::string& name) {
  for (const CellKind& kind : {CellKind{"lstm", 4, 2, false}, CellKind{"gru", 3, 1, true},
                               CellKind{"rnn_tanh", 1, 1, false}, CellKind{"rnn_relu", 1, 1, false}}) {
    if (kind.name == name) return kind;
  }
  throw std::runtime_error("prproduct: no recurrent cell '" + name + "'");
}

template <class T>
void forward_row(const CellKind& cell, int64_t size, const T* a, const T* b, const T* bias, T* const* state) {
  if (cell.name == "lstm") return lstm_row(size, a, b, bias, state[0], state[1]);
  if (cell.name == "gru") return gru_row(size, a, b, bias, state[0]);
  if (cell.name == "rnn_tanh") return rnn_row<T, false>(size, a, b, bias, state[0]);
  return rnn_row<T, true>(size, a, b, bias, state[0]);
}

template <class T>
void backward_row(const CellKind& cell, int64_t size, const T* a, const T* b, const T* bias, const T* const* before,
                  T* const* grad, T* grad_a, T* grad_b) {
  if (cell.name == "lstm") return lstm_row_backward(size, a, b, bias, before[1], grad[0], grad[1], grad_b);
  if (cell.name == "gru") return gru_row_backward(size, a, b, bias, before[0], grad[0], grad_a, grad_b);
  if (cell.name == "rnn_tanh") return rnn_row_backward<T, false>(size, a, b, bias, grad[0], grad_b);
  return rnn_row_backward<T, true>(size, a, b, bias, grad[0], grad_b);
}

struct Step {
  int64_t first, count;  // rows
};

struct Sequences {
  CellKind cell;
  Tensor weight;  // (gates · size, size), of the hidden state
  Tensor bias;    // (gates · size,), zeros where there is none
  std::vector<Step> steps;
  int64_t rows, batch, size, width;  // width: gates · size

  Sequences(const std::string& name, const Tensor& input_gates, const Tensor& weight_, const std::optional<Tensor>& bias_,
            const std::vector<Tensor>& state, const Sizes& batch_sizes, bool reverse)
      : cell(cell_kind(name)) {
    ScalarType dtype = input_gates.scalar_type();
    check(dtype == ScalarType::Float || dtype == ScalarType::Double, "recurrent kernels take float32 and float64");
    check(int64_t(state.size()) == cell.states, cell.name, " has ", cell.states, " states, not ", state.size());
    check(state[0].dim() == 2 && input_gates.dim() == 2, "gates and states must have 2 dimensions");
    rows = input_gates.size(0), batch = state[0].size(0), size = state[0].size(1), width = cell.gates * size;
    check(size > 0, "the state has no features");
    check_tensor(input_gates, "input_gates", {rows, width}, dtype);
    check_tensor(weight_, "weight", {width, size}, dtype);
    for (const Tensor& s : state) check_tensor(s, "state", {batch, size}, dtype);
    if (bias_) check_tensor(*bias_, "bias", {width}, dtype);
    weight = as_contiguous(weight_);
    bias = bias_ ? as_contiguous(*bias_) : torch::stable::new_zeros(weight, {width});
    int64_t first = 0, before = batch;
    for (int64_t count : batch_sizes) {
      check(count >= 0 && count <= before, "batch_sizes must not grow, nor exceed the ", batch, " rows of the state");
      steps.push_back({first, count});
      first += count, before = count;
    }
    check(first == rows, "batch_sizes add up to ", first, ", not to the ", rows, " rows of the gates");
    if (reverse) std::reverse(steps.begin(), steps.end());
  }

  // Rows of `t`, as a tensor.
  Tensor rows_of(const Tensor& t, Step step) const {
    int64_t columns = t.size(1);
    char* data = static_cast<char*>(t.data_ptr()) + step.first * columns * t.element_size();
    return view_of(data, {step.count, columns}, {columns, 1}, t);
  }
};

template <class T>
std::vector<Tensor> forward(const Sequences& call, const Tensor& input_gates, const std::vector<Tensor>& first_state) {
  int64_t size = call.size, width = call.width;
  Tensor hidden_gates = new_empty({call.rows, width}, input_gates), output = new_empty({call.rows, size}, input_gates);
  std::vector<Tensor> state, before;
  for (const Tensor& s : first_state) {
    state.push_back(torch::stable::clone(as_contiguous(s)));
    before.push_back(new_empty({call.rows, size}, input_gates));
  }
  Tensor transposed = torch::stable::transpose(call.weight, 0, 1);
  for (Step step : call.steps) {
    if (step.count == 0) continue;
    mm_out(call.rows_of(hidden_gates, step), call.rows_of(state[0], {0, step.count}), transposed);
    parallel_for(step.count, width * 2 * kPairWork, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        int64_t row = step.first + n;
        std::array<T*, 2> here{};
        for (size_t k = 0; k < state.size(); ++k) {
          here[k] = data_of<T>(state[k]) + n * size;
          std::copy_n(here[k], size, data_of<T>(before[k]) + row * size);
        }
        forward_row(call.cell, size, data_of<T>(input_gates) + row * width, data_of<T>(hidden_gates) + row * width,
                    data_of<T>(call.bias), here.data());
        std::copy_n(here[0], size, data_of<T>(output) + row * size);
      }
    });
  }
  std::vector<Tensor> results{output};
  results.insert(results.end(), state.begin(), state.end());
  results.push_back(hidden_gates);
  results.insert(results.end(), before.begin(), before.end());
  return results;
}

// What forward saved, and the gradients of its results.
struct Saved {
  Tensor input_gates, hidden_gates, grad_output;
  std::vector<Tensor> before, grad_state;  // `before`: the states before each step
};

template <class T>
std::vector<Tensor> backward(const Sequences& call, const Saved& saved, const ProductCall& product) {
  constexpr int64_t block = 8;  // sequences with sums of their own for the weight vectors
  int64_t size = call.size, width = call.width, blocks = (call.batch + block - 1) / block;
  auto loops = backward_loops<T>(product);
  WeightVectors<T> weights(width);
  for (int64_t k = 0; k < width; ++k) {
    weights.set(k, sum_of_squares(size, data_of<T>(call.weight) + k * size), 0, loops.floor, std::numeric_limits<T>::min());
  }
  Tensor grad_hidden_gates = new_empty({call.rows, width}, saved.input_gates);
  Tensor grad_input_gates = call.cell.gates_apart ? new_empty({call.rows, width}, saved.input_gates) : grad_hidden_gates;
  std::vector<Tensor> grad_state;
  for (const Tensor& grad : saved.grad_state) grad_state.push_back(torch::stable::clone(as_contiguous(grad)));
  Tensor scaled = view_of(workspace<T>(Buffer::scaled_grad, call.rows * width), {call.rows, width}, {width, 1},
                          saved.input_gates);
  Tensor through = torch::stable::new_zeros(saved.input_gates, {call.batch, size});  // D∘g @ W of the following step
  std::vector<double> along_weights(blocks * width);

  auto row_backward = [&](int64_t n, int64_t row, T* sums) {
    std::array<T*, 2> grad{};
    std::array<const T*, 2> before{};
    for (int64_t k = 0; k < call.cell.states; ++k) {
      grad[k] = data_of<T>(grad_state[k]) + n * size;
      before[k] = data_of<T>(saved.before[k]) + row * size;
    }
    add_to(size, data_of<T>(saved.grad_output) + row * size, grad[0]);
    add_to(size, data_of<T>(through) + n * size, grad[0]);
    int64_t at = row * width;
    const T* gates = data_of<T>(saved.hidden_gates) + at;
    backward_row(call.cell, size, data_of<T>(saved.input_gates) + at, gates, data_of<T>(call.bias), before.data(), grad.data(),
                 data_of<T>(grad_input_gates) + at, data_of<T>(grad_hidden_gates) + at);
    Norm<T> x = Norm<T>::of(sum_of_squares(size, before[0]));
    T sum = loops.row(width, {gates, data_of<T>(grad_hidden_gates) + at, data_of<T>(scaled) + at}, x, weights, 0, sums,
                      loops.floor, loops.parameter);
    if (!loops.weight_only) add_along(size, before[0], x.inverse, sum, T(1), grad[0]);
  };

  for (auto step = call.steps.rbegin(); step != call.steps.rend(); ++step) {
    if (step->count == 0) continue;
    parallel_for((step->count + block - 1) / block, block * width * 4 * kPairWork, [&](int64_t begin, int64_t end) {
      std::vector<T> sums(width);
      for (int64_t b = begin; b < end; ++b) {
        std::fill(sums.begin(), sums.end(), T(0));
        for (int64_t n = b * block; n < std::min(step->count, (b + 1) * block); ++n) {
          row_backward(n, step->first + n, sums.data());
        }
        for (int64_t k = 0; k < width; ++k) along_weights[b * width + k] += sums[k];
      }
    });
    Tensor hidden_grad = call.rows_of(loops.weight_only ? grad_hidden_gates : scaled, *step);
    mm_out(call.rows_of(through, {0, step->count}), hidden_grad, call.weight);  // (count, width) @ (width, size)
  }
  add_to(call.batch * size, data_of<T>(through), data_of<T>(grad_state[0]));

  Tensor grad_weight = mm(torch::stable::transpose(scaled, 0, 1), saved.before[0]);  // (width, rows) @ (rows, size)
  parallel_for(width, 3 * size, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      double sum = 0;
      for (int64_t b = 0; b < blocks; ++b) sum += along_weights[b * width + k];
      add_along(size, data_of<T>(call.weight) + k * size, weights.inverse[k], T(sum), T(1), data_of<T>(grad_weight) + k * size);
    }
  });
  std::vector<Tensor> results{grad_input_gates};
  if (call.cell.gates_apart) results.push_back(grad_hidden_gates);
  results.push_back(grad_weight);
  results.insert(results.end(), grad_state.begin(), grad_state.end());
  return results;
}

std::vector<Tensor> recurrent_forward(std::string cell, Tensor input_gates, Tensor weight, std::optional<Tensor> bias,
                                      std::vector<Tensor> state, Sizes batch_sizes, bool reverse) {
  Sequences call(cell, input_gates, weight, bias, state, batch_sizes, reverse);
  input_gates = as_contiguous(input_gates);
  if (input_gates.scalar_type() == ScalarType::Float) return forward<float>(call, input_gates, state);
  return forward<double>(call, input_gates, state);
}

std::vector<Tensor> recurrent_backward(std::string cell, Tensor input_gates, Tensor hidden_gates,
                                       std::vector<Tensor> before, Tensor weight, std::optional<Tensor> bias,
                                       Tensor grad_output, std::vector<Tensor> grad_state, Sizes batch_sizes,
                                       bool reverse, std::string product, double parameter, double floor) {
  Sequences call(cell, input_gates, weight, bias, grad_state, batch_sizes, reverse);
  ScalarType dtype = input_gates.scalar_type();
  check_tensor(hidden_gates, "hidden_gates", {call.rows, call.width}, dtype);
  check_tensor(grad_output, "grad_output", {call.rows, call.size}, dtype);
  check(int64_t(before.size()) == call.cell.states, "before has ", before.size(), " states, not ", call.cell.states);
  Saved saved{as_contiguous(input_gates), as_contiguous(hidden_gates), as_contiguous(grad_output), {}, grad_state};
  for (const Tensor& state : before) {
    check_tensor(state, "before", {call.rows, call.size}, dtype);
    saved.before.push_back(as_contiguous(state));
  }
  ProductCall product_call{product, parameter, floor};
  return dtype == ScalarType::Float ? backward<float>(call, saved, product_call)
                                    : backward<double>(call, saved, product_call);
}

STABLE_TORCH_LIBRARY_IMPL(prproduct, CPU, m) {
  m.impl("recurrent_forward", TORCH_BOX(&recurrent_forward));
  m.impl("recurrent_backward", TORCH_BOX(&recurrent_backward));
}

}  // namespace
}  // namespace prproduct
