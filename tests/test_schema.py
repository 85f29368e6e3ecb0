"""The JSON of a result against the schema that ships, and the schema against results that are wrong."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import replace
from datetime import date
from importlib import resources

import pytest
from functions import CANDIDATES, gate_result

from parity.result import EXIT_STATUS, SCHEMA, Accepted, Row

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is in the test extra")

TEXT = resources.files("parity").joinpath("schema/result.schema.json").read_text()
VALIDATOR = jsonschema.Draft202012Validator(json.loads(TEXT))


def errors(document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)
    assert VALIDATOR.schema["properties"]["schema"]["const"] == SCHEMA
    assert VALIDATOR.schema["$id"].endswith(f":{SCHEMA}")
    assert set(VALIDATOR.schema["properties"]["verdict"]["enum"]) == set(EXIT_STATUS)


@pytest.mark.parametrize(
    ("candidate", "verdict", "rung"),
    [
        ("same", "PASS", "same-function"),
        ("tanh", "FAIL", "different"),
        ("island", "PASS", "float32-island"),
        ("nan", "VACUOUS", None),
    ],
)
def test_real_output_validates(candidate, verdict, rung):
    document = json.loads(gate_result(candidate).to_json())
    assert errors(document) == []
    assert (document["verdict"], document["rung"]) == (verdict, rung)
    assert document["rows"]


def test_the_names_that_others_rely_on_are_there():
    document = json.loads(gate_result().to_json())
    assert document.keys() >= {"schema", "verdict", "rung", "target", "seed", "environment", "rows"}
    names = "name side_names shape dtype stage measured bound headroom required derivation verdict"
    for row in document["rows"]:
        assert row.keys() >= set(names.split())
    environment = document["environment"]
    assert environment.keys() >= {"versions", "machine", "devices", "precision_switches"}
    assert environment["versions"].keys() >= {"python", "jax", "torch", "numpy"}
    assert environment["devices"] == {"jax": ["cpu"], "torch": ["cpu"]}


def test_counts_are_integers():
    # JSON Schema calls 1.0 an integer, Python's reader does not
    document = json.loads(gate_result().to_json())
    counts = [count for name in ("forward", "forward_backward") for count in document["flops"][name].values()]
    sizes = [size for row in document["rows"] for size in row["shape"]]
    assert len(counts) >= 6
    for count in (*counts, *sizes, document["seed"], document["schema"], document["environment"]["machine"]["cores"]):
        assert type(count) is int


@pytest.mark.parametrize(("value", "written"), [(math.nan, "nan"), (math.inf, "inf")])
def test_what_json_has_no_number_for_is_a_string(value, written):
    result = gate_result()
    row = replace(result.rows[0], measured=value)
    text = replace(result, rows=(row,)).to_json()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["rows"][0]["measured"] == document["rows"][0]["required"] == written
    assert errors(document) == []


def test_a_row_without_a_difference_has_infinite_headroom():
    row = Row("y", "y", ("a", "b"), (), "float64", "float64", 0.0, 1e-15, "because", "PASS")
    document = json.loads(replace(gate_result(), rows=(row,)).to_json())
    assert document["rows"][0]["headroom"] == "inf"
    assert errors(document) == []


def broken(change) -> object:
    document = json.loads(gate_result("island").to_json())
    change(document)
    return document


def with_accepted() -> dict:
    """The document of a result with a failing row that is accepted."""
    failed = gate_result("tanh")
    row = failed.rows[0]
    accepted = Accepted(row.name, row.stage, "the port is the tanh form", date(2030, 12, 31))
    return json.loads(replace(failed, accepted=(accepted,)).to_json())


def test_an_accepted_row_validates_and_an_old_document_without_any_too():
    document = with_accepted()
    assert document["accepted"][0]["expires"] == "2030-12-31"
    assert errors(document) == []
    del document["accepted"]
    assert errors(document) == []


@pytest.mark.parametrize("change", [{"reason": ""}, {"expires": "soon"}, {"stage": "int8"}, {"until": "2030-12-31"}])
def test_a_broken_acceptance_does_not_validate(change):
    document = with_accepted()
    document["accepted"][0].update(change)
    assert errors(document)


BROKEN = {
    "no verdict": lambda d: d.pop("verdict"),
    "another verdict": lambda d: d.update(verdict="OK"),
    "another rung": lambda d: d.update(rung="close"),
    "another schema": lambda d: d.update(schema=2),
    "a name too many": lambda d: d.update(atol=1e-3),
    "a negative seed": lambda d: d.update(seed=-1),
    "a seed that is a string": lambda d: d.update(seed="0"),
    "a row without its bound": lambda d: d["rows"][0].pop("bound"),
    "a row without a derivation": lambda d: d["rows"][0].update(derivation=""),
    "a row of one side": lambda d: d["rows"][0].update(side_names=["jax"]),
    "a row of another stage": lambda d: d["rows"][0].update(stage="int8"),
    "a measured value below zero": lambda d: d["rows"][0].update(measured=-1e-9),
    "a measured value in words": lambda d: d["rows"][0].update(measured="small"),
    "a shape that is no list of counts": lambda d: d["rows"][0].update(shape=[2.5]),
    "FLOPs with a fraction": lambda d: d["flops"]["forward"].update(torch=1.5),
    "FLOPs by an unknown method": lambda d: d["flops"]["forward"].update(guess=1),
    "an island without its side": lambda d: d["islands"][0].pop("side"),
    "a zero gradient twice": lambda d: d.update(zero_gradients=["b", "b"]),
    "no device": lambda d: d["environment"].pop("device"),
    "no Python version": lambda d: d["environment"]["versions"].pop("python"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_result_does_not_validate(name):
    assert errors(broken(BROKEN[name]))
    assert errors(broken(lambda document: None)) == []


def test_every_object_is_described():
    """Each key of real output has a property in the schema, wherever it stands."""

    def undescribed(schema, value, path="$"):
        schema = VALIDATOR.schema["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if isinstance(value, dict):
            for key, each in value.items():
                known = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
                if known:
                    yield from undescribed(known, each, f"{path}.{key}")
                elif path != "$.environment.precision_switches":
                    yield f"{path}.{key}"
        if isinstance(value, list):
            for each in value:
                yield from undescribed(schema["items"], each, f"{path}[]")

    for document in (with_accepted(), *(json.loads(gate_result(candidate).to_json()) for candidate in CANDIDATES)):
        del document["first_difference"]  # one of two forms, which validation has looked at
        assert list(undescribed(VALIDATOR.schema, document)) == []
    surplus = deepcopy(document)
    surplus["rows"][0]["surplus"] = 1
    assert list(undescribed(VALIDATOR.schema, surplus)) == ["$.rows[].surplus"]
