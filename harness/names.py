"""Names that options take. Nothing is imported, so that --help and --list are there at once."""

# conv1d, conv2d or conv3d in place of transposed convolutions, in channels_last where there is such
# a layout, where that is the same operator.
CONV2D = "conv2d_channels_last"
BASELINES = ("eager", "compile", "channels_last", "compile_channels_last", CONV2D)
DTYPES = ("float32", "float16", "bfloat16", "float64")
SHORT_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
# What TCONV_KERNEL may hold: the names in kernels_src, of all solutions together.
KERNELS = ("auto", "plain", "direct", "portable", "hopper", "held", "slices", "avx2")
# What --compare's rows can be sorted by.
SORTS = ("problem", "ratio", "ms", "speedup")
