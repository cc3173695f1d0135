"""The small networks of these tests, and their gradients."""

import torch
from torch import Tensor, nn

import prproduct as pr


class Small(nn.Module):
    """Convolution, attention and linear layers; no BatchNorm, whose statistics would depend on how a batch is cut."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hidden = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.stem(x).relu()).flatten(2).mT
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.hidden(x).relu().mean(1))


class Tiny(nn.Module):
    """A convolution and two linear layers: for what takes long to compile."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.hidden = nn.Linear(4, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.stem(x).relu().mean((2, 3))).relu())


def tiny(product: str | pr.products.Product | None = "pr", seed: int = 5) -> Tiny:
    """The smaller network from a seed, under a product or native."""
    torch.manual_seed(seed)
    return Tiny() if product is None else pr.convert(Tiny(), product)


def small(product: str | pr.products.Product | None = "pr", seed: int = 5) -> Small:
    """The network from a seed, under a product or native."""
    torch.manual_seed(seed)
    return Small() if product is None else pr.convert(Small(), product)


def images(count: int = 6) -> Tensor:
    """The same pictures every time."""
    pictures = torch.randn(count, 3, 5, 5, generator=torch.Generator("cpu").manual_seed(7), device="cpu")
    return pictures.to(torch.get_default_device())


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Copies of what backward left, under the names that the model has without torch.compile."""
    return {name.removeprefix("_orig_mod."): p.grad.detach().clone() for name, p in model.named_parameters()}


def step(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output and the gradients of its mean square."""
    model.zero_grad()
    output = model(x)
    output.float().square().mean().backward()
    return output.detach(), gradients(model)


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Every gradient close to the other's, measured by its norm."""
    assert got.keys() == expected.keys()
    for name in expected:
        error = (got[name].double() - expected[name].double()).norm() / expected[name].double().norm()
        assert error <= tolerance, f"{name}: {error:.1e}"


def differ(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-3) -> bool:
    """Whether some gradient is another: the product was at work."""
    return any((one[name] - other[name]).norm() > tolerance * other[name].norm() for name in one)
