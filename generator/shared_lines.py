"""What the sources of a solution share, which it holds once."""

SHARED_LINES = "// ==== lines {first} to {end} of {name}"  # from 0, without the last


def without_shared_lines(text: str, given: dict[str, str], least: int = 12) -> str:
    """`text` with one line, SHARED_LINES, in place of each run of `least` lines or more that one of
    the sources `given`, by name, has, too: a solution then holds what its sources share once.
    generator/runtime/library_sources.py puts them back.
    """
    lines, there, begins = text.splitlines(), [], {}
    for name, source in given.items():
        begins[len(there)] = name
        there += [*source.splitlines(), None]  # no run goes on into the next
    places: dict[tuple, list[int]] = {}  # where so many lines begin
    for place in range(len(there) - least + 1):
        places.setdefault(tuple(there[place : place + least]), []).append(place)
    kept, at = [], 0
    while at < len(lines):
        best, begin = 0, 0
        for place in places.get(tuple(lines[at : at + least]), []) if lines[at].strip() else []:
            count = least
            while (
                at + count < len(lines)
                and place + count < len(there)
                and lines[at + count] == there[place + count]
            ):
                count += 1
            if count > best:
                best, begin = count, place
        if best > 0:
            own = max(first for first in begins if first <= begin)
            numbers = {"first": begin - own, "end": begin - own + best}
            kept.append(SHARED_LINES.format(**numbers, name=begins[own]))
            at += best
        else:
            kept.append(lines[at])
            at += 1
    return "\n".join(kept) + "\n"
