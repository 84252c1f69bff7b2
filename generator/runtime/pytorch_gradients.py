"""Takes the place of gradient_kernels.py and group_norm_gradient_kernels.py where a solution has no
kernels for gradients.
"""

_GRADIENT_DEVICES = ()
_kernel_conv = _kernel_gradients = _kernel_group_norm_gradients = None
