"""What the layers compute with: windows and their sums, angles and gains, and who is paired with whom."""
