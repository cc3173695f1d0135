"""What classification and captioning share: the training loop, run folders, sweeps, reports and options."""
