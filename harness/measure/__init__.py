"""What it takes: clocks, rounds, floors and ceilings, counters, machine code."""
