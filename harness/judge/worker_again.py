"""What a training loop does and a single call does not: the operations of a solution's process that
call it again on the same tensors edited in place, call a second instance, or call it twice before
either backward.
"""

import base64
import pickle

import torch

from harness.judge.blame import Failure, blamed
from harness.judge.edits import floating, swap_in_place
from harness.measure import clock


class CallsAgain:
    """Operations of `Worker`, which has `model`, `device`, `dtype`, and sends and receives."""

    held: list = []
    second: torch.nn.Module | None = None

    def hold(self, inputs: list, backward: bool) -> dict:
        """Keep the inputs in the inbox for `again`."""
        self.held, _ = self._receive(inputs, False)
        if backward:
            for value in floating(self.held):
                value.requires_grad_(True)
        return {}

    def construct_second(self, init: str, seed: int, state: list | None) -> dict:
        """Another instance of these arguments, with the given state, or as drawn where that is
        None.
        """
        with blamed("construct_error"):
            arguments = pickle.loads(base64.b64decode(init))
            torch.manual_seed(seed)
            self.second = self._joining(self.constructor(*arguments))
            if state is None:
                self.second.to(device=self.device, dtype=self.dtype)
        if state is not None:
            self._copy_state(self.second, state)
        return {}

    def again(
        self, second: bool, swaps: list, seed: int, training: bool, backward: bool, max_bytes: int
    ) -> dict:
        """A call on the held tensors, edited first; the output is sent where it is no larger.

        The edit changes neither the tensors, nor where they lie, nor their version counters.
        """
        for value, swap in zip(floating(self.held), swaps, strict=False):
            swap_in_place(value.data, swap)
        model = self.second if second else self.model
        model.train(training)
        torch.manual_seed(seed)
        with blamed("runtime_error"):
            call = model if backward else clock.forward_call(model)
            output = call(*self.held)
            clock.synchronize(self.device)
            reply = {"output": self._describe_output(output, model)}
            if self._can_send(output, max_bytes):
                self._send_tensors([output], 0)
        return reply

    def two_steps(self, inputs: list, seed: int, training: bool, order: list) -> dict:
        """Two forwards, then their backwards in this order, [0, 1] or [1, 0].

        The inbox holds the first forward's inputs and its output's gradient, then the second's. The
        outbox then holds the gradients of inputs and parameters, the earlier backward's first.
        """
        values, _ = self._receive(inputs, False)
        half = len(values) // 2
        steps = [(part[:-1], part[-1]) for part in (values[:half], values[half:])]
        for value in floating([*steps[0][0], *steps[1][0]]):
            value.requires_grad_(True)
        self.model.train(training)
        torch.manual_seed(seed)
        found, offset = [], 0
        with blamed("runtime_error"):
            outputs = [self.model(*values) for values, _ in steps]
            for index in order:
                for parameter in self.model.parameters():
                    parameter.grad = None
                if not outputs[index].requires_grad:
                    raise Failure("missing_gradient", "the output is not part of a graph")
                outputs[index].backward(steps[index][1])
                clock.synchronize(self.device)
                specs, offset = self._send_gradients(steps[index][0], offset)
                found.append({"gradients": specs})
        return {"steps": found}

    def let_go(self) -> dict:
        """Forget the held inputs and the second instance."""
        self.held, self.second = [], None
        clock.release_memory(self.device)
        return {}
