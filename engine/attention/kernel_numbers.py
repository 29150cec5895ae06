"""Numbers that the attention kernels are given, whoever launches them."""

import math
from functools import cache as cached

LEAST_DOT = 16  # rows and columns that tensor cores take
LOG2_E = math.log2(math.e)  # scores are in powers of two
NO_WINDOW = 2**30  # tokens


@cached
def power_of_two(number: int) -> int:
    """The smallest power of two that is not below ``number``."""
    return 1 << (number - 1).bit_length()
