// The operators of torch.ops.prproduct: their schemas are in library.cpp.
#pragma once

#include "stable.h"

namespace prproduct {

std::tuple<Tensor, Tensor> linear_backward(Tensor grad, Tensor input, Tensor weight, std::optional<Tensor> bias,
                                           Tensor output, std::string product, double parameter, double floor,
                                           bool wants_input, bool wants_weight);

Tensor linear_value(Tensor p, Tensor input, Tensor weight, std::string product, double parameter, double floor);

std::tuple<Tensor, Tensor> convolution_backward(Tensor grad, Tensor input, Tensor weight, std::optional<Tensor> bias,
                                                Tensor output, Sizes stride, Sizes padding, Sizes dilation,
                                                bool transposed, Sizes output_padding, int64_t groups,
                                                std::string product, double parameter, double floor, bool wants_input,
                                                bool wants_weight);

Tensor convolution_value(Tensor p, Tensor input, Tensor weight, Sizes stride, Sizes padding, Sizes dilation,
                         bool transposed, Sizes output_padding, int64_t groups, std::string product, double parameter,
                         double floor);

std::vector<Tensor> recurrent_forward(std::string cell, Tensor input_gates, Tensor weight, std::optional<Tensor> bias,
                                      std::vector<Tensor> state, Sizes batch_sizes, bool reverse);

std::vector<Tensor> recurrent_backward(std::string cell, Tensor input_gates, Tensor hidden_gates,
                                       std::vector<Tensor> before, Tensor weight, std::optional<Tensor> bias,
                                       Tensor grad_output, std::vector<Tensor> grad_state, Sizes batch_sizes,
                                       bool reverse, std::string product, double parameter, double floor);

// The caption reward (ngrams.cpp). int64 tensors hold the bits of 64-bit keys.

std::tuple<Tensor, Tensor> ngram_table(Tensor keys, Tensor rarities);

Tensor distinct_ngrams(Tensor tokens, Tensor caption_starts, Tensor image_starts);

std::tuple<Tensor, Tensor, Tensor, Tensor> weigh_captions(Tensor tokens, Tensor starts, Tensor table,
                                                          Tensor table_rarities, double rarest);

Tensor score_samples(Tensor samples, Tensor rows, int64_t eos, Tensor table, Tensor table_rarities, double rarest,
                     Tensor image_starts, Tensor lengths, Tensor entry_starts, Tensor keys, Tensor weights,
                     Tensor norms);

}  // namespace prproduct
