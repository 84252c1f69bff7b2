"""What makes a plan of the Hopper kernel right, by following the walks of the kernel's roles. Each
check raises AssertionError.
"""

import numpy as np

UNIT, TAP_BYTES, PIXEL_BYTES = 64, 8192, 128
MAX_RING_UNITS, MAX_WEIGHT_STAGES = 28, 32


def check_resources(plan, case):
    assert plan.pitch % 4 == 0 and plan.pitch >= 8  # a quad of pixels lies in one row
    assert plan.tile_pixels % 4 == 0 and (plan.num_strips == 1 or plan.tile_w % 4 == 0)
    for phase in plan.phases:
        assert phase.row_shift >= 0 and phase.col_shift >= 0
        assert phase.first_pixel == phase.row_shift * plan.pitch + phase.col_shift
        assert (phase.taps_h == 0) == (phase.taps_w == 0)
    with_taps = [phase.taps_h > 0 for phase in plan.phases]
    last = plan.last_tapped_phase  # gives a tile's window back
    assert with_taps[last] and not any(with_taps[last + 1 :])
    if plan.twin:
        check_twins(plan, case)
    if plan.n == 256 and not case.sixteen_bit:
        assert plan.batches_in_flight == 1
    if case.size[1] % 4 == 0:  # vectors of the line are vectors of the input
        assert plan.col_offset % 4 == 0
    assert plan.segment_pixels <= plan.n
    assert plan.num_segments * plan.blocks_per_sweep == plan.num_consumers
    assert plan.tile_pixels == plan.num_segments * plan.segment_pixels
    padded = plan.num_sweeps * plan.blocks_per_sweep * 64
    assert padded - 64 < -(-case.out_channels // case.groups // 64) * 64 <= padded
    # Ring and mirror. A ring that is never wrapped is one window.
    assert plan.ring_units <= MAX_RING_UNITS
    # Units of two batches: a data warp's steps are no longer than a lap.
    assert 2 * plan.ring_units * plan.ring_ic_blocks >= plan.producer_warps
    assert plan.mirror_pixels <= plan.ring_units * UNIT
    assert plan.mirror_pixels % 32 == 0  # whole batches
    assert plan.ring_ic_blocks in (1, plan.num_ic_blocks)
    assert plan.ring_block_pixels == plan.ring_units * UNIT + plan.mirror_pixels
    assert plan.ring_bytes == plan.ring_ic_blocks * plan.ring_block_pixels * PIXEL_BYTES
    # Weights.
    count = 0
    for phase in plan.phases:
        assert phase.weight_base == count
        count += phase.taps_h * phase.taps_w * plan.num_ic_blocks
    assert plan.sweep_tiles == count
    count *= plan.num_sweeps * plan.num_groups
    assert plan.num_weight_tiles == count
    loads = plan.num_sweeps * plan.num_ic_blocks * sum(with_taps)
    assert plan.window_loads == (loads if plan.num_ic_blocks > plan.ring_ic_blocks else 1)
    # In turns, nobody may wait for what only the other's turn gives back: stages that both
    # multiply by, or the window's next block of channels.
    if plan.alternate:
        assert plan.resident_weights or plan.blocks_per_sweep == plan.num_consumers
        assert plan.ring_ic_blocks == plan.num_ic_blocks
    assert plan.weight_stages <= MAX_WEIGHT_STAGES
    if plan.resident_weights:
        assert plan.weight_stages == count * plan.blocks_per_sweep
    else:
        assert plan.weight_stages == plan.ring_stages * plan.blocks_per_sweep
        # A stage is given back after the product that follows it: fewer would wait for ever.
        assert plan.ring_stages >= 2
    # Shared memory, as shared_layout() lays it out.
    pooled_row = plan.n // 2 + (4 if plan.n // 8 % 2 == 0 else 0)
    stores = 8 * pooled_row * 4 if plan.pooled else 8 * (64 + 8) * 4
    assert plan.store_bytes_per_warp == stores
    used = plan.ring_bytes + plan.weight_stages * TAP_BYTES
    used += plan.num_consumers * 4 * stores + 2 * 8 * (MAX_RING_UNITS + MAX_WEIGHT_STAGES)
    used += 8 * plan.num_consumers  # whose turn it is
    assert used <= plan.smem_bytes <= case.smem_limit


def check_twins(plan, case):
    """Phases come in pairs, even and odd columns of the same rows, which are neighbours."""
    assert case.stride[1] == 2 and not plan.pooled and len(plan.phases) % 2 == 0
    for even, odd in zip(plan.phases[::2], plan.phases[1::2], strict=True):
        assert (even.first_w, odd.first_w) == (0, 1)
        assert (even.first_h, even.count_h) == (odd.first_h, odd.count_h)
        assert even.count_w - 1 <= odd.count_w <= even.count_w


def chunks(plan, block, blocks):
    """(strip, line of it, first tile, last + 1) of a block's chunks, as TileCursor walks."""
    strips, size = plan.num_strips, plan.range_tiles

    def begin(number):
        return number // strips * size * strips + number % strips

    chunk = begin(block)
    while chunk < plan.total_tiles:
        place, strip = divmod(chunk, strips)
        line, first = divmod(place, plan.line_tiles)
        left_of_range, left_of_line = size - place % size, plan.line_tiles - first
        yield strip, line, first, min(first + left_of_range, plan.num_tiles)
        if left_of_line < left_of_range:
            chunk += left_of_line * strips
        else:
            chunk = begin(place // size * strips + strip + blocks)


def check_ranges(plan, case):
    """The blocks' chunks hold every tile of every line once, and none is empty."""
    lines = -(-case.batch // plan.line_samples) * case.groups
    assert plan.mirror_pixels > 0 or plan.range_tiles == 1  # nothing to wrap into
    seen = np.zeros((plan.num_strips, lines, plan.num_tiles), dtype=np.int64)
    blocks = min(plan.num_ranges, case.num_sms)
    for block in range(blocks):
        for strip, line, first, end in chunks(plan, block, blocks):
            assert first < end and line < lines
            seen[strip, line, first:end] += 1
    assert (seen == 1).all()


def check_every_output_once(plan, case):
    images = min(plan.line_samples, 5)  # all lie alike
    seen = np.zeros((images, *case.out), dtype=np.int64)
    tiles = np.arange(plan.num_tiles)[:, None, None] * plan.tile_pixels
    segments = np.arange(plan.num_segments)[:, None] * plan.segment_pixels
    places = (tiles + segments + np.arange(plan.segment_pixels)).ravel()
    rows, cols = places // plan.pitch, places % plan.pitch
    image = np.zeros_like(rows)
    if plan.line_samples > 1:
        image, rows = rows // plan.image_rows, rows % plan.image_rows
    for phase in plan.phases:
        for strip in range(plan.num_strips):
            first = strip * plan.tile_w
            width = min(plan.tile_w, phase.count_w - first)
            real = (image < images) & (rows < phase.count_h) & (cols < width)
            out_h = rows[real] * case.stride[0] + phase.first_h
            out_w = (first + cols[real]) * case.stride[1] + phase.first_w
            np.add.at(seen, (image[real], out_h, out_w), 1)
    assert (seen == 1).all()


def input_positions(case, axis, outputs):
    """[outputs, taps]: input positions of an axis's outputs, of one phase, ascending, from the
    definition; those outside the input included.
    """
    found = []
    for out in outputs:
        numerators = [
            out + case.padding[axis] - k * case.dilation[axis]
            for k in reversed(range(case.kernel[axis]))
        ]
        found.append([v // case.stride[axis] for v in numerators if v % case.stride[axis] == 0])
    return np.array(found)


def check_taps(plan, case):
    """The line at position + shift of the tap is the tap's input pixel, or both are zeros."""
    in_h, in_w = case.size

    def pixel(ih, iw):  # its index, or -1: a zero
        inside = (ih >= 0) & (ih < in_h) & (iw >= 0) & (iw < in_w)
        return np.where(inside, ih * in_w + iw, -1)

    for phase in plan.phases:
        if phase.taps_h == 0:
            check_no_tap(case, phase)
            continue
        near_edges = {0, 1, 2, phase.count_h // 2, phase.count_h - 2, phase.count_h - 1}
        rows = np.array(sorted(near_edges & set(range(phase.count_h))), dtype=np.int64)
        if rows.size == 0 or phase.count_w == 0:
            continue
        cols = np.arange(phase.count_w)
        want_h = input_positions(case, 0, rows * case.stride[0] + phase.first_h)
        want_w = input_positions(case, 1, cols * case.stride[1] + phase.first_w)
        assert want_h.shape[1] == phase.taps_h and want_w.shape[1] == phase.taps_w
        strips = cols // plan.tile_w
        position = rows[:, None] * plan.pitch + (cols - strips * plan.tile_w)
        for tap_h in range(phase.taps_h):
            for tap_w in range(phase.taps_w):
                shift = tap_h * plan.tap_step_h * plan.pitch
                shift += phase.first_pixel + tap_w * plan.tap_step_w
                assert shift <= plan.reach
                row, col = np.divmod(position + shift, plan.pitch)
                image = 0
                if plan.line_samples > 1:
                    image, row = np.divmod(row, plan.image_rows)
                ih = row + plan.row_offset
                iw = col + strips * plan.tile_w + plan.col_offset
                want = pixel(want_h[:, tap_h, None], want_w[None, :, tap_w])
                got = pixel(ih, iw)
                assert (got == want).all(), (tap_h, tap_w)
                assert ((image == 0) | (got == -1)).all(), "a pixel of the next image"


def check_no_tap(case, phase):
    """No input reaches the outputs of this phase: along one axis or both no tap falls on one."""
    taps_h = input_positions(case, 0, [phase.first_h]).size
    taps_w = input_positions(case, 1, [phase.first_w]).size
    assert taps_h * taps_w == 0


def line_units(pixels):
    return -(-pixels // UNIT)


def check_ring(plan, chunk_tiles):
    """Follows a warpgroup of each segment over all chunks of a line: each product
    reads units that are there and not yet given back, at the place where the ring has them, and
    never waits for a unit that cannot come before it gives one back.
    """
    ring = plan.ring_units * UNIT
    readable = ring + plan.mirror_pixels
    assert line_units(plan.tile_pixels + plan.reach) == plan.window_units

    def wrapped(pixel):
        return pixel - ring if pixel >= ring else pixel

    # Units of a line beyond its first ones are like those before: a few tiles past a lap suffice.
    enough = min(plan.num_tiles, 2 * plan.ring_units * UNIT // plan.tile_pixels + 3)
    for segment in range(plan.num_segments):
        base = 0  # unit of the ring where the chunk's line begins
        for first in range(0, enough, chunk_tiles):
            tiles = min(chunk_tiles, plan.num_tiles - first, enough)
            with_taps = [phase for phase in plan.phases if phase.taps_h > 0]
            # Loaded anew for every phase, and twice for it: another ic block of the same tile.
            again = plan.num_ic_blocks > plan.ring_ic_blocks
            for phases in (
                [[phase] for phase in with_taps for _ in range(2)] if again else [with_taps]
            ):
                follow_chunk(plan, phases, segment, base, tiles, wrapped, readable)
                base += line_units(tiles * plan.tile_pixels + plan.reach)
                base %= plan.ring_units


def follow_chunk(plan, phases, segment, base, tiles, wrapped, readable):
    ring = plan.ring_units * UNIT
    ready = free = 0  # units of the line awaited, and given back
    tile_pixel = base * UNIT
    for tile in range(tiles):
        origin = tile * plan.tile_pixels
        continues = tile + 1 < tiles
        tile_end = origin + plan.tile_pixels if continues else 1 << 40
        for number, phase in enumerate(phases):
            last_use = number == len(phases) - 1
            first = segment * plan.segment_pixels + phase.first_pixel
            needed = origin + first
            top = wrapped(tile_pixel + first)
            row_step = plan.tap_step_h * plan.pitch
            extent = plan.segment_pixels + (phase.taps_w - 1) * plan.tap_step_w
            for _ in range(phase.taps_h):
                ready = max(ready, -(-(needed + extent) // UNIT))
                assert ready - free <= plan.ring_units, "waits for a unit that has no room"
                pixel = top
                for tap_w in range(phase.taps_w):
                    start = needed + tap_w * plan.tap_step_w  # of the line
                    assert 0 <= pixel < ring and (base * UNIT + start - pixel) % ring == 0
                    assert pixel + plan.segment_pixels <= readable
                    last = (plan.ring_ic_blocks - 1) * plan.ring_block_pixels + pixel
                    assert (last + plan.n) * PIXEL_BYTES <= plan.smem_bytes - 1024  # dropped
                    assert free * UNIT <= start and start + plan.segment_pixels <= ready * UNIT
                    pixel = wrapped(pixel + plan.tap_step_w)
                if last_use:
                    free = max(free, min(needed, tile_end) // UNIT)  # from the first tap on
                    assert free * UNIT <= needed
                top, needed = wrapped(top + row_step), needed + row_step
        if continues:
            end = tile_end // UNIT
            tile_pixel = wrapped(tile_pixel + plan.tile_pixels)
        else:
            end = line_units(origin + plan.tile_pixels + plan.reach)
        ready = max(ready, end)
        assert ready - free <= plan.ring_units, "waits for a unit that has no room"
        free = max(free, end)
    assert free == line_units(tiles * plan.tile_pixels + plan.reach)


def check_pooling(plan):
    """Windows are 2 x 2 and lie in one segment whole."""
    assert plan.num_strips == plan.num_phases == 1
    assert plan.segment_pixels > 0 and plan.segment_pixels % (2 * plan.pitch) == 0
    assert plan.tile_w <= plan.pitch and plan.n % 8 == 0


def check(plan, case, with_outputs=True):
    check_resources(plan, case)
    check_ranges(plan, case)
    if with_outputs:
        check_every_output_once(plan, case)
    check_taps(plan, case)
    check_ring(plan, min(plan.range_tiles, plan.num_tiles))
    if plan.mirror_pixels > 0:  # the cost alone decides how long chunks are
        check_ring(plan, plan.num_tiles)
    if plan.pooled:
        check_pooling(plan)
