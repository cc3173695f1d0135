"""Where passes find what they are told: the fields of a product's plan, and of the table of weight vectors.

`rules.py` fills them, and passes read them. All are numbers of places, in memory that is given by its address.
"""

from __future__ import annotations

STRIP = 512  # pairs: a handful of such registers stays in the first-level cache
WIDE = 16  # channels that are transposed together: a line of the cache
ASIDE = STRIP + WIDE  # a strip of many channels, so far apart that they do not displace each other in the cache
STRIP_ROWS = 4  # of what is known of a strip of windows: squares, norms, their inverses, and sums
BLOCK = 64  # rows added up in the layer's own precision before they go to a total in float64

# What is known of the weight vectors (`pairs.WeightVectors`), one field after the other.
OFFSET, WEIGHT_INVERSE, ROUNDED, WEIGHT_VALUE, WEIGHT_LENGTH, FIELDS = range(6)

# The integers by which passes know a product's program (`rules.plan_of`).
REGISTERS, OPERATIONS, STEPS, CONSTANTS, LIMITS, RUN, ASKS_FOR_SIN, SAME, IS_PR = range(9)
PER_HALF = 4
WEIGHT_HALF, INPUT_HALF, PLAN = 9, 9 + PER_HALF, 9 + 2 * PER_HALF
SPARE_REGISTERS = 6  # for the passes themselves
PRODUCTS, EXCESSES = 4, 5  # of these: p, and by how much its rounding raises the floor, where something was added to p
LENGTH, DIRECTION, WRITES, HAS_SUMS = range(4)  # of a half: registers of L and D, whether to write D∘g and to take sums

# Behind the address of the limits.
FLOOR, EPS, TINY, NEGLIGIBLE = range(4)
