"""The speed and memory table: native layers, ours and the literal formula, measured side by side in one run."""
