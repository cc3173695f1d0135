"""Two processes over gloo: data parallel and fully sharded gradients are those of one process on the joined batch."""

import pytest
import torch.multiprocessing
import workers


@pytest.mark.slow
def test_two_processes_compute_the_gradients_of_one_under_ddp_and_fsdp(tmp_path):
    torch.multiprocessing.spawn(workers.run, (str(tmp_path / "rendezvous"),), nprocs=workers.PROCESSES)
