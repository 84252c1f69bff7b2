"""Steps that read one another's values, as one step of a chain."""

from generator.runtime.step_gradients import _Channel


class _Earlier(_Channel):
    """The value of this number among those of the branches."""

    def value(self, vectors):
        return vectors.values[self.index]

    def take(self, grad, vector_grads):
        vector_grads.add(self.index, grad)


class _Identity:
    needs_values = False

    def forward(self, v, vectors):
        return v

    def backward(self, grad, before, after, vectors, vector_grads):
        return grad


class _Detach:
    """Lets no gradient through."""

    needs_values = False

    def forward(self, v, vectors):
        return v.detach()

    def backward(self, grad, before, after, vectors, vector_grads):
        return None


class _Operands:
    """What the parts of branches read: per-channel operands by index, and values so far."""

    def __init__(self, vectors, value):
        self.vectors, self.values = vectors, [value]

    def __getitem__(self, index):
        return self.vectors[index]


class _Gradients:
    """Of per-channel operands by index, as they come, and of values, summed; None: not reached."""

    def __init__(self, vector_grads, count: int):
        self.vector_grads, self.of_values = vector_grads, [None] * count

    def __setitem__(self, index, grad):
        self.vector_grads[index] = grad

    def add(self, number: int, grad):
        before = self.of_values[number]
        self.of_values[number] = grad if before is None else before + grad


class _Branches:
    """Parts (number of the value that goes in, step); value 0 comes in, value i is that of part i,
    counted from 1, and the last goes out.
    """

    needs_values = True

    def __init__(self, *parts):
        self.parts = parts

    def _operands(self, v, vectors):
        operands = _Operands(vectors, v)
        for source, step in self.parts:
            operands.values.append(step.forward(operands.values[source], operands))
        return operands

    def forward(self, v, vectors):
        return self._operands(v, vectors).values[-1]

    def backward(self, grad, before, after, vectors, vector_grads):
        operands = self._operands(before, vectors)
        values = operands.values
        grads = _Gradients(vector_grads, len(values))
        grads.add(len(self.parts), grad)
        for number, (source, step) in reversed(list(enumerate(self.parts, 1))):
            given = grads.of_values[number]
            if given is None:
                continue
            found = step.backward(given, values[source], values[number], operands, grads)
            if found is not None:
                grads.add(source, found)
        return grads.of_values[0]
