"""The capability vocabulary: what is refused, and why; nothing invalid is written (G 7.8 M11, M12)."""

import math
import tomllib

import msgspec
import pytest

from messages.facts import (
    Capability,
    CapabilityState,
    InvalidAttr,
    InvalidId,
    InvalidPredicate,
    InvalidRequirement,
    MemoryDemand,
    Predicate,
    PredicateOp,
    Provenance,
    Requirement,
    VocabularyCode,
    VocabularyError,
    as_f64,
    check_capability_id,
    family,
    from_json,
    is_experimental,
    is_under,
    loose_eq,
    measured_cycle,
    measured_tokens,
    to_json,
)


def cap(**attrs):
    return Capability(id="accel.npu", attrs=attrs, provenance=Provenance.PROBED)


def need(**fields):
    return Requirement(**{"id": "accel.npu", **fields})


def predicate(op, value, attr="a"):
    return Predicate(attr=attr, op=PredicateOp(op), value=value)


# --- ids ------------------------------------------------------------------------------------------------------------

FEW, MANY = "too few dot-separated segments", "too many dot-separated segments"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("a." + "b" * 127, "too long"),
        ("a." + "é" * 64, "too long"),
        ("accel", FEW),
        (".".join("abcdefghi"), MANY),
        ("a..b", 'segment "" must match [a-z0-9][a-z0-9_-]*'),
        ("a.B", 'segment "B" must match [a-z0-9][a-z0-9_-]*'),
        ("a.-b", 'segment "-b" must match [a-z0-9][a-z0-9_-]*'),
        ("a.b\n", 'segment "b\n" must match [a-z0-9][a-z0-9_-]*'),
        ("a.é", 'segment "é" must match [a-z0-9][a-z0-9_-]*'),
    ],
)
def test_a_malformed_id_is_refused_by_its_first_fault(text, reason):
    with pytest.raises(InvalidId) as caught:
        check_capability_id(text)
    assert caught.value.reason == reason
    assert caught.value.code is VocabularyCode.INVALID_ID
    assert str(caught.value).endswith(f": {reason}")


@pytest.mark.parametrize("text", ["a.b", "0.1", "x.y_z-0", ".".join("abcdefgh"), "a." + "b" * 126])
def test_ids_at_the_boundary_are_accepted(text):
    assert check_capability_id(text) == text


def test_a_long_id_is_cut_in_the_error_and_a_control_character_escaped():
    with pytest.raises(InvalidId) as caught:
        check_capability_id("A" * 300)
    assert f'invalid capability id "{"A" * 128}": ' in str(caught.value)
    with pytest.raises(InvalidId) as caught:
        check_capability_id('a\n".b.')
    assert str(caught.value).startswith('invalid capability id "a\\n\\".b.": ')


def test_families_and_prefixes_end_at_a_segment():
    assert family("accel.npu.hailo") == "accel"
    assert is_experimental("x.a")
    assert not is_experimental("xy.a")
    assert is_under("accel.npu.hailo", "accel.npu")
    assert is_under("accel.npu", "accel.npu")
    assert not is_under("accel.npux.fake", "accel.npu")
    assert not is_under("accel", "accel.npu")


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (2, 2.0, True),
        (2**53, 2**53 + 1, True),
        (True, 1, False),
        (False, 0.0, False),
        (True, True, True),
        ("2", 2, False),
        ("a", "a", True),
        ((1, "a"), (1.0, "a"), True),
        ((1,), (1, 1), False),
        ((True,), (1,), False),
        ("a", ("a",), False),
        (math.nan, math.nan, False),
        (10**400, math.inf, True),
    ],
)
def test_loose_equality(a, b, equal):
    assert loose_eq(a, b) is equal
    assert loose_eq(b, a) is equal


@pytest.mark.parametrize(
    ("value", "number"), [(True, None), ("1", None), (None, None), ((1,), None), (3, 3.0), (-(10**400), -math.inf)]
)
def test_booleans_and_texts_are_not_numbers(value, number):
    assert as_f64(value) == number


def test_values_keep_their_type_on_the_wire():
    text = '{"id":"a.b","attrs":{"b":true,"f":2.0,"i":2,"l":[1,"x",false],"s":"t"},"provenance":"probed"}'
    capability = from_json(text, Capability)
    assert [type(value) for value in capability.attrs.values()] == [bool, float, int, tuple, str]
    assert to_json(capability).decode() == text
    for bad in ("null", "{}", "[[1]]"):
        with pytest.raises(msgspec.ValidationError):
            from_json(f'{{"id":"a.b","attrs":{{"a":{bad}}},"provenance":"probed"}}', Capability)


@pytest.mark.parametrize(
    ("attrs", "attr", "reason"),
    [
        ({f"a{i}": 1 for i in range(65)}, "*", "too many attributes"),
        ({"": 1}, "", "name must match [a-z][a-z0-9_]*"),
        ({"A": 1}, "A", "name must match [a-z][a-z0-9_]*"),
        ({"a\n": 1}, "a\n", "name must match [a-z][a-z0-9_]*"),
        ({"a-b": 1}, "a-b", "name must match [a-z][a-z0-9_]*"),
        ({"a" * 65: 1}, "a" * 64, "name must match [a-z][a-z0-9_]*"),
        ({"a": math.nan}, "a", "non-finite float"),
        ({"a": (1, math.inf)}, "a", "non-finite float"),
        ({"a": "é" * 513}, "a", "string too long"),
        ({"a": ("x" * 1025,)}, "a", "string too long"),
        ({"a": tuple(range(257))}, "a", "list too long"),
        ({"a": ((1,),)}, "a", "nested lists are not allowed"),
        ({"a": 2**64}, "a", "integer beyond 64 bits"),
        ({"a": None}, "a", "must be a boolean, a number, a string or a list"),
    ],
)
def test_an_attribute_out_of_bounds_is_never_written(attrs, attr, reason):
    with pytest.raises(InvalidAttr) as caught:
        to_json(cap(**attrs))
    assert (caught.value.attr, caught.value.reason) == (attr, reason)
    assert str(caught.value).endswith(f" on accel.npu: {reason}")


def test_attributes_at_the_boundary_are_written():
    full = {f"a{i}": 1 for i in range(60)}
    capability = cap(**full, s="é" * 512, l=tuple(range(256)), **{"n" * 64: -(2**63)}, m=2**64 - 1)
    assert from_json(to_json(capability), Capability) == capability


def test_attributes_are_written_sorted_and_defaults_left_out():
    assert to_json(cap(b=1, a=2)) == b'{"id":"accel.npu","attrs":{"a":2,"b":1},"provenance":"probed"}'
    assert to_json(cap()) == b'{"id":"accel.npu","provenance":"probed"}'
    marked = msgspec.structs.replace(cap(), state=CapabilityState.BUSY, exclusive=True)
    assert to_json(marked).endswith(b'"provenance":"probed","state":"busy","exclusive":true}')


# --- requirements ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"id": None}, "exactly one of `id` or `id_prefix` is required"),
        ({"id_prefix": "accel"}, "exactly one of `id` or `id_prefix` is required"),
        ({"count": 0}, "count must be 1..=64"),
        ({"count": 65}, "count must be 1..=64"),
        ({"count": True}, "count must be 1..=64"),
        ({"where": (predicate("eq", 1),) * 33}, "too many predicates"),
    ],
)
def test_a_malformed_requirement_is_never_written(broken, reason):
    with pytest.raises(InvalidRequirement) as caught:
        to_json(need(**broken))
    assert str(caught.value) == f"invalid requirement: {reason}"


@pytest.mark.parametrize("selector", [{"id": "BAD"}, {"id": "accel"}, {"id": None, "id_prefix": ""},
                                      {"id": None, "id_prefix": "accel."}])  # fmt: skip
def test_a_requirement_with_a_malformed_selector_is_never_written(selector):
    with pytest.raises(InvalidId):
        to_json(need(**selector))


def test_requirements_at_the_boundary_are_written():
    for fields in ({"id": None, "id_prefix": "accel"}, {"count": 64}, {"where": (predicate("eq", 1),) * 32}):
        requirement = need(**fields)
        assert from_json(to_json(requirement), Requirement) == requirement


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (predicate("eq", 1, attr="A"), "name must match [a-z][a-z0-9_]*"),
        (predicate("eq", math.inf), "non-finite float"),
        (predicate("gte", "1"), "gte/lte need a numeric value"),
        (predicate("lte", True), "gte/lte need a numeric value"),
        (predicate("in", 1), "in needs a list value"),
        (predicate("has", (1,)), "has needs a scalar value"),
    ],
)
def test_a_malformed_predicate_is_never_written(broken, reason):
    with pytest.raises(InvalidPredicate) as caught:
        to_json(need(where=(broken,)))
    assert caught.value.reason == reason
    assert str(caught.value).startswith(f'invalid predicate on "{broken.attr}": ')


def test_a_requirement_reads_the_same_from_toml():
    text = """
    id_prefix = "accel.npu"
    count = 2
    min_provenance = "probed"
    where = [{ attr = "tops", op = "gte", value = 13 }, { attr = "format", op = "in", value = ["a", 1.5, true] }]
    """
    requirement = msgspec.convert(tomllib.loads(text), Requirement)
    requirement.check()
    assert from_json(to_json(requirement), Requirement) == requirement
    assert [type(value) for value in requirement.where[1].value] == [str, float, bool]


def test_unknown_members_are_refused():
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        from_json('{"id":"a.b","weight":1}', Requirement)


@pytest.mark.parametrize("demand", [{"host_bytes": 2**64}, {"accel_bytes": -1}, {"host_bytes": True}])
def test_a_memory_demand_is_unsigned_64_bit(demand):
    with pytest.raises(InvalidRequirement, match="unsigned 64-bit"):
        MemoryDemand(**demand).check()
    MemoryDemand(host_bytes=2**64 - 1).check()


# --- measurements ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", [measured_cycle, measured_tokens])
@pytest.mark.parametrize(
    ("subject", "value", "reason"),
    [
        ("", 1, "parameter must be non-empty and bounded"),
        ("x" * 1025, 1, "parameter must be non-empty and bounded"),
        ("x", -1, "measured value must be finite and non-negative"),
        ("x", math.nan, "measured value must be finite and non-negative"),
        ("x", math.inf, "measured value must be finite and non-negative"),
        ("x", True, "measured value must be finite and non-negative"),
    ],
)
def test_a_senseless_measurement_cannot_be_built(measure, subject, value, reason):  # M11
    with pytest.raises(InvalidAttr, match=reason):
        measure(subject, value)


def test_a_measurement_is_a_valid_measured_capability():  # M11
    capability = measured_tokens("m", 42)
    assert (
        to_json(capability) == b'{"id":"perf.infer.tok_s","attrs":{"model":"m","value":42.0},"provenance":"measured"}'
    )


def test_every_vocabulary_error_has_a_code():
    assert {kind.code for kind in VocabularyError.__subclasses__()} == set(VocabularyCode)
