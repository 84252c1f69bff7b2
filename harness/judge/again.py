"""A solution called as training loops and CUDA graphs call it: on the same tensors edited in place,
with other weights for the same input, two instances in turn, two forwards before either backward.

What a single call on fresh tensors cannot tell: whether outputs are remembered by less than
everything that they depend on, and whether two calls or two instances share what they must not.
"""

import base64
import pickle

import torch

from harness.errors import Rejected
from harness.judge import check, wire
from harness.judge.case_check import CaseChecker
from harness.judge.cases import Case
from harness.judge.drawn import Drawn, drawn
from harness.judge.edits import floating, random_swap, swap_in_place, swapped_weights
from harness.judge.reference import Reference
from harness.judge.truth import Expected

_REFUSALS = ("construct_error", "runtime_error", "out_of_memory")


class CallsAgainChecker:
    """Takes a case that the solution has answered rightly on from there; `check` raises Rejected.

    A second instance that the solution cannot construct or call is noted, no more: KernelBench
    makes one.
    """

    def __init__(self, checker: CaseChecker, reference: Reference):
        self.checker, self.candidate = checker, checker.candidate
        self.reference, self.init_inputs = reference, reference.init_inputs

    def check(self, case: Case, answer: Expected) -> None:
        """`answer` is that of the case itself."""
        self.case, self.state = case, self._others(case)
        self.training = self.checker.training(case)
        self.swaps = [random_swap(value) for value in floating(case.inputs)]
        edited = [value.clone() if torch.is_tensor(value) else value for value in case.inputs]
        for value, swap in zip(floating(edited), self.swaps, strict=True):
            swap_in_place(value, swap)
        self.edited = Case("edited", edited, case.state, case.seed + 1)
        before = self._in_place(answer, self.checker.expected(self.edited, self.training))
        self._other_weights(before)
        self.candidate.request("let_go", "ending repeated calls")

    def _others(self, case: Case) -> dict:
        """Other weights than the case's."""
        if isinstance(case.state, Drawn):
            return drawn(self.reference, case.state.seed + 1, self.checker.options.dtype)
        return swapped_weights(case.state)

    # One step each -----------------------------------------------------------------------------

    def _in_place(self, answer: Expected, edited: Expected) -> torch.Tensor:
        """The held input with two of its places swapped, without a trace in its tensor; the output
        that the first instance gives then.
        """
        candidate, case = self.candidate, self.case
        if self.checker.options.backward:
            self._two_steps(answer, edited)
        candidate.load_weights(case.state)
        inputs = candidate.send_inputs(case.inputs)
        backward = self.checker.options.backward
        candidate.request("hold", "sending inputs", inputs=inputs, backward=backward)
        self._call(None, [])
        ours = self._call(edited, self.swaps)
        where = f"two places of the input swapped in place ({self.swaps})"
        try:
            self._require_right(ours, edited, where)
        except Rejected as rejection:
            if self._is_right(ours, answer):
                told = f"the output from before the input was edited in place; {rejection.message}"
                raise Rejected("stale_output", told) from None
            raise
        self._construct_second()
        again = self._call(edited, []) if self.second else ours
        if not check.same_bits(again, ours):
            self._mixed(lambda: self._require_right(again, edited, "after a second instance"))
        return ours

    def _construct_second(self) -> None:
        """A second instance with other weights, called once on the held input."""
        found = self.checker.outcome.second_instance = {"verdict": "right"}
        try:
            construct(self.candidate, self.init_inputs, self.case.seed, self.state)
            self._call(None, [], second=True)
        except Rejected as rejection:
            if rejection.code not in _REFUSALS:
                raise
            found["verdict"], found["told"] = "refused", rejection.message[:300]
        self.second = found["verdict"] == "right"

    def _other_weights(self, before: torch.Tensor) -> None:
        """The held input once more, for the second instance, and for the first with its weights."""
        case = Case("edited", self.edited.inputs, self.state, self.edited.seed)
        answer = self.checker.expected(case, self.training, backward=False)
        if self.second:
            ours = self._call(answer, [], second=True)
            self._mixed(lambda: self._require_right(ours, answer, "a second instance"))
        self.candidate.load_weights(self.state)
        ours = self._call(answer, [])
        try:
            self._require_right(ours, answer, "the same input, other weights")
        except Rejected as rejection:
            if check.same_bits(ours, before):
                told = "the same input with other weights gives the output for the weights before"
                raise Rejected("stale_weights", f"{told}; {rejection.message}") from None
            raise

    def _two_steps(self, *answers: Expected) -> None:
        """Two forwards, then both backwards, in both orders."""
        candidate = self.candidate
        candidate.load_weights(self.case.state)
        pairs = zip((self.case, self.edited), answers, strict=True)
        values = [v for case, answer in pairs for v in (*case.inputs, answer.grad_output)]
        for order in ([0, 1], [1, 0]):
            inputs = candidate.send_inputs(values)
            reply = candidate.request(
                "two_steps",
                "computing two forwards, then both backwards",
                inputs=inputs,
                seed=self.case.seed,
                training=self.training,
                order=order,
            )
            steps, offset = reply.get("steps"), 0
            if not isinstance(steps, list) or [type(step) for step in steps] != [dict, dict]:
                raise Rejected("protocol_violation", "a malformed list of backwards")
            for index, step in zip(order, steps, strict=True):
                name = ("first", "second")[index]
                last = "" if index == order[0] else ", the other one's was before it"
                where = f"two forwards, then the {name} one's backward{last}"
                try:
                    _, offset = self.checker.require_right_gradients(
                        step, offset, answers[index], where
                    )
                except Rejected as rejection:
                    raise Rejected("backward_overwritten", str(rejection)) from None

    # Helpers -----------------------------------------------------------------------------------

    def _call(self, answer: Expected | None, swaps: list, second: bool = False):
        """One more call on the held input; its output where there is an answer to it."""
        reply = self.candidate.request(
            "again",
            f"calling {'a second instance' if second else 'again'} on the same tensor",
            second=second,
            swaps=swaps,
            seed=self.case.seed,
            training=self.training,
            backward=self.checker.options.backward,
            max_bytes=0 if answer is None else answer.own.nbytes,
        )
        if answer is None:
            return None
        check.require_form(reply, answer.own, answer.layout)
        return self.candidate.read(0, wire.spec_of(answer.own), self.candidate.device)

    def _require_right(self, ours: torch.Tensor, answer: Expected, where: str) -> None:
        self.checker.require_right(ours, answer, where)

    def _is_right(self, ours: torch.Tensor, answer: Expected) -> bool:
        try:
            self._require_right(ours, answer, "")
        except Rejected:
            return False
        return True

    @staticmethod
    def _mixed(require) -> None:
        """What is wrong where there are two instances is told as such."""
        try:
            require()
        except Rejected as rejection:
            raise Rejected("instances_mixed", rejection.message) from None


def construct(candidate, init_inputs: list, seed: int, state: dict) -> None:
    """A second instance in the solution's process, of these arguments and with this state, or
    drawn from its seed.
    """
    seeded = isinstance(state, Drawn)
    candidate.request(
        "construct_second",
        "constructing a second instance",
        init=base64.b64encode(pickle.dumps(init_inputs)).decode(),
        seed=state.seed if seeded else seed,
        state=None if seeded else candidate.send_state(state),
    )
