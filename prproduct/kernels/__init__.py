"""What the layers compute with: windows and their sums, angles and gains, and the pairing of weight and data vectors."""
