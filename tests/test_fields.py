"""A mistake in a Pair is told in one line before anything runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity import Jax, Operation, Pair, ParityUsageError, check


def never(*_):
    raise AssertionError("ran")


PAIR = Pair("pair", Jax(never), Jax(never), weights={}, inputs=never)
OPERATION = Operation("matmul", never, never, never, 1.5, "two roundings")

WRONG = {
    "name": [(None, "a text, got None; name the pair"), (" ", "a text, got ' '; name the pair")],
    "loss": [(3, "the name of an output, a function or two of them, or None, got 3"), ((never,), "got tuple")],
    "roundings": [
        (0, "a positive whole number, got 0; count the products on the longest path"),
        (1.5, "got 1.5"),
        (True, "got True"),
    ],
    "formula": [
        ({"forward": 1}, "None or whole numbers for forward and forward_backward, got {'forward': 1}"),
        ({"forward": 1.0, "forward_backward": 3}, "got {'forward': 1.0"),
    ],
    "points": [(["a"], "names of the reference's points to names of the candidate's, got ['a']"), ({"a": 1}, "got {")],
    "notes": [("a text", "a list of texts, got 'a text'; write ['...']"), ([1], "got [1]")],
    "operations": [([never], "a list of parity.Operation, got"), (OPERATION, "got Operation")],
    "mutants": [({"a": 3}, "functions by name that return a Pair, got {'a': 3}"), ([never], "got")],
    "dropout": [("same", "None, 'shared' or 'off', got 'same'"), ([], "got []")],
}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        pytest.param(name, *each, id=f"{name}-{index}")  # no address of a function: workers of xdist must agree
        for name, found in WRONG.items()
        for index, each in enumerate(found)
    ],
)
def test_a_field_of_the_wrong_type_is_told(field, value, told):
    with pytest.raises(ParityUsageError) as raised:
        check(replace(PAIR, **{field: value}))
    message = str(raised.value)
    assert message.startswith(f"{field}: ")
    assert told in message
    assert "\n" not in message


@pytest.mark.parametrize("limit", [0.5, np.inf, "2", None])
def test_an_operation_has_a_limit(limit):
    with pytest.raises(ParityUsageError, match=r"^operation matmul: a number of roundings, 1 or more as its limit"):
        check(replace(PAIR, operations=[replace(OPERATION, limit=limit)]))


def test_numbers_of_numpy_are_numbers():
    counts = {"forward": np.int64(3), "forward_backward": np.int32(9)}
    operation = replace(OPERATION, limit=np.float32(2))
    pair = replace(PAIR, roundings=np.int64(6), formula=counts, operations=(operation,), notes=("a", "b"))
    with pytest.raises(ParityUsageError, match=r"^inputs: "):  # the first thing that is run
        check(pair)


@pytest.mark.parametrize("given", [3, [PAIR], None], ids=["number", "list", "nothing"])
def test_what_is_no_pair_is_told(given):
    with pytest.raises(ParityUsageError, match=r"^check: a parity.Pair, got "):
        check(given)


def test_an_operation_has_a_name():
    with pytest.raises(ParityUsageError, match=r"^operation 3: a text as its name, got 3"):
        check(replace(PAIR, operations=[replace(OPERATION, name=3)]))


def test_an_operation_has_functions():
    with pytest.raises(ParityUsageError, match=r"^operation matmul: a function as its candidate, got 'einsum'"):
        check(replace(PAIR, operations=[replace(OPERATION, candidate="einsum")]))
