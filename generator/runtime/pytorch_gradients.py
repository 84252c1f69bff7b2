"""Takes the place of the modules of kernels for gradients where a solution has none."""

_GRADIENT_DEVICES = ()
_kernel_conv = _kernel_gradients = _kernel_group_norm_gradients = None
_kernel_chain_gradients = _kernel_pool_gradients = _kernels_pool = _slides = None


def _volumes_with_gradient(*_):
    """Forward takes the way that has PyTorch's gradients."""
    return None
