"""Two processes over gloo: data parallel and fully sharded gradients are those of one process on the joined batch."""

import pytest
import torch.multiprocessing
import workers


@pytest.mark.parametrize("work", ["data_parallel", "fully_sharded"])
def test_two_processes_compute_the_gradients_of_one(work, tmp_path):
    torch.multiprocessing.spawn(workers.run, (str(tmp_path / "rendezvous"), work), nprocs=workers.PROCESSES)
