"""What each of two processes does in test_distributed.py: spawned processes import it by name."""

import os

import pytest
import torch
import torch.distributed as dist
from networks import assert_same, images, small, step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import prproduct as pr

PROCESSES = 2


def run(rank: int, rendezvous: str) -> None:
    """Join the group, check both ways to share the work, leave the group."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=PROCESSES)
    for check in (data_parallel, fully_sharded):
        check(rank)
        dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # Gloo's threads may outlive the group, and abort a process that leaves in the usual way


def _expected(product: str) -> dict[str, torch.Tensor]:
    """One process on the joined batch."""
    return step(small(product).double(), images().double())[1]


def data_parallel(rank: int) -> None:
    """DDP averages the gradients of the halves of a batch; then the product changes, in place."""
    model = DistributedDataParallel(small().double())
    part = images().double().chunk(PROCESSES)[rank]
    for product in ("pr", "tempered:0.5", "p"):
        pr.convert(model, product)
        got = {name.removeprefix("module."): grad for name, grad in step(model, part)[1].items()}
        assert_same(got, _expected(product), 1e-12)


def fully_sharded(rank: int) -> None:
    """FSDP2, converted before and after sharding."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    part = images().double().chunk(PROCESSES)[rank]
    for early in (True, False):
        model = small("pr" if early else None).double()
        for block in (model.stem, model.attention, model.hidden, model):
            fully_shard(block, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pr.convert(model)
        got = {name: grad.full_tensor() for name, grad in step(model, part)[1].items()}
        assert_same(got, _expected("pr"), 1e-12)
        optimizer.step()
        single = small("pr").double()
        step(single, images().double())
        torch.optim.SGD(single.parameters(), lr=0.1).step()
        stepped = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
        assert_same(stepped, {name: p.detach() for name, p in single.named_parameters()}, 1e-12)
        _go_back(model, early)


def _go_back(model: torch.nn.Module, early: bool) -> None:
    """Layers that FSDP gave a class of its own on top of ours cannot go back; all others can."""
    if not early:
        assert type(pr.revert(model).stem).__name__ == "FSDPConv2d"
        assert not isinstance(model.stem, pr.nn.ProductLayer)
        return
    with pytest.raises(TypeError, match="convert it to 'p'"):
        pr.revert(model)
    pr.convert(model, "p")
