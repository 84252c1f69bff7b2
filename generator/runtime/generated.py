"""Stand-ins for what the generator writes into each solution."""

_SLUG = "stand_in"
_DIGEST = ""
_CALL = ""
_CALLS = ()
_CHAIN = ()
_NUM_VECTORS = 0
_ACTIVATION = None
CPU_SOURCE = ""
CUDA_SOURCE = ""
OPERATOR_SOURCE = ""
GRADIENT_CUDA_SOURCE = ""
GRADIENT_OPERATOR_SOURCE = ""
NORM_GRADIENT_CUDA_SOURCE = ""
NORM_GRADIENT_OPERATOR_SOURCE = ""
