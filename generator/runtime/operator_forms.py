"""Forms of an operator whose output is the convolution's in shape, and whose arguments are the
convolution's and then any others.
"""

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import _conv_output_shape, _make_conv, _new_output
from generator.runtime.precision import _tf32_allowed


def _make_run(kernels):
    def run(x, weight, bias, conv, *rest):
        (sh, sw), (ph, pw), (oph, opw), (dh, dw), groups = conv
        tf32 = _tf32_allowed()
        with _ALLOCATION:
            return kernels(x, weight, bias, sh, sw, ph, pw, oph, opw, dh, dw, groups, tf32, *rest)

    return run


def _make_traced(run):
    return lambda x, weight, bias, *args: run(x, weight, bias, args[:5], *args[5:])


def _make_fake_run(fake):
    def fake_run(x, weight, bias, *args):
        pairs = zip(args[0:8:2], args[1:8:2], strict=True)
        return fake(x, weight, bias, *pairs, args[8], *args[10:])

    return fake_run


def _fake(x, weight, bias, *args):
    shape = _conv_output_shape(x, weight, bias, _make_conv(*args[:5]))
    return _new_output(shape, x, weight)
