"""Layouts between shapes, and parameters paired by the numbers that they hold."""

from __future__ import annotations

import numpy as np
import pytest

from parity.layouts import find_layouts
from parity.links import Mapped
from parity.matching import CLOSE, alike, fingerprint, match_names, match_values
from parity.weights.weight_map import WeightMap


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def found(a: np.ndarray, b: np.ndarray) -> list[str]:
    return [str(layout) for layout in find_layouts(a, b, np.array_equal)]


MADE = {
    "the same": ((5, 7), lambda a: a, "same"),
    "transposed": ((5, 5), lambda a: a.T, "a b -> b a"),
    "heads apart": ((24, 20), lambda a: a.T.reshape(20, 4, 6), "(a b) c -> c a b"),
    "heads together": ((20, 4, 6), lambda a: a.reshape(20, 24).T, "a b c -> (b c) a"),
    "heads the other way round": ((24, 7), lambda a: a.reshape(4, 6, 7).transpose(0, 2, 1), "(a b) c -> a c b"),
    "a convolution": ((8, 3, 2, 5), lambda a: a.transpose(2, 3, 1, 0), "a b c d -> c d b a"),
    "an axis of one more": ((6,), lambda a: a[None], "a -> a"),
}


@pytest.mark.parametrize("name", MADE)
def test_a_layout_is_found_and_undone(name: str) -> None:
    shape, change, pattern = MADE[name]
    a = numbers(*shape)
    b = change(a)
    assert found(a, b)[0] == pattern
    for layout in find_layouts(a, b, np.array_equal):
        np.testing.assert_array_equal(layout.there(a), b)
        np.testing.assert_array_equal(layout.back(b), a)


def test_other_numbers_have_no_layout() -> None:
    a = numbers(5, 5)
    b = a.T.copy()
    b[1, 2] += 1
    assert found(a, b) == []
    assert found(a, numbers(5, 6)) == []


def test_the_fingerprint_knows_no_order_but_every_bit() -> None:
    a = numbers(3, 70_001)
    assert fingerprint(a) == fingerprint(a.T[::-1])
    b = a.copy()
    b[1, 5] = np.nextafter(b[1, 5], np.float32(9))
    assert fingerprint(a) != fingerprint(b)
    assert fingerprint(np.zeros(4, np.float32)) != fingerprint(np.zeros(5, np.float32))
    (_, whole), parts = fingerprint(a), [fingerprint(row)[1] for row in a]
    assert whole == sum(parts) % 2**64


def moves(reference: dict[str, np.ndarray], candidate: dict[str, np.ndarray]) -> list[str]:
    return [str(move) for move in match_values(reference, candidate).link.moves]


def test_parameters_are_paired_by_values_under_any_names_and_layouts() -> None:
    reference = {"fc.weight": numbers(7, 5), "fc.bias": numbers(7), "emb": numbers(11, 5)}
    candidate = {"e": numbers(11, 5), "dense.k": numbers(7, 5).T, "dense.b": numbers(7)}
    link = match_values(reference, candidate).link
    assert sorted(map(str, link.moves)) == [
        "emb = e: same",
        "fc.bias = dense.b: same",
        "fc.weight = dense.k: a b -> b a",
    ]
    assert link.apart == ((), ())
    forward = link.forward(reference)
    assert list(forward) == list(candidate)
    for name, array in candidate.items():
        np.testing.assert_array_equal(forward[name], array)
    back = link.backward(forward)
    assert list(back) == list(reference)
    for name, array in reference.items():
        np.testing.assert_array_equal(back[name], array)


def test_packed_and_stacked_parameters_are_paired_with_their_parts() -> None:
    q, k, v = (numbers(6, 5, seed=seed) for seed in (1, 2, 3))
    layers = [numbers(4, 3, seed=seed) for seed in (4, 5)]
    reference = {"in_proj": np.concatenate([q, k, v]), **{f"h.{i}.w": layer for i, layer in enumerate(layers)}}
    candidate = {"q": q.T, "k": k.T, "v": v.T, "layers.w": np.stack([layer.T for layer in layers])}
    link = match_values(reference, candidate).link
    assert sorted(map(str, link.moves)) == [
        "h.0.w = layers.w[0]: a b -> b a",
        "h.1.w = layers.w[1]: a b -> b a",
        "in_proj[0:6] = q: a b -> b a",
        "in_proj[12:18] = v: a b -> b a",
        "in_proj[6:12] = k: a b -> b a",
    ]
    for name, array in link.backward(link.forward(reference)).items():
        np.testing.assert_array_equal(array, reference[name])


def test_what_has_no_equal_is_named_and_keeps_its_own_numbers() -> None:
    reference, candidate = {"a": numbers(3), "only": numbers(4)}, {"x": numbers(3), "other": numbers(2)}
    link = match_values(reference, candidate).link
    assert link.apart == (("only",), ("other",))
    np.testing.assert_array_equal(link.forward(reference)["other"], numbers(2))
    assert list(link.backward(candidate)) == ["a"]
    assert match_values({"a": numbers(3), "b": numbers(3)}, {"tied": numbers(3)}).link.apart == (("a", "b"), ("tied",))


def test_constants_are_paired_by_name_until_gradients_tell() -> None:
    reference = {"ln_1.bias": np.zeros(4), "fc.bias": np.zeros(4), "fc.weight": np.zeros((4, 4))}
    candidate = {"dense.b": np.zeros(4), "norm_1.b": np.zeros(4), "dense.w": np.zeros((4, 4))}
    matched = match_values(reference, candidate)
    pairs = {(move.source, move.target) for move in matched.link.moves}
    assert pairs == {("ln_1.bias", "norm_1.b"), ("fc.bias", "dense.b"), ("fc.weight", "dense.w")}
    gradients = {"ln_1.bias": numbers(4, seed=1), "fc.bias": numbers(4, seed=2), "fc.weight": numbers(4, 4)}
    swapped = {"dense.b": numbers(4, seed=1), "norm_1.b": numbers(4, seed=2), "dense.w": numbers(4, 4).T * (1 + 1e-9)}
    settled = {str(move) for move in matched.settled(gradients, swapped, CLOSE).link.moves}
    assert settled == {"ln_1.bias = dense.b: same", "fc.bias = norm_1.b: same", "fc.weight = dense.w: a b -> b a"}


def test_a_square_of_zeros_lies_as_its_like_do() -> None:
    reference = {"a.weight": numbers(4, 4), "b.weight": np.zeros((4, 4))}
    candidate = {"x.kernel": numbers(4, 4).T, "y.kernel": np.zeros((4, 4))}
    assert "b.weight = y.kernel: a b -> b a" in moves(reference, candidate)


def test_names_alone_pair_running_statistics() -> None:
    reference = {"bn.running_mean": np.zeros(3), "bn.running_var": np.ones(3)}
    candidate = {"batch_stats.bn.var": np.ones(3), "batch_stats.bn.mean": np.zeros(3)}
    assert match_names(reference, candidate) == [
        ("bn.running_mean", "batch_stats.bn.mean"),
        ("bn.running_var", "batch_stats.bn.var"),
    ]
    assert alike("h.3.ln_1.weight", "layers.3.norm_1.scale") == 1
    assert alike("h.3.ln_1.weight", "h.2.ln_1.weight") < 1


def test_a_weight_map_links_and_says_what_it_lacks() -> None:
    reference = {"c_attn.weight": numbers(6, 18), "old": numbers(2)}
    candidate = {"q": numbers(6, 18)[:, :6].reshape(6, 2, 3).transpose(1, 0, 2), "kv": numbers(6, 18)[:, 6:]}
    text = """
    q <- c_attn.weight : d (part n h) -> n d h ; part=3 ; n=2 ; take part=0
    kv <- c_attn.weight : d c -> d c ; take c=6:18
    ! old : not read
    """
    link = Mapped.of(WeightMap.parse(text), reference, candidate)
    for name, array in link.forward(reference).items():
        np.testing.assert_array_equal(array, candidate[name])
    np.testing.assert_array_equal(link.backward(candidate)["c_attn.weight"], reference["c_attn.weight"])
    with pytest.raises(ValueError, match="weight map: old: read by a rule or ignored, got neither"):
        Mapped.of(WeightMap.parse(text.replace("! old : not read", "")), reference, candidate)
    with pytest.raises(ValueError, match=r"weight map: z: written by one rule .* got 0 rules"):
        Mapped.of(WeightMap.parse(text), reference, {**candidate, "z": numbers(2)})
    with pytest.raises(ValueError, match=r"weight map: kv .*: the shapes"):
        Mapped.of(WeightMap.parse(text), reference, {**candidate, "kv": numbers(6, 11)})


def test_the_ways_of_a_link_are_counted_in_words() -> None:
    reference = {f"l{i}.w": numbers(4, 6, seed=i) for i in range(3)} | {"bias": numbers(6), "qkv": numbers(9, 5)}
    candidate = {f"l{i}.kernel": reference[f"l{i}.w"].T for i in range(3)} | {"b": reference["bias"]}
    candidate |= dict(zip("qkv", np.split(reference["qkv"], 3), strict=True))
    link = match_values(reference, candidate).link
    assert link.told == "3 transposed, 3 in parts, unchanged, 1 unchanged"
    assert not link.trivial
    assert match_values(reference, reference).link.told == "5 unchanged"


def test_many_ways_of_a_link_are_not_all_told() -> None:
    reference = {name: numbers(2, 3, 4, 5, seed=ord(name)) for name in "abcdef"}
    orders = [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (3, 1, 2, 0), (2, 1, 0, 3)]
    candidate = {name: array.transpose(order) for (name, array), order in zip(reference.items(), orders, strict=True)}
    told = match_values(reference, candidate).link.told
    assert told.endswith(", ...")
    assert len(told.split(", ")) == 5
