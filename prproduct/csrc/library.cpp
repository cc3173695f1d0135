// The operators of torch.ops.prproduct with their schemas. Each is registered at the end of the file that implements it.
// None of them writes into its arguments.
#include "stable.h"

STABLE_TORCH_LIBRARY(prproduct, m) {
  m.def("product_names() -> str[]");  // pair.cpp

  // linear.cpp
  m.def(
      "linear_backward(Tensor grad, Tensor input, Tensor weight, Tensor? bias, Tensor output, str product, "
      "float parameter, float floor, bool wants_input, bool wants_weight) -> (Tensor, Tensor)");
  m.def(
      "linear_value(Tensor p, Tensor input, Tensor weight, str product, float parameter, float floor) -> Tensor");

  // convolution.cpp
  m.def(
      "convolution_backward(Tensor grad, Tensor input, Tensor weight, Tensor? bias, Tensor output, int[] stride, "
      "int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups, str product, "
      "float parameter, float floor, bool wants_input, bool wants_weight) -> (Tensor, Tensor)");
  m.def(
      "convolution_value(Tensor p, Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, "
      "bool transposed, int[] output_padding, int groups, str product, float parameter, float floor) -> Tensor");

  // recurrent.cpp
  m.def(
      "recurrent_forward(str cell, Tensor input_gates, Tensor weight, Tensor? bias, Tensor[] state, "
      "int[] batch_sizes, bool reverse) -> Tensor[]");
  m.def(
      "recurrent_backward(str cell, Tensor input_gates, Tensor hidden_gates, Tensor[] before, Tensor weight, "
      "Tensor? bias, Tensor grad_output, Tensor[] grad_state, int[] batch_sizes, bool reverse, str product, "
      "float parameter, float floor) -> Tensor[]");

  // ngrams.cpp: the caption reward. int64 tensors hold the bits of 64-bit keys.
  m.def("ngram_table(Tensor keys, Tensor rarities) -> (Tensor, Tensor)");
  m.def("distinct_ngrams(Tensor tokens, Tensor caption_starts, Tensor image_starts) -> Tensor");
  m.def(
      "weigh_captions(Tensor tokens, Tensor starts, Tensor table, Tensor table_rarities, float rarest) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "score_samples(Tensor samples, Tensor rows, int eos, Tensor table, Tensor table_rarities, float rarest, "
      "Tensor image_starts, Tensor lengths, Tensor entry_starts, Tensor keys, Tensor weights, Tensor norms) -> Tensor");
}
