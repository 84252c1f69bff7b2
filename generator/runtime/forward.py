"""Small helpers of the generated ModelNew.forward."""


def _with_batch_dimension(out):
    """An unbatched result, broadcast against an operand of shape (1, C, 1, 1)."""
    return out if out.dim() == 4 else out.unsqueeze(0)


def _require_constants(given: tuple, compiled: tuple) -> None:
    """Numbers of the chain are compiled into the kernels: a model with other ones needs other
    kernels.
    """
    if given != compiled:
        raise ValueError(
            f"this solution was generated for the constants {compiled}, the model has {given}: "
            "generate it again from "
            "a reference whose get_init_inputs() sets these"
        )
