"""Work side by side gives what it gives one after the other."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from parity.parallel import side_by_side


def test_the_order_is_that_of_the_items():
    def slow_first(item):
        time.sleep(0.02 if item == 0 else 0)
        return item * item

    assert side_by_side(slow_first, range(9)) == [item * item for item in range(9)]


def test_threads_really_share_the_work():
    arrays = [np.ones(10) for _ in range(64)]
    meeting = threading.Barrier(2, timeout=10)

    def met(array):
        if array is arrays[0] or array is arrays[1]:
            meeting.wait()
        return float(array.sum())

    assert side_by_side(met, arrays) == [10.0] * 64


def test_an_error_is_raised():
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda item: 1 // item, [1, 0, 2])


def test_of_nothing_nothing():
    assert side_by_side(len, []) == []
