"""A signal whose exception Python ignored, in a finalizer, is raised again at the next step."""

import os
import signal
import warnings

import pytest

from surrogate.cli.lost_signals import signals_kept

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a process cannot send itself these signals there")


class Finalized:
    """Gets a signal while it is finalised."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        for _ in range(100):  # Python runs handlers between two of its instructions
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_lost_in_a_finalizer_is_raised_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals_kept() as raise_again:
        raise_again()
        lost = Finalized(signal.SIGINT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            del lost
        with pytest.raises(KeyboardInterrupt):
            raise_again()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_arrives_is_that_of_before() -> None:
    with pytest.raises(KeyboardInterrupt), signals_kept():
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
