"""What a training step's forward keeps on CUDA, so that backward need not compute it again."""

from generator.runtime.arguments import _output_size
from generator.runtime.batch_norm_pool_gradient_kernels import _kernels_pool
from generator.runtime.gradient_kernels import _GRADIENT_DEVICES


def _kept_output(x, weight, conv, pool, parameters):
    """A tensor for the convolution's output, [batch, out_channels, out_h, out_w]; None where no
    kernel of ours reads it in backward, where dtypes are mixed, or for the operator to refuse.
    """
    if x.device.type not in _GRADIENT_DEVICES or not _kernels_pool(pool) or x.numel() == 0:
        return None
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[0]:
        return None
    if any(p is not None and p.dtype is not x.dtype for p in (weight, *parameters)):
        return None
    sizes = [
        _output_size(x.shape[2 + axis], weight.shape[2 + axis], *(pair[axis] for pair in conv[:4]))
        for axis in range(2)
    ]
    if min(sizes) <= 0:
        return None
    return x.new_empty((x.shape[0], weight.shape[1] * conv[4], *sizes))
