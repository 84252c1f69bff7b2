"""What takes the place of volume_gradients.py's function where chains have operands of the output's
shape, which come as volumes. All are saved, for create_graph=True.
"""

from generator.runtime.group_norm_gradient_kernels import _kernel_chain_gradients
from generator.runtime.tensor_operands import _wanted_operands


def _before_chain(grad, value, vectors, needs, chain: int) -> tuple:
    """(gradient of `value`, from that of its `chain`; its sums per channel or None; gradients of
    the chain's operands); needs: of the sums, then of the operands.
    """
    whole = [i for i, vector in enumerate(vectors) if vector.dim() == 5]
    planes = [v.contiguous().flatten(2, 3) if i in whole else v for i, v in enumerate(vectors)]
    wanted = _wanted_operands(needs[1:], whole)
    return _kernel_chain_gradients(grad, value, planes, needs[0], False, chain, whole, wanted)
