"""What the tests of tails' gradients share: the call of a case, and the truth in float64."""

import dataclasses

import torch
import torch.nn.functional as F

from tests.tail_tools import TailCase

UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@dataclasses.dataclass(frozen=True)
class TailGradientCase:
    """A tail's case, and which sums are wanted, one bit each. `grad_shift`: values by which the
    gradient begins behind a boundary of 16 bytes.
    """

    tail: TailCase
    wanted: int = 0
    grad_shift: int = 0

    def __str__(self):
        return f"{self.tail}-{self.wanted}-{self.grad_shift}"

    def grad(self, value: torch.Tensor) -> torch.Tensor:
        """Of the result."""
        shape = value.shape
        if self.tail.kind in ("kAveragePool", "kMaxPool"):
            windows = zip(shape[2:], self.tail.window, strict=True)
            shape = (*shape[:2], *(size // window for size, window in windows))
        generator = torch.Generator().manual_seed(11)
        made = torch.randn(torch.Size(shape).numel() + self.grad_shift, generator=generator)
        return made.to(value.device, value.dtype)[self.grad_shift :].view(shape)

    def call(self, library, value: torch.Tensor, grad: torch.Tensor) -> tuple:
        tail, vectors = self.tail, self.tail.vectors(value.device)
        given = tail.number, grad, value
        if tail.kind == "kSoftmax":
            return library.softmax(*given, self.wanted, *vectors)
        if tail.kind == "kPlaneSoftmax":
            return library.plane_softmax(*given, self.wanted, *vectors)
        if tail.kind != "kLayerNorm":
            return library.pool(*given, *tail.window, self.wanted, *vectors)
        numbers = tail.eps, tail.row, self.wanted
        return library.layer_norm(*given, *tail.parameters(value.device), *numbers, *vectors)

    def truth(self, value: torch.Tensor, grad: torch.Tensor) -> tuple:
        """(gradient of value, those of the sums by bit), by autograd in float64."""
        tail, leaf = self.tail, value.double().requires_grad_()
        like = (1, -1, *[1] * (value.dim() - 2))
        vectors = [v.double().requires_grad_() for v in tail.vectors(value.device)]
        summed = vectors
        if tail.kind == "kSoftmax":
            y = leaf.softmax(1)
        elif tail.kind == "kPlaneSoftmax":
            y = leaf.flatten(2).softmax(2).view(value.shape)
        elif tail.kind == "kMaxPool":
            y = F.max_pool3d(leaf, tail.window)
        elif tail.kind == "kAveragePool":
            y = F.avg_pool3d(leaf, tail.window)
        else:
            summed = [
                None if t is None else t.double().requires_grad_()
                for t in tail.parameters(value.device)
            ]
            rows = F.layer_norm(leaf.reshape(-1, tail.row), (tail.row,), *summed, tail.eps)
            y = rows.view(value.shape)
        by, to = [v.view(like) for v in vectors] or (1.0, 0.0)
        wanted = [summed[bit] for bit in range(len(summed)) if self.wanted >> bit & 1]
        found = torch.autograd.grad(tail.steps.run(y, by, to), [leaf, *wanted], grad.double())
        sums = iter(found[1:])
        bits = range(self.wanted.bit_length())
        return found[0], [next(sums) if self.wanted >> bit & 1 else None for bit in bits]

    def _scale(self, value: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """What roundings of a value's gradient are relative to: the largest terms of it."""
        tail, value = self.tail, value.double()
        like = (1, -1, *[1] * (value.dim() - 2))
        by, to = [v.double().view(like).abs() for v in tail.vectors(value.device)] or (1.0, 0.0)
        y, off = tail.operator(value)
        # Slopes change by at most two for each unit by which the steps' input is off.
        steps = by * (32 * 2.0**-24 + 2 * by * off + 8 * 2.0**-24 * (by * y.abs() + to))
        ahead, size = grad.double().abs() * steps, grad.double().abs() * by * 1.2
        if tail.kind in ("kSoftmax", "kPlaneSoftmax"):
            axes = 1 if tail.kind == "kSoftmax" else tuple(range(2, value.dim()))
            ahead, size = ahead.expand_as(y), size.expand_as(y)

            def summed(terms):
                return terms.sum(axes, keepdim=True)

            own = y * (summed(y * ahead) + ahead) + off * (size + summed(y * size))
            return own + y * summed(off * size + 40 * 2.0**-24 * y * size)
        if tail.kind in ("kAveragePool", "kMaxPool"):
            whole = [size * window for size, window in zip(y.shape[2:], tail.window, strict=True)]
            repeated = ahead + 4 * 2.0**-24 * size
            for axis, window in enumerate(tail.window):
                repeated = repeated.repeat_interleave(window, axis + 2)
            made = torch.zeros_like(value)
            made[:, :, : whole[0], : whole[1], : whole[2]] = repeated
            return made
        rows = value.reshape(-1, tail.row)
        rstd = (rows.var(1, correction=0, keepdim=True) + tail.eps).rsqrt()
        plain = F.layer_norm(rows, (tail.row,), eps=tail.eps).abs()
        read = rows.abs().amax(1, keepdim=True) * rstd * 4 * 2.0**-24
        weight = tail.parameters(value.device)[0]
        scale = 1.0 if weight is None else weight.double().abs()
        wrong = (ahead.reshape(-1, tail.row) * scale).amax(1, keepdim=True)
        terms = (size.expand(value.shape).reshape(-1, tail.row) * scale).amax(1, keepdim=True)
        units = (16 + tail.row / 8) * 2.0**-24
        most = 1 + plain.amax(1, keepdim=True) ** 2
        made = rstd * most * (wrong + (2 * read + units) * 2 * terms)
        return made.expand_as(rows).reshape(value.shape)

    def check(self, library, device="cpu") -> tuple:
        """Both results against float64: within roundings of fp32 and the one at the store."""
        value = self.tail.value(device)
        grad = self.grad(value)
        found, sums = self.call(library, value, grad)
        exact, exact_sums = self.truth(value, grad)
        assert found.dtype == value.dtype and found.shape == value.shape and found.is_contiguous()
        scale = self._scale(value, grad)
        smallest = torch.finfo(value.dtype).smallest_normal * torch.finfo(value.dtype).eps
        bound = UNIT[value.dtype] * (exact.abs() + scale) + scale + smallest
        wrong = ~((found.double() - exact).abs() <= bound)
        assert not bool(wrong.any()), (str(self), int(wrong.sum()), found[wrong], exact[wrong])
        assert sums.shape[0] == self.wanted.bit_length() and sums.dtype == value.dtype
        for bit, wanted in enumerate(exact_sums):
            if wanted is not None:
                self._check_sums(sums[bit], wanted, value, grad)
        return found, sums

    def _check_sums(self, found, exact, value, grad) -> None:
        """Of terms that may cancel: relative to what they are without their signs."""
        terms = grad.double().abs().sum() / exact.numel() * 4
        bound = UNIT[value.dtype] * exact.abs() + 2.0**-18 * (1 + terms)
        wrong = ~((found.double() - exact).abs() <= bound)
        assert not bool(wrong.any()), (str(self), found[wrong], exact[wrong])
