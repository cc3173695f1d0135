"""`prproduct bench`: time and memory of native layers, of ours and of the literal formula, measured in one run."""
