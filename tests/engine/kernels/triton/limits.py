"""What a program may have on cards of each compute capability."""

CARDS = {75: 64 << 10, 80: 163 << 10, 90: 227 << 10}  # bytes of shared memory
