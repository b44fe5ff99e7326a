"""Counter-based random numbers: a number is a function of its key and counter, with no state between two.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), as in their
library Random123. In Python integers, since a row needs one number per step.
"""

MASK_32 = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio, sqrt(3) - 1


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words for a 128-bit counter and a 64-bit key, both as 32-bit words, lowest first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product_0 = MULTIPLIERS[0] * c0
        product_1 = MULTIPLIERS[1] * c2
        c0, c1 = (product_1 >> 32) ^ c1 ^ k0, product_1 & MASK_32
        c2, c3 = (product_0 >> 32) ^ c3 ^ k1, product_0 & MASK_32
        k0 = (k0 + KEY_STEPS[0]) & MASK_32
        k1 = (k1 + KEY_STEPS[1]) & MASK_32
    return c0, c1, c2, c3


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) of one output index under a signed 64-bit seed, a multiple of 2**-52."""
    key = (seed & MASK_32, (seed >> 32) & MASK_32)
    words = philox4x32((index & MASK_32, index >> 32, 0, 0), key)
    return ((words[0] << 20) | (words[1] >> 12)) * 2.0**-52
