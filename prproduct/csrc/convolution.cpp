// The backward of a convolution under a product, and the value of a product that has its own.
#include "convolution.h"

namespace prproduct {
namespace {

// numbers[first:], as depth, height and width.
Extent extent_of(const Sizes& numbers, size_t first, int64_t missing) {
  Extent extent{missing, missing, missing};
  size_t axes = numbers.size() - first;
  for (size_t a = 0; a < axes; ++a) extent[3 - axes + a] = numbers[first + a];
  return extent;
}

bool has_strides(const Tensor& t, const Sizes& strides) {
  auto own = t.strides();
  auto sizes = t.sizes();
  for (size_t k = 0; k < strides.size(); ++k) {
    if (sizes[k] > 1 && own[k] != strides[k]) return false;
  }
  return true;
}

void check_geometry(const Geometry& geometry, size_t axes) {
  auto check_numbers = [&](const Sizes& numbers, const char* name, int64_t least) {
    check(numbers.size() == axes, name, " has ", numbers.size(), " numbers, expected ", axes);
    for (int64_t number : numbers) {
      check(number >= least && number < (int64_t(1) << 31), name, " must be at least ", least, ", not ", number);
    }
  };
  check_numbers(geometry.stride, "stride", 1);
  check_numbers(geometry.padding, "padding", 0);
  check_numbers(geometry.dilation, "dilation", 1);
  check_numbers(geometry.output_padding, "output_padding", 0);
  check(geometry.groups >= 1, "groups must be at least 1, not ", geometry.groups);
}

// Sizes along one axis: the number of windows in `dense` elements, and the number of elements that `windows` cover.
int64_t windows_over(int64_t dense, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  int64_t room = dense + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? -1 : room / stride + 1;
}
int64_t covered_by(int64_t windows, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  return (windows - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1;
}

Sizes output_shape(const Tensor& input, const Tensor& weight, const Geometry& geometry) {
  Sizes shape{input.size(0), geometry.transposed ? weight.size(1) * geometry.groups : weight.size(0)};
  for (size_t a = 0; a < geometry.stride.size(); ++a) {
    int64_t size = input.size(2 + a), kernel = weight.size(2 + a);
    auto along_axis = geometry.transposed ? covered_by : windows_over;
    int64_t result = along_axis(size, kernel, geometry.stride[a], geometry.padding[a], geometry.dilation[a]);
    if (geometry.transposed) result += geometry.output_padding[a];
    check(result >= 0, "no output of input ", text_of(sizes_of(input)), " and weight ", text_of(sizes_of(weight)));
    shape.push_back(result);
  }
  return shape;
}

}  // namespace

Convolution::Convolution(const Tensor& grad_, const Tensor& input_, const Tensor& weight_,
                         const std::optional<Tensor>& bias_, const Tensor& output_, const Geometry& geometry_)
    : geometry(geometry_) {
  int64_t axes = input_.dim() - 2;
  check(axes >= 1 && axes <= 3, "input must be (batch, channels, *spatial) of 1 to 3 spatial dimensions, not ",
        text_of(sizes_of(input_)));
  check(weight_.dim() == axes + 2, "weight has ", weight_.dim(), " dimensions, expected ", axes + 2);
  check_geometry(geometry, axes);
  ScalarType dtype = grad_.scalar_type();
  check_tensor(input_, "input", sizes_of(input_), dtype);
  check_tensor(weight_, "weight", sizes_of(weight_), dtype);
  batch = input_.size(0), groups = geometry.groups;
  int64_t channels = geometry.transposed ? weight_.size(0) : weight_.size(1) * groups;
  check(input_.size(1) == channels && weight_.size(0) % groups == 0, "input ", text_of(sizes_of(input_)),
        " and weight ", text_of(sizes_of(weight_)), " do not fit with ", groups, " groups");
  check(weight_.numel() > 0, "weight is empty");
  Sizes shape = output_shape(input_, weight_, geometry);
  check_tensor(grad_, "grad", shape, dtype);
  check_tensor(output_, "output", shape, dtype);
  if (bias_) check_tensor(*bias_, "bias", {shape[1]}, dtype), bias = as_contiguous(*bias_);
  in = channels / groups, out = shape[1] / groups;
  Extent input_extent = extent_of(sizes_of(input_), 2, 1), output_extent = extent_of(shape, 2, 1);
  frame.dense = geometry.transposed ? output_extent : input_extent;
  frame.windows = geometry.transposed ? input_extent : output_extent;
  frame.kernel = extent_of(sizes_of(weight_), 2, 1);
  frame.stride = extent_of(geometry.stride, 0, 1);
  frame.padding = extent_of(geometry.padding, 0, 0);
  frame.dilation = extent_of(geometry.dilation, 0, 1);
  frame.lay_out();
  input_places = numel_of(input_extent), output_places = numel_of(output_extent);
  piece_length = numel_of(frame.kernel) * (geometry.transposed ? 1 : in);
  weight_pieces = weight_.numel() / piece_length;
  channels_last = groups == 1 && axes > 1 && !output_.is_contiguous() && has_strides(output_, channels_last_strides(shape));
  grad = in_layout(grad_), input = in_layout(input_), output = in_layout(output_), weight = as_contiguous(weight_);
}

Tensor Convolution::in_layout(const Tensor& t) const {
  if (!channels_last) return as_contiguous(t);
  if (has_strides(t, channels_last_strides(sizes_of(t)))) return t;
  using torch::headeronly::MemoryFormat;
  return torch::stable::contiguous(t, t.dim() == 5 ? MemoryFormat::ChannelsLast3d : MemoryFormat::ChannelsLast);
}

Tensor Convolution::view_like(void* data, const Tensor& t) const {
  Sizes sizes = sizes_of(t);
  return view_of(data, sizes, channels_last ? channels_last_strides(sizes) : contiguous_strides(sizes), t);
}

Tensor Convolution::native_value() const {
  return call_aten("aten::convolution", "", input, weight, std::optional<Tensor>(), geometry.stride, geometry.padding,
                   geometry.dilation, geometry.transposed, geometry.output_padding, groups)[0];
}

std::pair<Tensor, Tensor> Convolution::native_backward(const Tensor& grad_output, bool wants_input,
                                                       bool wants_weight) const {
  const std::array<bool, 3> wanted{wants_input, wants_weight, false};
  auto [grad_input, grad_weight, none] = call_aten<3>(
      "aten::convolution_backward", "", grad_output, input, weight, std::optional<Sizes>(), geometry.stride,
      geometry.padding, geometry.dilation, geometry.transposed, geometry.output_padding, groups,
      torch::headeronly::HeaderOnlyArrayRef<bool>(wanted.data(), wanted.size()));
  return {wants_input ? in_layout(grad_input) : grad_input, wants_weight ? as_contiguous(grad_weight) : grad_weight};
}

namespace {

// The root mean square of the windows' norms, without padding and stuffed zeros: an estimate for `bias_dominates`.
template <class S>
double mean_window_norm(const Convolution& call) {
  int64_t length = call.input.numel() / call.batch;
  std::vector<double> squares(call.batch);
  parallel_for(call.batch, length, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      squares[n] = sum_of_squares(length, data_of<S>(call.input) + n * length);
    }
  });
  double square = 0;
  for (double s : squares) square += s;
  double window = double(call.in * numel_of(call.frame.kernel)) / call.input.numel();
  return std::sqrt(square * window);
}

// A task is one group of one image. This has the memory of a thread for one task after the other: the norms of the
// windows, the split of the gradient, and the multiples that are added along the input.
template <class S>
struct GroupSplit {
  using T = Working<S>;
  const Convolution& call;
  const PairLoops<T>& loops;
  const WeightVectors<T>& weights;
  PairData<S> pairs;
  T scale;
  WindowSums<T> sums;
  std::vector<T> squares, norm, inverse, along, row_sums;

  GroupSplit(const Convolution& call_, const PairLoops<T>& loops_, const WeightVectors<T>& weights_,
             PairData<S> pairs_, T scale_)
      : call(call_), loops(loops_), weights(weights_), pairs(pairs_), scale(scale_), sums(call_.frame),
        squares(call_.input_places), norm(call_.output_places), inverse(call_.output_places),
        along(call_.output_places), row_sums(call_.out) {}

  void measure_windows(int64_t task) {
    int64_t places = call.input_places;
    const S* input = data_of<S>(call.input) + task * call.in * places;
    if (call.channels_last) {
      for (int64_t k = 0; k < places; ++k) squares[k] = sum_of_squares(call.in, input + k * call.in);
    } else {
      sum_squares_of_columns(call.in, places, input, squares.data());
    }
    call.to_output(sums, squares.data(), norm.data());
    norms_of_squares(call.output_places, norm.data(), inverse.data());
  }

  // along_weight: one number for each weight vector of the group
  void split(int64_t task, double* along_weight) {
    std::fill(along.begin(), along.end(), T(0));
    PairData<S> here = pairs.at(task * call.out * call.output_places);
    int64_t first_weight = task % call.groups * call.out;
    call.channels_last ? split_rows(here, along_weight) : split_planes(here, first_weight, along_weight);
  }

  void split_planes(PairData<S> here, int64_t first_weight, double* along_weight) {
    constexpr int64_t places = 1024;  // what they share stays in the first-level cache, channel after channel
    for (int64_t start = 0; start < call.output_places; start += places) {
      int64_t count = std::min(places, call.output_places - start);
      for (int64_t k = 0; k < call.out; ++k) {
        in_working_type(count, here.at(k * call.output_places + start), scale, [&](auto data, int64_t at, int64_t size) {
          at += start;
          along_weight[k] += loops.plane(size, data, &norm[at], &inverse[at], weights[first_weight + k], &along[at],
                                         loops.floor, loops.parameter);
        });
      }
    }
  }

  void split_rows(PairData<S> here, double* along_weight) {
    constexpr int64_t rows = 64;  // summed in the working type before they are added in float64
    for (int64_t start = 0; start < call.output_places; start += rows) {
      std::fill(row_sums.begin(), row_sums.end(), T(0));
      for (int64_t k = start; k < std::min(call.output_places, start + rows); ++k) {
        along[k] = split_stored_row(loops, call.out, here.at(k * call.out), scale, {norm[k], inverse[k]}, weights,
                                    row_sums.data());
      }
      for (int64_t k = 0; k < call.out; ++k) along_weight[k] += row_sums[k];
    }
  }

  // (input places,): the sum of along/‖x‖/largest over the windows that cover each place; returns `largest`.
  T multiples_of_input(T* coefficients) {
    T largest = normalize_multiples(call.output_places, inverse.data(), along.data());
    call.to_input(sums, along.data(), coefficients);
    return largest;
  }
};

// grad_input = grad_input·unscale + x·coefficients·largest, for all channels of a task
template <class S>
void add_along_inputs(const Convolution& call, const Working<S>* coefficients, const std::vector<Working<S>>& largest,
                      Working<S> unscale, S* grad_input) {
  const S* input = data_of<S>(call.input);
  int64_t places = call.input_places, size = call.in * places;
  parallel_for(call.batch * call.groups, size * 3, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const Working<S>* multiples = coefficients + task * places;
      for (int64_t c = 0; c < call.in && !call.channels_last; ++c) {
        int64_t at = task * size + c * places;
        add_along_each(places, input + at, multiples, largest[task], unscale, grad_input + at);
      }
      for (int64_t k = 0; k < places && call.channels_last; ++k) {
        int64_t at = task * size + k * call.in;
        add_along(call.in, input + at, multiples[k], largest[task], unscale, grad_input + at);
      }
    }
  });
}

template <class S>
std::pair<Tensor, Tensor> backward(Convolution call, const ProductCall& product, bool wants_input, bool wants_weight) {
  using T = Working<S>;
  auto weights = weight_vectors<S>(call, product.floor);
  if (call.bias && weights.bias_dominates(mean_window_norm<S>(call))) {
    call.output = call.in_layout(call.native_value());
    call.bias.reset();
    weights = weight_vectors<S>(call, product.floor);
  }
  auto loops = backward_loops<T>(product);
  if (call.is_depthwise()) return depthwise_backward<S>(call, weights, loops, wants_input, wants_weight);

  const S* grad = data_of<S>(call.grad);
  S* scaled = workspace<S>(Buffer::scaled_grad, call.grad.numel());
  PairData<S> pairs{data_of<S>(call.output), grad, scaled};
  T scale = storage_scale(call.grad.numel(), grad);
  int64_t tasks = call.batch * call.groups;
  T* coefficients = workspace<T>(Buffer::coefficients, tasks * call.input_places);
  std::vector<T> largest(tasks);
  std::vector<double> along_weight(tasks * call.out);
  bool along_input = wants_input && !loops.weight_only;
  parallel_for(tasks, call.out * call.output_places * kPairWork, [&](int64_t begin, int64_t end) {
    GroupSplit<S> split(call, loops, weights, pairs, scale);
    for (int64_t task = begin; task < end; ++task) {
      split.measure_windows(task);
      split.split(task, &along_weight[task * call.out]);
      if (along_input) largest[task] = split.multiples_of_input(coefficients + task * call.input_places);
    }
  });

  Tensor scaled_grad = call.view_like(scaled, call.grad);
  Tensor grad_input, grad_weight;
  if (loops.weight_only && wants_input) {
    grad_input = call.native_backward(call.grad, true, false).first;
    if (wants_weight) grad_weight = call.native_backward(scaled_grad, false, true).second;
  } else {
    std::tie(grad_input, grad_weight) = call.native_backward(scaled_grad, wants_input, wants_weight);
  }
  if (along_input) add_along_inputs(call, coefficients, largest, 1 / scale, data_of<S>(grad_input));
  if (wants_weight) add_along_weights<S>(call, weights, along_weight, 1 / scale, data_of<S>(grad_weight));
  return {grad_input, grad_weight};
}

std::tuple<Tensor, Tensor> convolution_backward(Tensor grad, Tensor input, Tensor weight, std::optional<Tensor> bias,
                                                Tensor output, Sizes stride, Sizes padding, Sizes dilation,
                                                bool transposed, Sizes output_padding, int64_t groups,
                                                std::string product, double parameter, double floor, bool wants_input,
                                                bool wants_weight) {
  Convolution call(grad, input, weight, bias, output,
                   Geometry{stride, padding, dilation, output_padding, transposed, groups});
  if (grad.numel() == 0 || input.numel() == 0) {
    return {torch::stable::new_zeros(input, sizes_of(input)), torch::stable::new_zeros(weight, sizes_of(weight))};
  }
  return dispatch_dtype(grad.scalar_type(), [&](auto stored) -> std::tuple<Tensor, Tensor> {
    return backward<decltype(stored)>(call, {product, parameter, floor}, wants_input, wants_weight);
  });
}

Tensor convolution_value(Tensor p, Tensor input, Tensor weight, Sizes stride, Sizes padding, Sizes dilation,
                         bool transposed, Sizes output_padding, int64_t groups, std::string product, double parameter,
                         double floor) {
  Convolution call(p, input, weight, std::nullopt, p,
                   Geometry{stride, padding, dilation, output_padding, transposed, groups});
  Tensor value = torch::stable::empty_like(call.output);
  if (p.numel() == 0 || input.numel() == 0) return torch::stable::new_zeros(p, sizes_of(p));
  dispatch_dtype(p.scalar_type(), [&](auto stored) {
    using S = decltype(stored);
    const S* output = data_of<S>(call.output);
    auto loops = forward_loops<Working<S>>({product, parameter, floor});
    auto weights = weight_vectors<S>(call, floor);
    int64_t tasks = call.batch * call.groups;
    parallel_for(tasks, call.out * call.output_places * kPairWork, [&](int64_t begin, int64_t end) {
      GroupSplit<S> split(call, loops, weights, {output, output, data_of<S>(value)}, 1);
      std::vector<double> unused(call.out);
      for (int64_t task = begin; task < end; ++task) {
        split.measure_windows(task);
        split.split(task, unused.data());
      }
    });
  });
  return value;
}

STABLE_TORCH_LIBRARY_IMPL(prproduct, CPU, m) {
  m.impl("convolution_backward", TORCH_BOX(&convolution_backward));
  m.impl("convolution_value", TORCH_BOX(&convolution_value));
}

}  // namespace
}  // namespace prproduct
