"""Small helpers of the generated ModelNew.forward."""


def _with_batch_dimension(out, dimensions: int = 4):
    """An unbatched result, broadcast against an operand of shape (1, C, 1, 1): one of so many
    dimensions.
    """
    return out if out.dim() == dimensions else out.unsqueeze(0)


def _require_constants(names: tuple, compiled: tuple, *given) -> None:
    """Numbers of the chain are compiled into the kernels: a model with other ones needs other
    kernels.
    """
    if given != compiled:
        for value, constant, name in zip(given, compiled, names, strict=True):
            if value != constant:
                raise ValueError(
                    f"this solution was generated for {name} = {constant!r}, the model has "
                    f"{value!r}: generate it again from a reference that sets it"
                )
