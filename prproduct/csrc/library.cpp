// The operators of torch.ops.prproduct with their schemas. None of them writes into its arguments.
#include "operators.h"
#include "pair.h"

STABLE_TORCH_LIBRARY(prproduct, m) {
  m.def(
      "linear_backward(Tensor grad, Tensor input, Tensor weight, Tensor? bias, Tensor output, str product, "
      "float parameter, float floor, bool wants_input, bool wants_weight) -> (Tensor, Tensor)");
  m.def(
      "linear_value(Tensor p, Tensor input, Tensor weight, str product, float parameter, float floor) -> Tensor");
  m.def(
      "convolution_backward(Tensor grad, Tensor input, Tensor weight, Tensor? bias, Tensor output, int[] stride, "
      "int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups, str product, "
      "float parameter, float floor, bool wants_input, bool wants_weight) -> (Tensor, Tensor)");
  m.def(
      "convolution_value(Tensor p, Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, "
      "bool transposed, int[] output_padding, int groups, str product, float parameter, float floor) -> Tensor");
  m.def(
      "recurrent_forward(str cell, Tensor input_gates, Tensor weight, Tensor? bias, Tensor[] state, "
      "int[] batch_sizes, bool reverse) -> Tensor[]");
  m.def(
      "recurrent_backward(str cell, Tensor input_gates, Tensor hidden_gates, Tensor[] before, Tensor weight, "
      "Tensor? bias, Tensor grad_output, Tensor[] grad_state, int[] batch_sizes, bool reverse, str product, "
      "float parameter, float floor) -> Tensor[]");
  m.def("product_names() -> str[]");
}

STABLE_TORCH_LIBRARY_IMPL(prproduct, CPU, m) {
  m.impl("linear_backward", TORCH_BOX(&prproduct::linear_backward));
  m.impl("linear_value", TORCH_BOX(&prproduct::linear_value));
  m.impl("convolution_backward", TORCH_BOX(&prproduct::convolution_backward));
  m.impl("convolution_value", TORCH_BOX(&prproduct::convolution_value));
  m.impl("recurrent_forward", TORCH_BOX(&prproduct::recurrent_forward));
  m.impl("recurrent_backward", TORCH_BOX(&prproduct::recurrent_backward));
}

STABLE_TORCH_LIBRARY_IMPL(prproduct, CompositeExplicitAutograd, m) {
  m.impl("product_names", TORCH_BOX(&prproduct::product_names));
}

// The caption reward.

STABLE_TORCH_LIBRARY_FRAGMENT(prproduct, m) {
  m.def("ngram_table(Tensor keys, Tensor rarities) -> (Tensor, Tensor)");
  m.def("distinct_ngrams(Tensor tokens, Tensor caption_starts, Tensor image_starts) -> Tensor");
  m.def(
      "weigh_captions(Tensor tokens, Tensor starts, Tensor table, Tensor table_rarities, float rarest) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "score_samples(Tensor samples, Tensor rows, int eos, Tensor table, Tensor table_rarities, float rarest, "
      "Tensor image_starts, Tensor lengths, Tensor entry_starts, Tensor keys, Tensor weights, Tensor norms) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(prproduct, CPU, m) {
  m.impl("ngram_table", TORCH_BOX(&prproduct::ngram_table));
  m.impl("distinct_ngrams", TORCH_BOX(&prproduct::distinct_ngrams));
  m.impl("weigh_captions", TORCH_BOX(&prproduct::weigh_captions));
  m.impl("score_samples", TORCH_BOX(&prproduct::score_samples));
}
