"""The paper's equations installed in a native model, layer by layer: the oracle for whole networks."""

from functools import partial

import torch.nn.functional as F
from torch import nn

from prproduct import reference


def install(model: nn.Module, product: str = "pr") -> list[str]:
    """Replace the forward of every layer that multiplies weights with data by the literal formula; their names."""
    names = []
    for name, layer in model.named_modules():
        forward = _literal_forward(layer, product)
        if forward is not None:
            layer.forward = forward
            names.append(name)
    return names


def _literal_forward(layer: nn.Module, product: str):
    if isinstance(layer, nn.MultiheadAttention):
        return partial(_attention, layer, product)
    if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return None  # its attention computes with its weights
    if isinstance(layer, nn.Linear):
        return lambda x: reference.linear(x, layer.weight, layer.bias, product=product)
    if type(layer).__name__ == "Conv1D":  # Hugging Face's linear layer with a transposed weight
        return lambda x: reference.linear(x, layer.weight.T, layer.bias, product=product)
    if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return partial(_convolution, layer, product)
    if isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d)):
        settings = (layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation)
        op = reference.conv_transpose2d
        return lambda x: op(x, layer.weight, layer.bias, *settings, product=product)
    return None


def _convolution(layer, product, input):
    assert layer.padding_mode == "zeros"
    padding = (0,) * len(layer.stride) if layer.padding == "valid" else layer.padding
    settings = (layer.stride, padding, layer.dilation, layer.groups)
    return reference.conv2d(input, layer.weight, layer.bias, *settings, product=product)


def _attention(layer, product, query, key, value, attn_mask=None, need_weights=True, **_):
    """Batch first, without padding: what torch's Transformer asks for in these tests."""
    assert layer.batch_first
    weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    q, k, v = (
        reference.linear(x, w, b, product=product).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask).transpose(1, 2).flatten(2)
    return reference.linear(attended, layer.out_proj.weight, layer.out_proj.bias, product=product), None
