"""Fingerprints, layouts and pairing: equal values are found in any layout, faults by name, and nothing is dropped."""

from __future__ import annotations

import time

import numpy as np
import pytest

from parity import ParityUsageError
from parity.capture import Capture, Point, map_arrays
from parity.fingerprints import BLOCK, distance, fingerprint
from parity.pairing import layout_between, pair_points
from parity.point_names import normalised

RNG = np.random.Generator(np.random.PCG64(5))
X = RNG.normal(size=(2, 3, 5, 7))


def capture(**values):
    """A capture of these values; double underscores stand for dots."""
    points = [
        Point(name.replace("__", "."), "module", "", np.shape(value), "float64", np.asarray(value))
        for name, value in values.items()
    ]
    return Capture(tuple(points))


@pytest.mark.parametrize(
    "other", [X.reshape(6, 35), X.transpose(2, 0, 3, 1), np.broadcast_to(X, (4, *X.shape)), X[::-1, :, ::-1]]
)
def test_fingerprint_is_blind_to_layout(other):
    assert distance(fingerprint(X), fingerprint(other)) < 1e-14


@pytest.mark.parametrize(
    ("planted", "least"),
    [(X * (1 + 1e-6), 1e-7), (-X, 0.1), (np.minimum(X, 1.9), 1e-3), (X**3, 0.1), (X[:1], 1e-3)],
)
def test_fingerprint_tells_other_values(planted, least):
    assert distance(fingerprint(X), fingerprint(planted)) > least


def test_fingerprint_takes_any_mask_constant_for_the_same_but_not_another_mask():
    masked = [np.where(X > 1, huge, X) for huge in (-np.inf, np.finfo(np.float64).min, -1e30, np.nan)]
    assert max(distance(fingerprint(masked[0]), fingerprint(other)) for other in masked) == 0
    assert distance(fingerprint(masked[0]), fingerprint(np.where(X > 0.9, -np.inf, X))) > 1e-3


def test_fingerprint_reads_every_block():
    x = RNG.normal(size=3 * BLOCK + 11)
    got = fingerprint(x)
    assert got.numel == x.size
    want = (x.mean(), abs(x).mean(), (x**2).mean(), (x**3).mean(), (abs(x) ** 3).mean(), x.max(), x.min())
    assert np.allclose(got[2:], want, rtol=1e-13, atol=1e-15)
    x[-1] = 30
    assert fingerprint(x).maximum == 30


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.full(3, np.nan), np.ones(3), np.array(2), np.array([True])])
def test_fingerprint_of_nothing_recognisable(array):
    assert not fingerprint(array).recognisable
    assert distance(fingerprint(array), fingerprint(array)) == 0


RELATIONS = {
    "same": X,
    "reshape": X.reshape(6, 5, 1, 7),
    "transposed": X.transpose(0, 2, 1, 3),
    "merged": X.transpose(0, 2, 1, 3).reshape(2, 5, 21),
    "cycled": X.transpose(2, 0, 3, 1).reshape(5, 14, 3),
    "sorted": np.sort(X.reshape(-1)).reshape(X.shape),
    "other": X + 1,
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", RELATIONS)
def test_a_layout_is_found_and_carries_the_value(name, backwards):
    reference, candidate = (RELATIONS[name], X) if backwards else (X, RELATIONS[name])
    layout = layout_between(reference, candidate * (1 + 1e-15))
    if name in ("sorted", "other"):
        assert layout is None
    else:
        assert (str(layout) == "same") == (name == "same")
        assert np.array_equal(layout.there(reference), candidate)


def test_the_layout_of_swapped_roles_is_a_transposition():
    q, k = RNG.normal(size=(2, 2, 3, 7, 5))
    scores, swapped = (np.einsum("bnth,bnuh->bntu", a, b) for a, b in ((q, k), (k, q)))
    assert str(layout_between(scores, swapped)) == "a b c d -> a b d c"
    masked = np.where(np.tri(7, dtype=bool), scores, -np.inf)
    assert str(layout_between(masked, np.where(np.tri(7, dtype=bool), scores, -1e30))) == "same"
    assert layout_between(masked, np.where(np.tri(7, dtype=bool), swapped, -np.inf)) is None


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("transformer.h.1.ln_2", "model.layers_1.LayerNorm_2"),
        ("layers.attention[1]", "blocks.1.attn"),
        ("layers.attention#2", "blocks.1.attn"),
        ("layers.attention", "h_0.attn"),
        ("layers.norm[1]/reduce 'a b -> a'#2", "h.1.norm/reduce 'a b -> a'#2"),
        ("h.0.attn/rearrange 'b t d -> b d t'#2", "layers.attn[0]/rearrange 'b t d -> b d t'#2"),
        ("scores#2", "scores[1]"),
        ("h.0.attn:0", "h.0.attn"),
    ],
)
def test_names_of_one_place_are_equal(name, other):
    assert normalised(name) == normalised(other)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("h.1.ln_2", "h.2.ln_1"),
        ("h.0.attn:1", "h.0.attn"),
        ("scores", "scores#2"),
        ("a/rearrange 'b t -> t b'", "a/rearrange 'b h -> h b'"),
        ("it's: a/b", "it's: a/c"),
    ],
)
def test_names_of_two_places_differ(name, other):
    assert normalised(name) != normalised(other)


def names(pairing):
    return {(pair.reference.name, pair.candidate.name, pair.how) for pair in pairing.pairs}


def test_values_pair_before_names_and_the_similar_name_wins():
    x, y = RNG.normal(size=(2, 24))
    got = pair_points(capture(h__0__q=x, h__0__k=y), capture(layers__0__q=y, layers__0__k=x))
    assert names(got) == {("h.0.q", "layers.0.k", "value"), ("h.0.k", "layers.0.q", "value")}
    got = pair_points(capture(h__0__drop=x, h__0__out=x), capture(layers__0__out=x, layers__0__drop=x))
    assert names(got) == {("h.0.drop", "layers.0.drop", "value"), ("h.0.out", "layers.0.out", "value")}


def test_numbers_in_names_outweigh_words():
    x = RNG.normal(size=24)
    got = pair_points(capture(h__0__mlp=x, h__1__mlp=x), capture(h__1__ffn=x, h__0__ffn=x))
    assert names(got) == {("h.0.mlp", "h.0.ffn", "value"), ("h.1.mlp", "h.1.ffn", "value")}
    got = pair_points(capture(h__0__attn__out__drop=x), capture(h__1__attn__out__drop=x, h__0__attn__result=x))
    assert names(got) == {("h.0.attn.out.drop", "h.0.attn.result", "value")}


def test_a_broadcast_value_is_no_partner():
    x = RNG.normal(size=24)
    assert pair_points(capture(position=x), capture(broadcast=np.stack([x, x]))).pairs == ()


def test_a_map_comes_first_and_is_checked():
    x, y = RNG.normal(size=(2, 24))
    left, right = capture(a=x, b=y), capture(a=x, b=y, c=x)
    got = pair_points(left, right, {"a": "c"})
    assert names(got) == {("a", "c", "map"), ("b", "b", "value")}
    assert [(lonely.side, lonely.name) for lonely in got.unmatched] == [("candidate", "a")]
    assert got.unmatched[0].reason == "a on the other side has another partner"
    with pytest.raises(ParityUsageError, match="points: names of points, the reference's to the candidate's, got 'd'"):
        pair_points(left, right, {"d": "a"})
    with pytest.raises(ParityUsageError, match="points: each point of the candidate once"):
        pair_points(left, right, {"a": "a", "b": "a"})


def test_differing_values_pair_by_name_and_size_and_the_rest_is_told():
    x, y = RNG.normal(size=(2, 24))
    got = pair_points(capture(h__0=x, h__1=x[:12], only=x[:5]), capture(h__0=y, h__1=y))
    assert names(got) == {("h.0", "h.0", "name")}
    assert got.pairs[0].layout is None
    assert got.pairs[0].distance > 0.01
    assert [(lonely.side, lonely.name, lonely.reason) for lonely in got.unmatched] == [
        ("reference", "h.1", "h.1 on the other side has shape (24,), this one (12,)"),
        ("reference", "only", "the other side has no point of this value or name"),
        ("candidate", "h.1", "h.1 on the other side has shape (12,), this one (24,)"),
    ]


def test_constants_do_not_pair_by_value():
    zeros = np.zeros(24)
    assert not pair_points(capture(mask=zeros), capture(bias=zeros)).pairs
    assert names(pair_points(capture(mask=zeros), capture(mask=zeros))) == {("mask", "mask", "name")}


def test_nothing_to_pair():
    assert pair_points(Capture(()), Capture(())).pairs == ()
    assert len(pair_points(Capture(()), capture(a=X)).unmatched) == 1


def test_three_hundred_points_take_no_time():
    values = {f"h__{i // 10}__module_{i % 10}": RNG.normal(size=(2, 7, 24)) for i in range(300)}
    left, right = capture(**values), capture(**{name: x.transpose(0, 2, 1) for name, x in values.items()})
    start = time.process_time()
    got = pair_points(left, right)
    assert time.process_time() - start < 5
    assert all(pair.reference.name == pair.candidate.name for pair in got.pairs)
    assert len(got.pairs) == 300


def test_containers_are_rebuilt_only_where_something_changed():
    kept = {"a": [1, 2]}
    tree = {"x": (np.ones(2), kept), "y": None}
    same = map_arrays(tree, lambda slot, leaf: leaf)
    assert same is tree
    slots = []
    changed = map_arrays(
        tree, lambda slot, leaf: slots.append(slot) or (leaf + 1 if isinstance(leaf, np.ndarray) else leaf)
    )
    assert slots == [":x.0", ":x.1.a.0", ":x.1.a.1", ":y"]
    assert changed["x"][1] is kept
    assert np.array_equal(changed["x"][0], [2, 2])
    assert np.array_equal(tree["x"][0], [1, 1])
