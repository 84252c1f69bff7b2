"""v / (abs(v) + 1), which is what PyTorch's function softsign is."""

from generator.ir import Node, Value


def softsign(
    value: Value, anchor: Node, users: dict[Value, list[Node | None]]
) -> list[Node] | None:
    """The nodes that make it of `value` and can run with the anchor; None where there are none."""
    reading = users.get(value, [])
    ops_of = [user.op if user is not None else "" for user in reading]
    if sorted(ops_of) != ["aten.abs.default", "aten.div.Tensor"]:
        return None
    absolute, divided = sorted(reading, key=lambda user: user.op)
    (added,) = (
        users.get(absolute.result, []) if len(users.get(absolute.result, [])) == 1 else (None,)
    )
    if added is None or added.op != "aten.add.Tensor" or added.args[1:] != (1,):
        return None
    found = [absolute, added, divided]
    if divided.args != (value, added.result) or users[added.result] != [divided]:
        return None
    same = all(node.regions == anchor.regions and not node.kwargs for node in found)
    return found if same else None
