"""Attention: its four projections, of which the last sees what the heads attended to."""

import math

import pytest
import torch
import torch.nn.functional as F
from expected_angles import assert_found, probed, rows
from torch import Tensor, nn

import prproduct as pr


def literal_attention(layer, query, key, value, mask=None, dropout=0.0) -> Tensor:
    """What the heads attend to, batch first."""
    weights = layer.in_proj_weight.chunk(3) if layer.in_proj_weight is not None else None
    weights = weights or (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    biases = layer.in_proj_bias.chunk(3)
    product = getattr(layer, "product", "p")
    q, k, v = (
        pr.functional.linear(t, w, b, product=product).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for t, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf)
    return (F.dropout(scores.softmax(-1), dropout) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("package", [nn, pr.nn], ids=["native", "converted"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_shows_its_four_projections(package, batch_first):
    layer = package.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=batch_first).double()
    query, key, value = (torch.randn(3, length, size).double() for length, size in ((4, 8), (7, 6), (7, 5)))
    forbidden = torch.rand(4, 7) < 0.3
    attended = literal_attention(layer, query, key, value, forbidden)
    given = [t if batch_first else t.transpose(0, 1) for t in (query, key, value)]
    found = probed(layer, *given, attn_mask=forbidden, need_weights=False)
    assert list(found) == ["q", "k", "v", "out"]
    for part, data in (("q", query), ("k", key), ("v", value)):
        assert_found(found[part], rows(getattr(layer, f"{part}_proj_weight"), data))
    assert_found(found["out"], rows(layer.out_proj.weight, attended))


@pytest.mark.parametrize("product", ["pr", "r"])
def test_self_attention_in_training_is_read_with_its_dropout_and_under_its_product(product):
    layer = pr.nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True, product=product).double()
    x = torch.randn(3, 5, 8).double()
    torch.manual_seed(5)
    attended = literal_attention(layer, x, x, x, dropout=0.4)
    torch.manual_seed(5)
    with pr.AngleProbe(layer) as probe:
        output, _ = layer(x, x, x)
    expected = pr.functional.linear(attended, layer.out_proj.weight, layer.out_proj.bias, product=product)
    torch.testing.assert_close(output, expected)
    found = {record.part: record for record in probe.records}
    assert_found(found["out"], rows(layer.out_proj.weight, attended))
    for part, weight in zip("qkv", layer.in_proj_weight.chunk(3), strict=True):
        assert_found(found[part], rows(weight, x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder_stays_on_its_fused_path_and_is_read_all_the_same(padded):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x = torch.randn(3, 4, 8)
    mask = torch.tensor([[False] * 4, [False, False, True, True], [False] * 4]) if padded else None
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=mask)
        with pr.AngleProbe(encoder) as probe:
            assert torch.equal(encoder(x, src_key_padding_mask=mask), expected)
    parts = ["self_attn/q", "self_attn/k", "self_attn/v", "self_attn/out", "linear1", "linear2"]
    assert [r.name for r in probe.records] == [f"layers.{n}.{part}" for n in range(2) for part in parts]
    assert_found(probe.records[0], rows(encoder.layers[0].self_attn.in_proj_weight[:8], x), 1e-6)
