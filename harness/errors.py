"""The ways an evaluation can end other than with an accepted solution."""


class HarnessError(Exception):
    """Base of the errors that stop the harness itself; `exit_status` is the process's status."""

    exit_status = 2


class UsageError(HarnessError):
    """A wrong option, an unknown problem, a missing or unusable file."""

    exit_status = 2


class EnvironmentUnfit(HarnessError):
    """This machine cannot do it: no such device, no compiler."""

    exit_status = 3


class Rejected(Exception):
    """The solution is rejected; `code` is one word that names the reason."""

    def __init__(self, code: str, message: str):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Refused(Exception):
    """The solution does not do what it need not do."""
