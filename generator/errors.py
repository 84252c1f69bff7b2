"""The one exception by which the generator says no."""


class Refusal(Exception):
    """The reference cannot be done; the message names the operation and its line."""
